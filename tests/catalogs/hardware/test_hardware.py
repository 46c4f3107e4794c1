"""Hardware files, the --hw grammar, MIG slices."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.deployments.resolve import CatalogLookup
from catalogs.errors import InputError
from catalogs.hardware import files as hardware_files
from catalogs.hardware.catalog import MOST_NODES, canonical_order, list_hardware, list_mig_profiles, parse_hardware
from catalogs.units import GIB, MIB

SCRIPT_NAMES = ["h100", "h200", "b200", "a100-80gb", "l40s", "rtx4090", "rtxpro6000"]
MIG_GPUS = [n for n in list_hardware() if list_mig_profiles(n)]


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_hardware(text)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", list_hardware())
def test_every_file_loads_with_plausible_physics(name: str) -> None:
    a = parse_hardware(name).accelerator
    node = parse_hardware(name).node
    assert a.name == name
    assert "as of" in a.source
    assert 8 * GIB < a.memory_bytes < 1024 * GIB
    assert 100e9 < a.memory_bandwidth_bytes_per_s < 10e12
    assert 0 < a.idle_w < a.tdp_w < 2000
    assert 1e9 < node.network_bytes_per_s <= node.link_bytes_per_s < a.memory_bandwidth_bytes_per_s
    assert node.host_idle_w > 0


@pytest.mark.parametrize("name", list_hardware())
def test_narrower_operands_are_never_slower_and_never_sparse(name: str) -> None:
    peak = parse_hardware(name).accelerator.peak_flops
    sixteen = peak.get("bf16", peak.get("fp16", 0.0))
    assert sixteen > peak["fp32"]
    for narrow in ("fp8", "int8"):
        if narrow in peak:  # twice 16 bit; four times where GeForce halves 16 bit; a sparse figure would be another x2
            assert 1.99 * sixteen <= peak[narrow] <= 4.01 * sixteen
    if "fp4" in peak:
        assert peak["fp4"] > peak["fp8"]


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_names_scripts_use(name: str) -> None:
    assert parse_hardware(f"{name}x2").accelerator.name == name


@pytest.mark.parametrize(
    ("name", "mib"),
    [("h100", 81559), ("h200", 143771), ("b200", 183359), ("a100-80gb", 81920), ("l40s", 46068), ("rtx4090", 24564)],
)
def test_memory_is_what_the_driver_reports(name: str, mib: int) -> None:
    assert parse_hardware(name).accelerator.memory_bytes == mib * MIB


def test_dense_peaks_known_by_heart() -> None:
    assert parse_hardware("h100").accelerator.flops_for("bf16") == pytest.approx(989.4e12)
    assert parse_hardware("a100-80gb").accelerator.flops_for("bf16") == 312e12
    assert parse_hardware("a100-80gb").accelerator.flops_for("fp8") == 312e12  # no fp8 cores: 16 bit
    assert parse_hardware("t4").accelerator.flops_for("bf16") == 65e12  # no bf16: fp16
    assert parse_hardware("rtx4090").accelerator.flops_for("bf16") == pytest.approx(165.2e12)


@pytest.mark.parametrize(
    ("text", "canonical", "total"),
    [
        ("h100", "h100x1", 1),
        ("h100x8", "h100x8", 8),
        ("2*h100x8", "2*h100x8", 16),
        (" H100_SXM x 4 ", "h100x4", 4),
        ("rtx4090", "rtx4090x1", 1),
        ("rtx4090x3", "rtx4090x3", 3),
        ("mi300x", "mi300xx1", 1),
        ("mi300xx8", "mi300xx8", 8),
        ("a100", "a100-80gbx1", 1),
        ("a100-80gb:2g.20gbx3", "a100-80gb:2g.20gbx3", 3),
        ("2*a100-80gb:1g.10gbx7", "2*a100-80gb:1g.10gbx7", 14),
        ("gb200x4", "gb200x4", 4),
    ],
)
def test_grammar(text: str, canonical: str, total: int) -> None:
    h = parse_hardware(text)
    assert (h.text, h.n_accelerators) == (canonical, total)
    assert parse_hardware(h.text) == h


@pytest.mark.parametrize(
    ("canonical", "others"),
    [
        ("h100x8", ["8xh100", "8 x H100", "8 H100", "8×H100", "h100:8", "H100 * 8", "8x h100_sxm"]),
        ("2*h100x8", ["2xh100x8", "2:h100x8", "2 x H100 x 8", "2*8xh100", "2x8xh100", "2:8 x h100", "16xh100"]),
        ("rtx4090x2", ["2xrtx4090", "2 RTX4090", "rtx4090:2"]),
        ("mi300xx8", ["8xmi300x", "mi300x8", "mi300x:8"]),
        ("xeon-8480x2", ["2 xeon-8480"]),
        ("a100-80gb:2g.20gbx3", ["3xa100-80gb:2g.20gb", "a100-80gb:2g.20gb:3"]),
        ("2*a100-80gb:2g.20gbx3", ["2xa100-80gb:2g.20gbx3", "2:a100-80gb:2g.20gbx3"]),
    ],
)
def test_other_orders_name_the_same_hardware(canonical: str, others: list[str]) -> None:
    for text in others:
        assert parse_hardware(text).without_notices() == parse_hardware(canonical), text


@given(
    name=st.sampled_from(list_hardware()),
    count=st.integers(1, 4),
    nodes=st.integers(2, 9),
    order=st.sampled_from(
        ["{n}*{name}x{c}", "{n}x{name}x{c}", "{n}:{name}x{c}", "{n}*{c}x{name}", "{n} x {c} x {name}"]
    ),
)
def test_every_order_has_the_same_nodes_and_counts(name: str, count: int, nodes: int, order: str) -> None:
    count = min(count, parse_hardware(name).node.max_accelerators)
    h = parse_hardware(order.format(n=nodes, c=count, name=name.upper()))
    assert (h.accelerator.name, h.n_nodes, h.accelerators_per_node) == (name, nodes, count)
    assert parse_hardware(f"{count}x{name}").text == f"{name}x{count}"
    for text in (order.format(n=nodes, c=count, name=name), f"{count}x{name}"):
        assert parse_hardware(canonical_order(text)) == parse_hardware(text)
        assert canonical_order(canonical_order(text)) == canonical_order(text)


@pytest.mark.parametrize("text", ["h100", "h100x8", "2*h100x8", "local", "any", "a100-80gb:2g.20gbx3", "8xh10", ""])
def test_the_canonical_order_and_unknown_text_stay_as_they_are(text: str) -> None:
    assert canonical_order(text) == text


def test_nodes_of_one_accelerator_each_are_pointed_out() -> None:
    eight = parse_hardware("8*h100")
    assert (eight.text, eight.n_nodes) == ("8*h100x1", 8)
    assert eight.notices == ("8*h100 is 8 nodes of one h100 each; one node of 8 is h100x8",)
    assert not parse_hardware("8*h100x1").notices


def test_more_than_a_node_holds_are_whole_nodes_and_say_so() -> None:
    many, written = parse_hardware("h100x16"), parse_hardware("2*h100x8")
    assert (many.text, many.n_nodes, many.n_accelerators) == ("2*h100x8", 2, 16)
    assert many.notices == ("a node of h100 holds 8: h100x16 is read as 2*h100x8",)
    assert (many.node, written.notices) == (written.node, ())


@pytest.mark.parametrize("text", ["m3max", "inferentia2", "x100"])
def test_a_name_of_no_known_family_has_no_nearest(text: str) -> None:
    error = refused(text)
    assert error.nearest is None
    assert "catalog list hardware" in str(error)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("h100x9", "h100x8"),
        ("2*h100x16", "h100x8"),
        ("h100x0", "h100x1"),
        ("h100x-1", "h100x1"),
        ("0*h100x8", "1*h100x8"),
        ("-2*h100x8", "1*h100x8"),
        ("h1000", "h100"),
        ("h10x8", "h100"),
        ("rtx4091", "rtx4090"),
        ("", "h100x8"),
        ("a100-80gb:2g.20gbx4", "a100-80gb:2g.20gbx3"),
        ("a100-80gbx2:2g.20gb", "a100-80gb:2g.20gbx2"),
        ("a100-80gbx7:2g.20gb", "a100-80gb:2g.20gbx3"),
        ("h100x2+l40sx4", "h100x2"),
        ("a100-80gb:2g.25gb", "a100-80gb:2g.20gb"),
        ("l4:1g.10gb", "l4"),
        ("8xh10", "h100"),
        ("9xh100", "h100x8"),
        ("0 x h100", "h100x1"),
        ("2*3*h100", "h100"),
        ("h100x8x8", "h100x8"),
        ("h100x99999999999999999999", "h100x8"),  # too many digits for a count
        ("l4x", "l4x8"),
        ("gb200-nvl72xx4", "gb200-nvl72x72"),
        ("nvidia-h100", "h100"),
        ("b100", "b300"),  # not v100, which has as many equal letters
        ("4090", "rtx4090"),
        ("a100-80g", "a100-80gb"),
        ("h200x8,h100x8", "h200x8"),
        ("any,h100", "h100"),
        ("any", "h100x8"),
    ],
)
def test_bad_names_and_counts_name_the_nearest(text: str, nearest: str) -> None:
    error = refused(text)
    assert error.nearest == nearest
    parse_hardware(nearest)


@pytest.mark.parametrize("text", ["3090", "3090x2"])
def test_a_number_that_no_name_contains_is_near_none(text: str) -> None:
    """3090 is not b300, although most of its digits are equal."""
    error = refused(text)
    assert error.nearest is None
    assert "catalog list hardware" in str(error)


def test_a_path_is_not_a_name() -> None:
    refused("../engines/vllm")


@given(st.text(max_size=20))
def test_any_text_is_hardware_or_one_line(text: str) -> None:
    message = ""
    try:
        assert parse_hardware(text).n_accelerators >= 1
    except InputError as e:
        message = str(e)
    assert "\n" not in message


@pytest.mark.parametrize("gpu", MIG_GPUS)
def test_slices_never_add_up_to_more_than_the_gpu(gpu: str) -> None:
    whole = parse_hardware(gpu).accelerator
    for profile in list_mig_profiles(gpu):
        most = hardware_files.read_hardware_file(gpu).mig[profile].max_per_gpu
        h = parse_hardware(f"{gpu}:{profile}x{most}")
        a = h.accelerator
        assert a.is_slice
        assert most * a.memory_bytes <= whole.memory_bytes
        assert most * a.memory_bandwidth_bytes_per_s <= whole.memory_bandwidth_bytes_per_s
        assert most * a.flops_for("bf16") <= whole.flops_for("bf16")
        assert most * a.tdp_w <= whole.tdp_w
        refused(f"{gpu}:{profile}x{most + 1}")


def test_one_seventh_of_an_a100_is_14_of_108_multiprocessors() -> None:
    a = parse_hardware("a100-80gb:1g.10gb").accelerator
    assert a.flops_for("bf16") == pytest.approx(312e12 * 14 / 108)
    assert a.memory_bandwidth_bytes_per_s == pytest.approx(2039e9 / 8)


def test_only_a_pair_uses_the_bridge() -> None:
    assert parse_hardware("h100-nvlx2").node.link_bytes_per_s == 300e9
    assert parse_hardware("h100-nvlx4").node.link_name == "pcie5"


def test_a_sparse_peak_or_unknown_key_in_a_file_is_refused() -> None:
    good = hardware_files.read_hardware_file("h100").model_dump(exclude_none=True)
    hardware_files.HardwareFile.model_validate(good)
    for fault in ({"peak_tflops_sparse": 1979.0}, {"memory_mib": -1}, {"tdp_w": "700"}, {"sms": None}):
        with pytest.raises(ValueError, match=r"."):
            hardware_files.HardwareFile.model_validate(good | fault)


def test_spellings_are_unambiguous() -> None:
    aliases = [a for n in list_hardware() for a in hardware_files.read_hardware_file(n).aliases]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & set(list_hardware())


#: GeForce halves the rate of its matrix units on both architectures, so kernels come as close to the peak; RTX PRO 6000
#: has the same chip as RTX 5090 at the full rate, where they do not.
ACROSS_ARCHITECTURES = {("rtx5090", "rtx4090")}


def test_a_borrowed_calibration_is_of_measured_hardware_of_the_same_architecture() -> None:
    borrowed = {n: like for n in list_hardware() if (like := hardware_files.read_hardware_file(n).calibrated_like)}
    assert borrowed["h100-nvl"] == "h100"
    for name, like in borrowed.items():
        own, lent = hardware_files.read_hardware_file(name), hardware_files.read_hardware_file(like)
        assert own.architecture == lent.architecture or (name, like) in ACROSS_ARCHITECTURES, name
        assert lent.calibrated_like is None, name
        assert (hardware_files.DATA / "calibrations" / like / "bundle.json").is_file()


def test_the_cache_of_an_accelerator_is_its_files() -> None:
    assert parse_hardware("h100").accelerator.cache_bytes == hardware_files.cache_bytes("h100") == 50 * MIB
    assert parse_hardware("a100-80gb:2g.20gb").accelerator.cache_bytes == 40 * MIB
    assert hardware_files.cache_bytes("t4") == hardware_files.cache_bytes("local") == 0.0


def test_public_systems_files_agree(public_data) -> None:  # type: ignore[no-untyped-def]
    import yaml

    ours = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "a100_sxm": "a100-80gb", "l40s": "l40s"}
    for theirs, name in {**ours, "gb200": "gb200"}.items():
        text = (public_data / "profiles" / "aiconfigurator" / f"{theirs}.yaml").read_text()
        gpu, a = yaml.safe_load(text)["gpu"], parse_hardware(name).accelerator
        assert math.isclose(a.memory_bandwidth_bytes_per_s, gpu["mem_bw"], rel_tol=0.01)
        assert math.isclose(a.flops_for("bf16"), gpu["bfloat16_tc_flops"], rel_tol=0.01)
        assert a.tdp_w == gpu["power"]


def test_ranks_of_a_mesh_have_only_the_links_between_them() -> None:
    node = parse_hardware("mi300xx8").node
    assert node.link_bytes_per_s_of(8) == node.link_bytes_per_s == 448e9
    assert node.link_bytes_per_s_of(2) == pytest.approx(64e9)
    assert parse_hardware("h100x8").node.link_bytes_per_s_of(2) == parse_hardware("h100x8").node.link_bytes_per_s


@pytest.mark.parametrize(
    ("text", "maker"),
    [("h100", "nvidia"), ("mi355x", "amd"), ("b60", "intel"), ("gaudi3", "intel"), ("tpu-v6e", "google")],
)
def test_accelerators_have_a_maker(text: str, maker: str) -> None:
    assert parse_hardware(text).accelerator.maker == maker


def test_an_engine_runs_on_its_makers_only() -> None:
    with pytest.raises(InputError, match="trtllm runs on nvidia only, not on AMD Instinct MI300X") as caught:
        CatalogLookup.of("llama3.1-70b", "trtllm", "mi300xx8")
    assert "\n" not in str(caught.value)
    assert CatalogLookup.of("llama3.1-70b", "vllm", "tpu-v6ex8").hardware.n_accelerators == 8


@pytest.mark.parametrize(
    "text", [f"{MOST_NODES + 1}*h100x8", f"{MOST_NODES + 1}xh100x8", f"h100x{8 * (MOST_NODES + 1)}"]
)
def test_more_nodes_than_can_be_simulated_are_refused_at_once(text: str) -> None:
    with pytest.raises(InputError, match="hardware has at most 1,024 nodes") as wrong:
        parse_hardware(text)
    assert parse_hardware(str(wrong.value.nearest)).n_nodes == MOST_NODES
