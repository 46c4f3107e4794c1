"""The shipped bundles: laws every cost must obey, and what happens to damaged or foreign ones."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seal_bundles import main as seal_bundles

from calibration.bundles.bundle import Bundle, load_bundle, shipped_folder
from calibration.bundles.files import facts_hash, read_bundle
from calibration.bundles.ranges import array_fault
from calibration.families.uncalibrated import UncalibratedModel
from calibration.importers import aiter
from calibration.importers.public import SHIPPED
from calibration.operators.operators import Collective, DecodeAttention, Elementwise, Gemm, Operator, PrefillAttention
from calibration.operators.roofline import roofline_s
from calibration.power.model import MOST_DEMAND
from catalogs.engines.files import load_engine
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware

MS = np.array([1, 2, 7, 8, 16, 20, 33, 64, 100, 128, 129, 200, 256, 300, 512, 1000, 2048, 3000, 8192, 16384.0])
#: (n, k) of Llama-2-7b, Llama-3.1-70B TP4 and Llama-3.1-405B TP8 layers.
SHAPES = [(12288, 4096), (22016, 4096), (4096, 11008), (14336, 8192), (8192, 7168), (13312, 16384), (16384, 6656)]
HEADS = [(32, 32, 128), (32, 8, 128), (16, 2, 128), (16, 1, 128), (8, 1, 64)]


#: Hardware with rows of an engine, not only of tuned kernels.
TIMED_IN_ENGINES = [name for name in SHIPPED if name not in aiter.GPU_OF]


@pytest.fixture(params=SHIPPED)
def bundle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bundle:
    monkeypatch.setattr("calibration.bundles.bundle.user_folder", lambda: tmp_path)
    return load_bundle(parse_hardware(request.param).accelerator)


@pytest.mark.parametrize("bundle", TIMED_IN_ENGINES, indirect=True)
def test_only_the_users_own_inexact_measurements_get_a_notice(bundle: Bundle) -> None:
    """The notice names the family, its error and the command that measures more; only for operators that are used."""
    op = Gemm(8.0, 4096.0, 4096.0, "bf16")
    attention = DecodeAttention(np.array(1.0), np.array(9.0), np.array(9.0), 32, 8, 128, "bf16")
    own = replace(bundle, shipped=False, errors={"gemm": 0.05, "decode_attention": 0.78})
    assert not [line for line in own.notices_for([op]) if "inexact" in line]
    (line,) = (line for line in own.notices_for([op, attention]) if "inexact" in line)
    assert "decode_attention 78 %" in line
    assert f"calibrate run --hw {bundle.accelerator.name}" in line
    assert "gemm" not in line
    for other in (replace(own, shipped=True), replace(own, transferred=True)):
        assert not [line for line in other.notices_for([op, attention]) if "inexact" in line]


def _ops(heads: tuple[int, int, int]) -> list[Operator]:
    s, c = np.meshgrid([1.0, 3.0, 64.0, 500.0], [1.0, 100.0, 1000.0, 30000.0])
    q, ctx = np.meshgrid([1.0, 16.0, 100.0, 2048.0, 8192.0], [0.0, 500.0, 20000.0])
    return [
        DecodeAttention(s, s * c, c, *heads, "bf16"),
        DecodeAttention(s, s * c, 4 * c, *heads, "fp8"),
        PrefillAttention(1.0, q, q * (ctx + q / 2), *heads, "bf16"),
        PrefillAttention(4.0, 4 * q, 4 * q * (ctx + q / 2), *heads, "fp8"),
        PrefillAttention(1.0, q, np.minimum(q * 128, q * q / 2), *heads, "bf16", 128),
    ]


def _all_ops() -> list[Operator]:
    gemms: list[Operator] = [Gemm(MS, n, k, d) for n, k in SHAPES for d in ("bf16", "fp8", "fp8_block", "int4", "fp4")]
    return gemms + [op for heads in HEADS for op in _ops(heads)]


def test_costs_are_positive_finite_and_no_faster_than_the_roofline(bundle: Bundle) -> None:
    for op in _all_ops():
        cost = bundle.cost(op)
        assert np.isfinite(cost.seconds).all(), op
        assert (cost.seconds > 0.999 * roofline_s(op, bundle.accelerator)).all(), op
        assert np.isin(cost.origin, (0.0, 1.0, 2.0)).all()
        idle, tdp = bundle.accelerator.idle_w, bundle.accelerator.tdp_w
        assert ((cost.watts >= idle) & (cost.watts <= MOST_DEMAND * tdp)).all()


def test_arrays_and_scalars_agree(bundle: Bundle) -> None:
    for n, k in SHAPES[:2]:
        together = bundle.cost(Gemm(MS, n, k, "bf16"))
        alone = [bundle.cost(Gemm(m, n, k, "bf16")) for m in MS]
        assert together.seconds.tolist() == [float(c.seconds) for c in alone]
        assert together.origin.tolist() == [float(c.origin) for c in alone]
    q = np.array([16.0, 300.0, 2048.0])
    together = bundle.cost(PrefillAttention(2.0, q, q * 1000, 32, 8, 128, "bf16"))
    alone = [bundle.cost(PrefillAttention(2.0, x, x * 1000, 32, 8, 128, "bf16")) for x in q]
    assert together.seconds.tolist() == [float(c.seconds) for c in alone]


@pytest.mark.parametrize("bundle", TIMED_IN_ENGINES, indirect=True)  # a tuner's kernels change with the rows
def test_more_rows_hardly_ever_cost_less(bundle: Bundle) -> None:
    for n, k in SHAPES:
        for dtype in ("bf16", "fp8"):
            seconds = bundle.cost(Gemm(MS, n, k, dtype)).seconds
            least_above = np.minimum.accumulate(seconds[::-1])[::-1]
            assert (seconds <= 1.15 * least_above).all(), (n, k, dtype, seconds)


def test_longer_contexts_never_cost_less(bundle: Bundle) -> None:
    context = np.unique(np.geomspace(1, 131072, 400).round())
    for heads in HEADS:
        for sequences in (1.0, 20.0, 256.0):
            op = DecodeAttention(sequences, sequences * context, context, *heads, "bf16")
            seconds = bundle.cost(op).seconds
            assert (np.diff(seconds) > -3e-3 * seconds[:-1]).all(), (heads, sequences)  # stored in 16 bit
            growth = np.diff(np.log(seconds)) / np.diff(np.log(context))
            assert (growth < 1.6).all(), "a jump between neighbouring contexts"


def test_more_pairs_never_cost_less(bundle: Bundle) -> None:
    context = np.linspace(0, 30000, 200)
    for heads in HEADS:
        for q in (1.0, 100.0, 512.0, 4096.0):
            seconds = bundle.cost(PrefillAttention(1.0, q, q * (context + q / 2), *heads, "bf16")).seconds
            assert (np.diff(seconds) > -0.02 * seconds[:-1]).all(), (heads, q)


@pytest.mark.parametrize("bundle", TIMED_IN_ENGINES, indirect=True)
def test_weights_stream_at_a_plausible_bandwidth(bundle: Bundle) -> None:
    """Decode of Llama-3.1-70B TP4 layers reaches 60-97 % of the memory bandwidth on every card."""
    layers = [(2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168)]
    seconds = sum(float(bundle.cost(Gemm(16.0, n, k, "bf16")).seconds) for n, k in layers)
    bandwidth = sum(2.0 * n * k for n, k in layers) / seconds
    assert 0.6 < bandwidth / bundle.accelerator.memory_bandwidth_bytes_per_s < 0.97


@pytest.mark.parametrize("bundle", TIMED_IN_ENGINES, indirect=True)
def test_errors_are_recorded_and_small(bundle: Bundle) -> None:
    for family in ("gemm", "prefill_attention", "decode_attention"):
        assert 0.0 < bundle.relative_error(family) < 0.10
    with pytest.raises(InputError, match="unknown operator family"):
        bundle.relative_error("gems")


def test_loading_is_fast_and_needs_numpy_only() -> None:
    code = (
        "import sys, time\n"
        "from catalogs.hardware.catalog import parse_hardware\n"
        "from calibration.bundles.bundle import load_bundle\n"
        "from calibration.operators.operators import Gemm\n"
        "a = parse_hardware('b200').accelerator\n"
        "t = time.process_time(); load_bundle(a).cost(Gemm(1, 4096, 4096, 'bf16')); t = time.process_time() - t\n"
        "print(t, [m for m in ('pandas', 'sklearn', 'scipy', 'pyarrow', 'torch') if m in sys.modules])"
    )
    seconds, modules = subprocess.check_output([sys.executable, "-c", code], text=True).split(" ", 1)
    assert modules.strip() == "[]"
    assert float(seconds) < 0.5  # of processor time: 0.03 s on an idle core, more where another process shares it


def test_a_neighbour_is_used_by_rule_and_says_so() -> None:
    nvl, own = (load_bundle(parse_hardware(n).accelerator) for n in ("h100-nvl", "h100"))
    op = Gemm(1.0, 16384.0, 16384.0, "bf16")
    assert float(own.cost(op).origin) <= float(nvl.cost(op).origin) == 1.0
    assert any("h100" in line and line.startswith("transferred") for line in nvl.notices)
    ratio = own.accelerator.memory_bandwidth_bytes_per_s / nvl.accelerator.memory_bandwidth_bytes_per_s
    assert float(nvl.cost(op).seconds) == pytest.approx(float(own.cost(op).seconds) * ratio, rel=1e-6)


def test_a_slice_is_slower_than_the_card() -> None:
    card, part = (load_bundle(parse_hardware(n).accelerator) for n in ("a100-80gb", "a100-80gb:2g.20gb"))
    assert any("MIG" in line for line in part.notices)
    for op in (Gemm(64.0, 8192.0, 8192.0, "bf16"), PrefillAttention(1.0, 512.0, 512 * 4e3, 32, 8, 128, "bf16")):
        assert part.cost(op).seconds > 1.5 * card.cost(op).seconds


def test_unknown_hardware_gets_the_roofline_and_a_notice() -> None:
    bundle = load_bundle(parse_hardware("l4").accelerator)
    assert "uncalibrated: roofline" in bundle.notices
    op = Elementwise("norm", np.array([1.0, 1e6]), 16384.0)
    cost = bundle.cost(op)
    assert (cost.origin == 2.0).all()
    assert cost.seconds[1] > roofline_s(op, bundle.accelerator)[1]
    assert bundle.relative_error("gemm") >= 0.2


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shipped_folder() / "rtx4090", tmp_path / "rtx4090"))


def sealed(document: dict[str, Any]) -> str:
    """The document with the hash that belongs to it, as somebody would write it who changes facts on purpose."""
    return json.dumps(document | {"facts_sha256": facts_hash(document)})


def test_any_changed_character_of_the_facts_is_found(copy: Path) -> None:
    file, unit = copy / "bundle.json", parse_hardware("rtx4090").accelerator
    data = file.read_bytes()
    document = json.loads(data)
    accepted = []
    for i in range(0, len(data), 3):
        for damaged in (data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :], data[:i] + data[i + 1 :], data[:i]):
            file.write_bytes(damaged)
            try:
                read_bundle(copy)
            except InputError:
                continue
            accepted.append(damaged)
    assert all(json.loads(damaged) == document for damaged in accepted)  # white space, which means nothing
    file.write_bytes(data)
    assert load_bundle(unit, copy).relative_error("gemm") > 0


def test_a_relabelled_bundle_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(shipped_folder() / "h100", tmp_path / "h200"))
    text = (folder / "bundle.json").read_text()
    (folder / "bundle.json").write_text(text.replace('"hardware": "h100"', '"hardware": "h200"', 1))
    with pytest.raises(InputError, match="do not match the hash"):
        load_bundle(parse_hardware("h200").accelerator, folder)
    (folder / "bundle.json").write_text(sealed(json.loads(text) | {"hardware": "h200"}))
    with pytest.raises(InputError, match="labelled h200, but collective was measured on h100"):
        load_bundle(parse_hardware("h200").accelerator, folder)


RANGES = [
    (("gemm", "facts", "floors_s", "bf16"), -1e-6, "floors_s.bf16: Input should be greater than 0"),
    (("gemm", "facts", "floors_s", "bf16"), 3e6, "floors_s.bf16: Input should be less than"),
    (("gemm", "held_out", 0, "n"), 0, "greater than 0"),
    (("gemm", "held_out", 0, "median_abs_rel_error"), -0.1, "greater than or equal to 0"),
    (("gemm", "held_out", 0, "bias"), -1.5, "greater than or equal to -1"),
    (("gemm", "rows", "rows_in"), -1, "greater than or equal to 0"),
    (("gemm", "rows_sha256"), "abc", "should match pattern"),
    (("decode_attention", "facts", "skew_alpha"), 1.5, "skew_alpha: Input should be less than or equal to 1"),
    (("decode_attention", "facts", "writes_cache"), "no", "writes_cache: Input should be a valid boolean"),
    (("prefill_attention", "facts", "peak_flops"), 1.0, "peak_flops: Input should be greater"),
    (
        ("elementwise", "facts", "fitted_on", "memory_bandwidth_bytes_per_s"),
        0.0,
        "bytes_per_s: Input should be greater",
    ),
    (("elementwise", "facts", "invented"), -1, "invented: a constant must be finite and not negative"),
]


@pytest.mark.parametrize(("place", "value", "rule"), RANGES, ids=[str(r[2]) for r in RANGES])
def test_constants_that_nothing_measured_can_have_are_refused(
    copy: Path, place: tuple[str | int, ...], value: object, rule: str
) -> None:
    document = json.loads((copy / "bundle.json").read_text())
    at = document["families"]
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    (copy / "bundle.json").write_text(sealed(document))
    with pytest.raises(InputError, match=re.escape(rule)):
        load_bundle(parse_hardware("rtx4090").accelerator, copy)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("gemm/bf16.axis0", np.nan, "ascending"),
        ("gemm/bf16.axis0", 99.0, "ascending"),
        ("gemm/bf16.values", np.nan, "no missing values"),
        ("gemm/bf16.values", np.inf, "no infinite values"),
        ("elementwise/elementwise_seconds", -1.0, "positive seconds"),
    ],
)
def test_arrays_that_no_fit_can_give_are_refused(name: str, value: float, rule: str) -> None:
    _, arrays = read_bundle(shipped_folder() / "rtx4090")
    assert array_fault(arrays) is None
    changed = arrays[name].copy()
    changed.flat[0] = value
    assert array_fault(arrays | {name: changed}) == f"{name}: {rule}"


def test_a_bundle_without_a_hash_is_sealed_by_the_tool(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (copy / "bundle.json").read_text()
    old = json.loads(whole) | {"schema_version": 1}
    del old["facts_sha256"]
    (copy / "bundle.json").write_text(json.dumps(old))
    with pytest.raises(InputError, match="earlier release, without a hash"):
        read_bundle(copy)
    arrays = (copy / "arrays.npz").read_bytes()
    (copy / "arrays.npz").write_bytes(arrays[:-1])
    assert seal_bundles([str(copy)]) == 2
    assert "do not match the hash" in capsys.readouterr().err
    assert json.loads((copy / "bundle.json").read_text()) == old
    (copy / "arrays.npz").write_bytes(arrays)
    assert seal_bundles([str(copy), str(copy)]) == 0
    assert (copy / "bundle.json").read_text() == whole


def test_damaged_bundles_are_refused(copy: Path) -> None:
    acc = parse_hardware("rtx4090").accelerator
    load_bundle(acc, copy)
    arrays = copy / "arrays.npz"
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="hash"):
        load_bundle(acc, copy)
    arrays.unlink()
    with pytest.raises(InputError, match="lacks its arrays"):
        load_bundle(acc, copy)
    arrays.write_bytes(whole)
    text = (copy / "bundle.json").read_text()
    (copy / "bundle.json").write_text(text[:200])
    with pytest.raises(InputError, match="not valid"):
        load_bundle(acc, copy)
    document = json.loads(text)
    document["motor"] = document.pop("engine")
    (copy / "bundle.json").write_text(sealed(document))
    with pytest.raises(InputError, match="motor"):
        load_bundle(acc, copy)


def test_a_part_that_is_missing_is_named(copy: Path) -> None:
    facts = json.loads((copy / "bundle.json").read_text())
    del facts["families"]["gemm"]["facts"]["floors_s"]
    (copy / "bundle.json").write_text(sealed(facts))
    with pytest.raises(InputError, match="lacks a part of gemm"):
        load_bundle(parse_hardware("rtx4090").accelerator, copy)


def test_wrong_hardware_and_missing_folder_are_refused(copy: Path) -> None:
    with pytest.raises(InputError, match="other hardware"):
        load_bundle(parse_hardware("h100").accelerator, copy)
    with pytest.raises(InputError, match="no calibration bundle"):
        load_bundle(parse_hardware("h100").accelerator, copy / "nowhere")


def test_the_users_own_calibration_comes_first(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = json.loads((copy / "bundle.json").read_text())
    facts["engine_version"] = "9.9"
    (copy / "bundle.json").write_text(sealed(facts))
    monkeypatch.setattr("calibration.bundles.bundle.user_folder", lambda: copy.parent)
    assert load_bundle(parse_hardware("rtx4090").accelerator).name.endswith("9.9")


@pytest.mark.parametrize("hardware", sorted(aiter.GPU_OF))
def test_what_only_a_tuner_timed_is_said_in_one_line(hardware: str) -> None:
    bundle = load_bundle(parse_hardware(hardware).accelerator, engine=load_engine("vllm"))
    assert set(bundle.models) == {"gemm", "moe"}
    assert any("those of aiter" in line for line in bundle.notices)
    op = DecodeAttention(np.array(8.0), np.array(8e3), np.array(1e3), 32, 8, 128, "bf16")
    lines = bundle.notices_for([op, Collective("all_reduce", 1e6, 8), Gemm(8.0, 4096.0, 4096.0, "bf16")])
    assert [line for line in lines if "decode_attention" in line] == [
        f"not measured on {hardware}, roofline estimates instead: collective, decode_attention"
    ]
    assert float(bundle.cost(op).origin) == 2.0


def test_a_narrower_table_never_stands_in_for_a_wider_format() -> None:
    bundle = load_bundle(parse_hardware("mi300x").accelerator)
    op = Gemm(16.0, 8192.0, 8192.0, "bf16")
    assert float(bundle.cost(op).seconds) == pytest.approx(
        float(UncalibratedModel("gemm").cost(op, bundle.accelerator)[0])
    )
    assert "gemm in bf16: not measured, roofline estimate" in bundle.notices_for([op])
    assert "gemm in fp8: not measured, fp8_block utilisation against the fp8 roofline" in bundle.notices_for(
        [Gemm(16.0, 8192.0, 8192.0, "fp8")]
    )
