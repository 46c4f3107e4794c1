"""Operator tables of engine releases: which of them price an engine, and what is lent where a release was not timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.bundles.bundle import load_bundle, shipped_folder
from calibration.bundles.files import Release, read_bundle
from calibration.bundles.releases import by_distance, nearest_release, releases_in
from calibration.operators.operators import Collective, Gemm, GroupedGemm, MlaModule
from calibration.operators.roofline import padding_s
from catalogs.engines.files import load_engine
from catalogs.hardware.catalog import parse_hardware

SHIPPED = [
    (folder.name, release)
    for folder in sorted(shipped_folder().iterdir())
    for release in (releases_in(folder) if folder.is_dir() else ())
]


@pytest.fixture(autouse=True)
def without_user_bundles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("calibration.bundles.bundle.user_folder", lambda: tmp_path)


def test_the_nearest_version_of_the_same_engine_counts_and_the_older_of_two() -> None:
    known = [Release("vllm", "0.14.0"), Release("vllm", "0.18.0"), Release("sglang", "0.5.14")]
    for version, nearest in (
        ("0.1", "0.14.0"),
        ("0.15", "0.14.0"),
        ("0.16", "0.14.0"),
        ("0.17", "0.18.0"),
        ("0.33", "0.18.0"),
    ):
        assert nearest_release(known, Release("vllm", version)) == Release("vllm", nearest)
    assert nearest_release(known, Release("sglang", "0.4")) == Release("sglang", "0.5.14")
    assert nearest_release(known, Release("trtllm", "1.2")) is None


def test_releases_of_one_engine_are_ordered_by_their_distance_and_the_older_comes_first() -> None:
    known = [Release("trtllm", v) for v in ("1.3.0", "1.0.0", "1.2.0")] + [Release("vllm", "1.1.0")]
    assert [r.version for r in by_distance(known, Release("trtllm", "1.1"))] == ["1.0.0", "1.2.0", "1.3.0"]
    assert [r.version for r in by_distance(known, Release("trtllm", "1.2"))] == ["1.2.0", "1.3.0", "1.0.0"]


@pytest.mark.parametrize(("hardware", "release"), SHIPPED, ids=lambda x: str(x))
def test_a_shipped_release_is_what_its_folder_says_and_has_held_out_errors(hardware: str, release: Release) -> None:
    facts, _ = read_bundle(releases_in(shipped_folder() / hardware)[release])
    assert (facts.hardware, facts.engine, facts.engine_version) == (hardware, release.engine, release.version)
    assert all(record.held_out for record in facts.families.values())
    assert any(f" {release.engine} {release.version}" in source.name for source in facts.sources)


def test_releases_of_other_engines_are_shipped() -> None:
    assert {("h100", "sglang"), ("h100", "trtllm"), ("b200", "sglang"), ("b200", "trtllm")} <= {
        (hardware, release.engine) for hardware, release in SHIPPED
    }


@pytest.mark.parametrize(("hardware", "engine"), [("h100", "sglang"), ("h100", "trtllm"), ("h200", "trtllm")])
def test_an_engine_is_priced_by_its_own_tables(hardware: str, engine: str) -> None:
    unit = parse_hardware(hardware).accelerator
    own, other = load_bundle(unit, engine=load_engine(engine)), load_bundle(unit, engine=load_engine("vllm"))
    assert own.provenance["engine"] == engine
    assert other.name == load_bundle(unit).name
    op = Collective("all_reduce", 64e3, 4, graph=True)
    assert float(own.cost(op).seconds) != float(other.cost(op).seconds)
    assert own.shipped


def test_experts_of_an_older_vllm_ran_other_kernels_and_nothing_else_changes() -> None:
    """On B200 Triton's kernel for block-scaled experts takes about twice as long as FlashInfer's at 512 tokens."""
    unit = parse_hardware("b200").accelerator
    old, new = (load_bundle(unit, engine=load_engine(engine)) for engine in ("vllm-0.11", "vllm"))
    experts = GroupedGemm(512.0, 4096, 1536, 128, 8, 2, "fp8_block")
    assert 1.5 < float(old.cost(experts).seconds) / float(new.cost(experts).seconds) < 2.5
    for op in (Gemm(64.0, 8192.0, 8192.0, "fp8"), Collective("all_reduce", 64e3, 4, graph=True)):
        assert float(old.cost(op).seconds) == float(new.cost(op).seconds)
    mxfp4 = GroupedGemm(64.0, 2880, 2880, 128, 4, 1, "mxfp4")
    assert float(old.cost(mxfp4).seconds) == float(new.cost(mxfp4).seconds)
    assert (old.name, old.lent, new.lent) == (new.name, {"moe": "vllm 0.19.0"}, {})
    assert old.notices_for([experts]) == ["moe: the operator times of vllm 0.19.0, whose kernels the engine runs"]
    assert old.notices_for([Gemm(64.0, 8192.0, 8192.0, "fp8")]) == []
    assert load_bundle(unit, engine=load_engine("vllm-0.15")).lent == {}
    assert load_bundle(parse_hardware("l40s").accelerator, engine=load_engine("vllm-0.11")).lent == {}


def test_experts_in_padded_blocks_take_the_weights_of_the_newest_kernel_and_the_padding() -> None:
    """vLLM 0.11 runs DeepGEMM for block-scaled experts; no table has it, and Triton's is another kernel."""
    unit = parse_hardware("b200").accelerator
    old, new = (load_bundle(unit, engine=load_engine(engine)) for engine in ("vllm-0.11", "vllm"))
    tokens = np.array([8.0, 64.0, 512.0])
    plain = GroupedGemm(tokens, 4096, 1536, 128, 8, 2, "fp8_block")
    padded = replace(plain, block_rows=128)
    want = new.cost(plain).seconds + padding_s(padded, unit)
    assert old.cost(padded).seconds == pytest.approx(want)
    assert float(old.cost(plain).seconds[-1]) != pytest.approx(float(new.cost(plain).seconds[-1]))
    (said,) = old.notices_for([padded])  # no release is named whose kernels the engine would run
    assert "rows of padded blocks" in said
    assert not any("padded" in n for n in old.notices_for([plain]))


def test_cut_experts_run_the_kernel_that_another_engine_times() -> None:
    """On Hopper vLLM 0.15 ran FlashInfer's CUTLASS kernel, which TensorRT-LLM's tables time; 0.17 runs Triton's."""
    unit = parse_hardware("h200").accelerator
    own, newer, lender = (load_bundle(unit, engine=load_engine(e)) for e in ("vllm-0.15", "vllm", "trtllm"))
    tokens = np.array([1.0, 16.0, 64.0, 2048.0])
    cut, whole = (GroupedGemm(tokens, 3072, 1536 // s, 256, 8, r, "fp8_block") for s, r in ((4, 1), (1, 4)))
    assert own.cost(cut).seconds == pytest.approx(lender.cost(cut).seconds)
    assert (own.cost(cut).seconds > 1.1 * newer.cost(cut).seconds)[:2].all()
    unknown = replace(cut, hidden_size=2560)  # an architecture that no table has
    assert (own.cost(unknown).seconds != newer.cost(unknown).seconds).all()
    bf16 = replace(cut, dtype="bf16")
    for op in (whole, bf16, Gemm(tokens, 8192.0, 8192.0, "fp8")):
        assert own.cost(op).seconds == pytest.approx(newer.cost(op).seconds)
    assert own.notices_for([cut])[0].endswith("whose kernels the engine runs")
    assert own.experts_are_chosen
    b200 = parse_hardware("b200").accelerator
    assert load_bundle(b200, engine=load_engine("vllm-0.15")).lent == {}


def test_whole_experts_of_both_engines_take_about_the_same_time_in_one_kernel() -> None:
    """The evidence for the loan: both time CUTLASS for whole experts on Hopper, and agree within a tenth."""
    for hardware in ("h100", "h200"):
        unit = parse_hardware(hardware).accelerator
        vllm, trtllm = (load_bundle(unit, engine=load_engine(e)) for e in ("vllm", "trtllm"))
        tokens = np.array([1.0, 8.0, 64.0, 512.0, 4096.0])
        for hidden, width, n_experts in ((3072, 1536, 256), (4096, 1536, 128)):
            op = GroupedGemm(tokens, hidden, width, n_experts, 8, 4, "fp8_block")
            assert vllm.cost(op).seconds == pytest.approx(trtllm.cost(op).seconds, rel=0.15)


def mla_prompt(tokens: float) -> MlaModule:
    """A prompt of the block of DeepSeek-V3 on one of eight ranks."""
    shape = {"q_lora_rank": 1536, "kv_lora_rank": 512, "nope_head_dim": 128, "rope_head_dim": 64, "v_head_dim": 128}
    sizes = {"n_heads": 16, "hidden_size": 7168, **shape}
    return MlaModule("prefill", 1.0, tokens, tokens**2 / 2.0, 0.0, **sizes, dtype="fp8_block", kv_dtype="fp8")


def test_tensorrt_llm_up_to_1_2_quantised_the_inputs_of_block_scaled_products_slowly_on_blackwell() -> None:
    """Its own release has these products and blocks; the newer release of the same engine lends all that it timed."""
    unit = parse_hardware("b200").accelerator
    old, new = (load_bundle(unit, engine=load_engine(e)) for e in ("trtllm-1.2", "trtllm"))
    assert [b.provenance["engine_version"] for b in (old, new)] == ["1.2.0rc5", "1.3.0rc20"]
    for rows, least in ((8.0, 1.1), (8192.0, 2.0)):
        op = Gemm(rows, 4096.0, 7168.0, "fp8_block")
        assert float(old.cost(op).seconds) > least * float(new.cost(op).seconds)
    more_s = [float(old.cost(mla_prompt(n)).seconds - new.cost(mla_prompt(n)).seconds) for n in (1024.0, 8192.0)]
    assert 0.0 < 4.0 * more_s[0] < more_s[1]
    for op in (Gemm(8192.0, 4096.0, 7168.0, "bf16"), GroupedGemm(64.0, 7168, 2048, 256, 8, 8, "fp8_block")):
        assert float(old.cost(op).seconds) == float(new.cost(op).seconds)
    assert old.lent["moe"] == "trtllm 1.3.0rc20"
    assert old.lent["elementwise"] == new.lent["elementwise"]
    assert old.relative_error("moe") == new.relative_error("moe")
    assert "gemm" not in old.lent


def test_on_hopper_both_versions_of_tensorrt_llm_have_the_same_tables() -> None:
    unit = parse_hardware("h200").accelerator
    assert len({load_bundle(unit, engine=load_engine(e)).name for e in ("trtllm-1.2", "trtllm")}) == 1


def test_what_a_release_lacks_is_lent_and_said() -> None:
    """TensorRT-LLM's nvfp4 products are not used, and no engine's release has NCCL's all-gather."""
    unit = parse_hardware("b200").accelerator
    own, lender = load_bundle(unit, engine=load_engine("trtllm")), load_bundle(unit)
    for op in (Gemm(64.0, 8192.0, 8192.0, "fp4"), Collective("all_gather", 1e6, 8)):
        assert float(own.cost(op).seconds) == float(lender.cost(op).seconds)
    assert own.lent["elementwise"] == f"vllm {lender.provenance['engine_version']}"
    assert own.relative_error("elementwise") == lender.relative_error("elementwise")
    assert own.relative_error("gemm") != lender.relative_error("gemm")


def test_an_engine_without_tables_on_this_hardware_borrows_with_a_notice() -> None:
    unit = parse_hardware("rtxpro6000").accelerator
    found = load_bundle(unit, engine=load_engine("sglang"))
    assert found.name == load_bundle(unit).name
    assert any("no public operator tables of sglang on rtxpro6000" in n for n in found.notices)


def test_a_bundle_that_is_named_is_used_for_any_engine() -> None:
    unit = parse_hardware("h100").accelerator
    named = load_bundle(unit, shipped_folder() / "h100", load_engine("trtllm"))
    assert named.provenance["engine"] == "vllm"


def test_a_transferred_release_keeps_its_notice_and_its_origin() -> None:
    card = load_bundle(parse_hardware("h100-pcie").accelerator, engine=load_engine("trtllm"))
    assert card.transferred
    assert card.provenance["engine"] == "trtllm"
    assert any("h100 applied to the roofline of h100-pcie" in n for n in card.notices)


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_more_tokens_never_take_less_time_with_lent_curves(engine: str) -> None:
    bundle = load_bundle(parse_hardware("h200").accelerator, engine=load_engine(engine))
    tokens = np.array([1.0, 4.0, 32.0, 256.0, 4096.0, 20000.0])
    for dtype in ("bf16", "fp8", "fp8_block", "mxfp4", "int4"):
        seconds = bundle.cost(GroupedGemm(tokens, 4096, 1536, 128, 8, 1, dtype)).seconds
        assert np.all(np.diff(seconds) >= 0.0)
