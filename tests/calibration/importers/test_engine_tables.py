"""Tables of several engines: one kernel for a shape, scales taken off, and MLA blocks composed from their parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.bundles.files import Release
from calibration.families.gemm import GemmModel
from calibration.families.mla import REFERENCE_SHAPE
from calibration.importers.aiconfigurator import LEAST_SHARE, ONLY_PRODUCTS, as_run, read_family, with_static_scales
from calibration.importers.mla_blocks import SMALL_KERNEL_S, SMALL_KERNELS, decode_blocks
from calibration.importers.public import OLDER_EXPERTS, import_releases
from calibration.operators.operators import Gemm
from calibration.operators.roofline import roofline_s
from catalogs.hardware.catalog import parse_hardware

UNIT = parse_hardware("h100").accelerator


def attention(kernel: str, attn: str, seconds: float, batch: int = 1, **more: object) -> dict[str, object]:
    shape = {"batch_size": batch, "isl": 128, "num_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
    return shape | {"kernel_source": kernel, "attn_dtype": attn, "kv_cache_dtype": "fp8", "seconds": seconds} | more


def test_of_several_kernels_the_one_timed_on_most_shapes_counts() -> None:
    rows = pd.DataFrame([attention("rare", "fp8", 1.0), *(attention("usual", "fp8", 2.0, b) for b in (1, 2, 4))])
    assert list(as_run(rows).seconds) == [2.0, 2.0, 2.0]


def test_arithmetic_in_the_dtype_of_the_cache_counts_where_it_was_timed() -> None:
    rows = pd.DataFrame(
        [attention("k", "bfloat16", 2.0), attention("k", "fp8", 1.0), attention("k", "bfloat16", 3.0, 2)]
    )
    assert sorted(as_run(rows).seconds) == [1.0, 3.0]


@pytest.mark.parametrize(
    ("experts", "first"), [((4096, 1536, 8, 128), 1.0), ((7168, 2048, 8, 256), 1.0), ((2048, 768, 8, 128), 3.0)]
)
def test_low_latency_experts_count_for_the_models_whose_recipes_select_them(
    experts: tuple[int, int, int, int], first: float
) -> None:
    sizes = dict(zip(("hidden_size", "inter_size", "topk", "num_experts"), experts, strict=True))
    shape = sizes | {"moe_dtype": "nvfp4", "distribution": "balanced"}
    rows = pd.DataFrame(
        [shape | {"kernel_source": k, "num_tokens": t, "seconds": s} for k, t, s in
         (("cutlass", 1, 3.0), ("cutlass", 2, 4.0), ("cutlass", 4, 5.0), ("moe_min_latency", 1, 1.0))]
    )  # fmt: skip
    assert dict(zip(as_run(rows).num_tokens, as_run(rows).seconds, strict=True)) == {1: first, 2: 4.0, 4: 5.0}


def test_fp8_experts_have_the_default_kernel_except_where_recipes_select_another(tmp_path: Path) -> None:
    """Whole experts of DeepSeek's size run in DeepGEMM by its recipe; all other block-scaled ones in the default."""
    deepseek, other, deepgemm_alone = (7168, 2048, 8, 256), (2048, 768, 8, 128), (3072, 1536, 8, 256)
    for engine, kernel, ms in (("trtllm", "deepgemm", 1.0), ("sglang", "sglang_flashinfer_trtllm_moe", 2.0)):
        timed = (deepseek, other, *((deepgemm_alone,) if engine == "trtllm" else ()))
        shapes = [
            {"num_tokens": t, "moe_tp_size": 8 // ep, "moe_ep_size": ep, "moe_dtype": dtype, "distribution": "balanced"}
            | dict(zip(("hidden_size", "inter_size", "topk", "num_experts"), sizes, strict=True))
            for t in (1, 64, 512) for ep in (1, 8) for dtype in ("fp8_block", "nvfp4") for sizes in timed
        ]  # fmt: skip
        file = tmp_path / f"b200_sxm/moe/{engine}/1.0/moe_perf.parquet"
        file.parent.mkdir(parents=True)
        pd.DataFrame(shapes).assign(kernel_source=kernel, latency=ms).to_parquet(file)
    rows = read_family(tmp_path, "b200_sxm", "moe", "trtllm")
    assert rows is not None
    fp8 = rows[rows.dtype == "fp8_block"].drop_duplicates(["hidden_size", "expert_ranks"])
    found = {(h, ranks): s for h, ranks, s in zip(fp8.hidden_size, fp8.expert_ranks, fp8.seconds, strict=True)}
    assert found == {(7168, 1): 2e-3, (7168, 8): 1e-3, (2048, 1): 2e-3, (2048, 8): 2e-3}
    assert (rows.seconds[rows.dtype == "fp4"] == 1e-3).all()


def experts_table(folder: Path, engine: str, kernel: str, ms_by_tokens: dict[int, float], dtype: str = "fp8") -> None:
    """Write a table of one architecture of experts on H100."""
    file = folder / f"h100_sxm/moe/{engine}/1.0/moe_perf.parquet"
    file.parent.mkdir(parents=True)
    sizes = {"hidden_size": 4096, "inter_size": 1536, "topk": 8, "num_experts": 128, "moe_tp_size": 8, "moe_ep_size": 1}
    rows = [{"num_tokens": t, "latency": ms, "moe_dtype": dtype} | sizes for t, ms in ms_by_tokens.items()]
    pd.DataFrame(rows).assign(kernel_source=kernel, distribution="power_law_1.01").to_parquet(file)


def test_an_untuned_kernel_has_the_times_of_the_engine_that_tuned_it(tmp_path: Path) -> None:
    """Only where that engine has a table, and only rows of that kernel."""
    for name, own, lender, expected in (
        ("lent", "vllm_flashinfer_cutlass_flashinferexperts", True, 1e-3),
        ("alone", "vllm_flashinfer_cutlass_flashinferexperts", False, 4e-3),
        ("another", "vllm_fused_moe", True, 4e-3),
    ):
        folder = tmp_path / name
        experts_table(folder, "vllm", own, {1: 4.0, 64: 4.0})
        if lender:
            experts_table(folder, "trtllm", "moe_torch_flow_cutlass", {1: 1.0, 64: 1.0})
        rows = read_family(folder, "h100_sxm", "moe", "vllm")
        assert rows is not None
        assert (rows.seconds == expected).all(), name


@pytest.mark.parametrize(("engine", "kept"), [("trtllm", [1, 8, 512]), ("vllm", [1, 8, 64, 128, 512])])
def test_mistuned_tactics_are_left_out_where_an_engine_tunes(tmp_path: Path, engine: str, kept: list[int]) -> None:
    """With uneven loads, 64 and 128 tokens take four times as long as 512; with even ones no rows are out of line."""
    usual = {1: 0.1, 8: 0.25, 64: 0.27, 128: 0.28, 512: 0.3}
    experts_table(tmp_path, engine, "some_kernel", usual, "bfloat16")
    file = next(tmp_path.glob("*/moe/*/1.0/moe_perf.parquet"))
    mild = pd.read_parquet(file)
    slow = mild.assign(latency=mild.latency.where(~mild.num_tokens.isin([64, 128]), 1.2))
    rows = [mild.assign(distribution="balanced"), slow, slow.assign(distribution="power_law_1.2")]
    pd.concat(rows, ignore_index=True).to_parquet(file)
    found = read_family(tmp_path, "h100_sxm", "moe", engine)
    assert found is not None
    assert sorted(found.tokens) == kept


def test_scales_come_off_per_tensor_fp8_alone_and_never_take_all_of_it() -> None:
    rows = pd.DataFrame(
        {"m": 1.0, "n": 64.0, "k": 64.0, "dtype": ["fp8", "fp8_block", "fp8"], "seconds": [10.0, 10.0, 3.0]}
    )
    scales = pd.DataFrame({"m": [1], "k": [64], "seconds": [7.0]})
    assert list(with_static_scales(rows, scales).seconds) == pytest.approx([3.0, 10.0, 3.0 * LEAST_SHARE])
    assert with_static_scales(rows, None) is rows


def test_of_older_releases_of_vllm_only_the_experts_are_read(tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "inter_size": 64, "num_experts": 8, "topk": 2, "moe_tp_size": 1, "moe_ep_size": 1}
    for version in ("0.14.0", OLDER_EXPERTS, "0.24.0"):
        for folder, name, dtypes in (
            ("gemm", "gemm_perf", ("bfloat16",)),
            ("moe", "moe_perf", ("bfloat16", "fp8_block", "w4a16_mxfp4", "int4_wo")),
        ):
            file = tmp_path / f"aiconfigurator/h100_sxm/{folder}/vllm/{version}/{name}.parquet"
            file.parent.mkdir(parents=True)
            rows = pd.DataFrame({"gemm_dtype": dtypes, "moe_dtype": dtypes, "latency": 1.0, "num_tokens": 4})
            rows.assign(m=8, n=8, k=8, distribution="balanced", kernel_source="x", **shape).to_parquet(file)
    ((release, tables),) = import_releases(tmp_path, "h100")
    assert (release, list(tables)) == (Release("vllm", OLDER_EXPERTS), ["moe"])
    assert sorted(tables["moe"].dtype) == ["bf16", "fp8_block"]


@pytest.mark.parametrize(("system", "hardware", "read"), [("b200_sxm", "b200", True), ("h100_sxm", "h100", False)])
def test_of_an_older_release_of_tensorrt_llm_only_the_products_that_changed_are_read(
    tmp_path: Path, system: str, hardware: str, read: bool
) -> None:
    (older,) = ONLY_PRODUCTS["trtllm"]
    m, n, k = (a.ravel() for a in np.meshgrid([1, 64, 1024], [512, 2048, 4096], [512, 2048, 4096]))
    for version, latency in ((older, 0.3), ("1.3.0", 0.1)):
        rows = pd.DataFrame({"m": m, "n": n, "k": k, "latency": latency, "kernel_source": "x"})
        file = tmp_path / f"aiconfigurator/{system}/gemm/trtllm/{version}/gemm_perf.parquet"
        file.parent.mkdir(parents=True)
        pd.concat([rows.assign(gemm_dtype=d) for d in ("fp8_block", "bfloat16")]).to_parquet(file)
    shape = {"num_heads": 16, "mla_dtype": "bfloat16", "kv_cache_dtype": "fp8", "gemm_type": "fp8_block"}
    for name, isl, step in (("mla_context_module_perf", 64, 0), ("mla_generation_module_perf", 1, 64)):
        file = tmp_path / f"aiconfigurator/{system}/mla/trtllm/1.3.0/{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = pd.DataFrame({"batch_size": [1, 4], "isl": isl, "step": step, "latency": 2.0, "kernel_source": "x"})
        rows.assign(**shape).to_parquet(file)
    found = dict(import_releases(tmp_path, hardware))
    assert set(found) == {Release("trtllm", "1.3.0")} | ({Release("trtllm", older)} if read else set())
    assert set(found[Release("trtllm", "1.3.0")]["gemm"].dtype) == {"bf16", "fp8_block"}
    if read:
        tables = found[Release("trtllm", older)]
        assert set(tables["gemm"].dtype) == {"fp8_block"}
        added = tables["mla"].groupby("stage").seconds.median() - 2e-3
        assert added["prefill"] == pytest.approx(4 * 0.2e-3, rel=0.02)
        assert added["decode"] == pytest.approx(3 * 0.2e-3, rel=0.02)


def test_an_mla_block_is_the_sum_of_its_parts() -> None:
    m, n, k = (a.ravel() for a in np.meshgrid([1.0, 8.0, 64.0], [1024.0, 4096.0, 8192.0], [1024.0, 4096.0, 8192.0]))
    seconds = 2.0 * roofline_s(Gemm(m, n, k, "bf16"), UNIT)
    products = pd.DataFrame({"m": m, "n": n, "k": k, "dtype": "bf16", "seconds": seconds, "source": "x"})
    kernel = {"num_heads": 16, "batch_size": 8, "step": 1000, "kv_cache_dtype": "bf16", "seconds": 30e-6}
    both = [
        {"op_name": o, "num_heads": 16, "num_tokens": t, "seconds": 1e-6 * t}
        for o in ("mla_gen_pre", "mla_gen_post")
        for t in (4, 16)
    ]
    found = decode_blocks(
        pd.DataFrame([kernel | {"source": "x", "kernel_source": "y"}]), pd.DataFrame(both), products, UNIT
    )
    model, s = GemmModel.fit(products, UNIT), REFERENCE_SHAPE
    shapes = ((1536 + 512 + 64, 7168), (16 * 192, 1536), (7168, 16 * 128))
    projections = sum(float(model.cost(Gemm(8.0, n, k, "bf16"), UNIT)[0]) for n, k in shapes)
    (row,) = found.to_dict("records")
    assert row["seconds"] == pytest.approx(30e-6 + 2 * 8e-6 + SMALL_KERNELS * SMALL_KERNEL_S + projections)
    assert (row["stage"], row["n_heads"], row["context_tokens"], row["hidden_size"]) == (
        "decode",
        16,
        8000.0,
        s["hidden_size"],
    )
