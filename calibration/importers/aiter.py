"""Import ROCm/aiter's tuning tables: the fastest kernel of products and of experts on AMD's accelerators.

A row is the time of the best kernel in the tuner's hot loop, so it is the least that an engine needs: operands that fit
stay in the Infinity Cache between repeats, which the fit allows for (calibration/families/gemm.py), and engines that
select kernels by the same tables run the same ones. The rows of products leave out the kernel that quantises their
input, which the rows of other projects include; its roofline time is added here. The tuner draws the experts of each
token independently (op_tests/test_moe_2stage.py: top-k of random scores), which is the routing that other importers
derive (expert_routing.py). Batched products and rows that the tables mark as suspect are left out: of experts, 706 rows
repeat one time at several numbers of tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from calibration.families.grouped_gemm import Key
from calibration.families.uncalibrated import DEFAULTS
from calibration.operators.flops_and_bytes import QUANTISE_BYTES
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware

COMMIT: Final = "e404860"

#: Name of the accelerator in the tables by hardware name of the catalog.
GPU_OF: Final = {
    "mi300x": "mi300x (gfx942)",
    "mi308x": "mi308x (gfx942)",
    "mi355x": "mi355x (gfx950)",
}

GEMM_FILE, MOE_FILE = "amd_aiter_gemm_us.csv.gz", "amd_aiter_moe_us.csv"

#: Dtypes of products by the tables' names. MXFP4 times MXFP4 is the 4-bit arithmetic of these accelerators.
GEMM_DTYPE: Final = {
    "torch.bfloat16": "bf16",
    "fp8 blockscale": "fp8_block",
    "torch.float8_e4m3fn": "fp8",
    "torch.float8_e4m3fnuz": "fp8",
    "torch.int8": "int8",
    "mxfp4": "fp4",
}

_BF16, _FP8, _FP4 = "torch.bfloat16", ("torch.float8_e4m3fn", "torch.float8_e4m3fnuz"), "torch.float4_e2m1fn_x2"

#: Dtypes of experts by (activations, weights, scales).
MOE_DTYPE: Final = {
    (_BF16, _BF16, "QuantType.No"): "bf16",
    **{(fp8, fp8, "QuantType.per_1x128"): "fp8_block" for fp8 in _FP8},
    **{(fp8, fp8, scales): "fp8" for fp8 in _FP8 for scales in ("QuantType.per_Token", "QuantType.per_Tensor")},
    **{(fp8, _FP4, "QuantType.per_1x32"): "mxfp4_mxfp8" for fp8 in _FP8},
    (_BF16, _FP4, "QuantType.per_1x32"): "mxfp4",
    (_FP4, _FP4, "QuantType.per_1x32"): "fp4",
    (_BF16, "torch.int4", "QuantType.per_1x32"): "int4",
}

#: Rows of products are kept at powers of two and halfway between them, up to MOST_ROWS: the tables have up to 6,900
#: numbers of rows for a shape, most of them next to each other, and the model has a node for each.
MOST_ROWS: Final = 32768

_NODES: Final = frozenset(n for i in range(16) for n in (2**i, 3 * 2 ** max(i - 1, 0)) if n <= MOST_ROWS)

#: Fewest numbers of tokens of experts that make a curve. A judgement: two points are a line.
FEWEST_TOKENS: Final = 3


def import_tables(tables: Path, hardware: str) -> dict[str, pd.DataFrame]:
    """Return the rows of products and experts of one accelerator by family.

    Raises:
        InputError: The hardware was not measured.
    """
    if hardware not in GPU_OF:
        raise InputError("no tuning tables of AITER for this hardware", hardware, ", ".join(GPU_OF))
    found = {"gemm": _gemm(tables / GEMM_FILE, hardware), "moe": _moe(tables / MOE_FILE, hardware)}
    return {family: rows for family, rows in found.items() if len(rows)}


def _read(file: Path, hardware: str) -> pd.DataFrame:
    """Return the rows of one accelerator that are not suspect, with the columns seconds, source and kernel."""
    raw = pd.read_csv(file, dtype={"suspect": str, "kernel": str})
    raw = raw[(raw.gpu == GPU_OF[hardware]) & raw.suspect.isna() & (raw.us > 0)].reset_index(drop=True)
    return raw.assign(seconds=raw.us * 1e-6, source=f"aiter@{COMMIT} {GPU_OF[hardware]}", kernel="aiter")


def _gemm(file: Path, hardware: str) -> pd.DataFrame:
    raw = _read(file, hardware)
    kept = raw.dtype.isin(list(GEMM_DTYPE)) & ~raw.file.str.contains("batched") & raw.m.isin(_NODES)
    raw = raw[kept].reset_index(drop=True)
    rows = raw[["seconds", "source", "kernel"]].join(raw[["m", "n", "k"]].astype(float))
    rows = rows.assign(dtype=raw.dtype.map(GEMM_DTYPE))
    default, bandwidth = DEFAULTS["elementwise"], parse_hardware(hardware).accelerator.memory_bandwidth_bytes_per_s
    added = np.maximum(QUANTISE_BYTES * rows.m * rows.k / bandwidth / default.efficiency, default.floor_s)
    return rows.assign(seconds=rows.seconds + np.where(rows.dtype == "bf16", 0.0, added))


def _moe(file: Path, hardware: str) -> pd.DataFrame:
    raw = _read(file, hardware)
    kinds = zip(raw.act_dtype, raw.weight_dtype, raw.quant, strict=True)
    dtypes = pd.Series([MOE_DTYPE.get(kind) for kind in kinds], index=raw.index, dtype=object)
    sizes = {"hidden_size": raw.hidden, "intermediate_size": raw.inter, "n_experts": raw.experts}
    rows = raw[["seconds", "source", "kernel"]].assign(
        tokens=raw.tokens.astype(float),
        **{column: values.astype(int) for column, values in sizes.items()},
        experts_per_token=raw.topk.astype(int),
        expert_ranks=1,
        dtype=dtypes,
        distribution="expected",
    )
    rows = rows[rows.dtype.notna()]
    key = list(Key._fields)
    rows = rows.sort_values("seconds", kind="stable").drop_duplicates([*key, "tokens"])  # the engine runs the fastest
    return rows[rows.groupby(key).tokens.transform("nunique") >= FEWEST_TOKENS].sort_index().reset_index(drop=True)
