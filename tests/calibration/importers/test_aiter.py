"""AITER's tuning tables: the fastest kernels of products and experts on AMD, with what a step adds to them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from calibration.bundles.files import Release
from calibration.families.uncalibrated import DEFAULTS
from calibration.fitting.fit import release_of, sources_of
from calibration.importers import aiter
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware

GEMM = """gpu,gfx,cu,m,n,k,dtype,us,tflops,gb_s,kernel,file,suspect
mi300x (gfx942),gfx942,304,16,4096,4096,fp8 blockscale,10,0,0,,a8w8.csv,
mi300x (gfx942),gfx942,304,16,4096,4096,torch.bfloat16,20,0,0,,bf16.csv,
mi300x (gfx942),gfx942,304,16,4096,4096,torch.bfloat16,2,0,0,,bf16_tuned_batched_gemm.csv,
mi300x (gfx942),gfx942,304,32,4096,4096,torch.bfloat16,1,0,0,,bf16.csv,beats peak arithmetic
mi355x (gfx950),gfx950,256,16,4096,4096,mxfp4,5,0,0,,a4w4.csv,
"""

MOE_HEAD = "gpu,gfx,cu,tokens,hidden,inter,experts,topk,act_dtype,weight_dtype,quant,us,tflops,gb_s,file,suspect\n"


def moe_line(tokens: int, us: float, suspect: str = "", quant: str = "QuantType.per_1x128") -> str:
    fp8 = "torch.float8_e4m3fnuz"
    return f"mi300x (gfx942),,304,{tokens},4096,192,128,8,{fp8},{fp8},{quant},{us},0,0,f.csv,{suspect}\n"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    with gzip.open(tmp_path / aiter.GEMM_FILE, "wt") as file:
        file.write(GEMM)
    lines = [moe_line(t, 10.0 + t) for t in (1, 16, 256)]
    lines += [moe_line(16, 90.0), moe_line(512, 5.0, "same time at other row counts")]
    lines += [moe_line(t, 10.0, quant="QuantType.per_Token") for t in (1, 2)]
    (tmp_path / aiter.MOE_FILE).write_text(MOE_HEAD + "".join(lines))
    return tmp_path


def test_products_gain_the_kernel_that_quantises_their_input(tables: Path) -> None:
    rows = aiter.import_tables(tables, "mi300x")["gemm"]
    assert sorted(rows.dtype) == ["bf16", "fp8_block"]  # neither batched nor suspect
    by_dtype = rows.set_index("dtype").seconds
    assert by_dtype["bf16"] == pytest.approx(20e-6)
    bandwidth = parse_hardware("mi300x").accelerator.memory_bandwidth_bytes_per_s
    default = DEFAULTS["elementwise"]
    added = max(default.floor_s, 16 * 4096 * 3 / bandwidth / default.efficiency)
    assert by_dtype["fp8_block"] == pytest.approx(10e-6 + added)


def test_experts_count_once_a_shape_at_their_fastest(tables: Path) -> None:
    rows = aiter.import_tables(tables, "mi300x")["moe"]
    assert rows.tokens.tolist() == [1.0, 16.0, 256.0]  # two rows of one token count make no curve, nor do suspect ones
    assert rows.seconds.tolist() == pytest.approx([11e-6, 26e-6, 266e-6])
    assert set(rows.dtype) == {"fp8_block"}
    assert set(rows.expert_ranks) == {1}


def test_each_accelerator_has_its_own_rows_and_others_none(tables: Path) -> None:
    assert set(aiter.import_tables(tables, "mi355x")) == {"gemm"}
    assert set(aiter.import_tables(tables, "mi355x")["gemm"].dtype) == {"fp4"}
    with pytest.raises(InputError, match="mi300x"):
        aiter.import_tables(tables, "h100")


def test_the_release_of_its_rows_is_its_commit(tables: Path) -> None:
    rows = aiter.import_tables(tables, "mi300x")
    (source,) = sources_of(rows)
    assert release_of(source["name"]) == Release("aiter", aiter.COMMIT)
    assert (source["licence"], source["commit"], source["version"]) == ("MIT", aiter.COMMIT, aiter.COMMIT)
