"""Fit the shipped power model (calibration/power/model.py) on public operator tables that record watts.

The tables of vLLM 0.22 in ai-dynamo/aiconfigurator have a power column for H200 and B200. The model is fitted on H200
and agrees with the products and experts of B200 (`benchmarks/power_rows.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from calibration.importers.aiconfigurator import DTYPE, mla_rows
from calibration.operators.flops_and_bytes import bytes_moved, flops
from calibration.operators.roofline import compute_s
from calibration.power.model import (
    COLLECTIVE_BASE,
    FILE_NAME,
    FITTED,
    GROUPS,
    PowerCurve,
    PowerModel,
    capped_w,
    group_of,
)
from calibration.rows.dataset import operators_of
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator
from catalogs.io.output_files import write_json

if TYPE_CHECKING:
    import pandas as pd


SOURCE: Final = "aiconfigurator@095f58a51 h200_sxm vllm 0.22.0 (Apache-2.0)"

#: Shortest rows that the fit uses, in seconds. The collector repeats a kernel (five products at once) up to 3,000
#: times, for at most a second, and the driver reports the mean of the last second, so a short window shows the power of
#: earlier work. Products of FP8 blocks below 67 us wait for their launches. Experts count from 100 us on, which is the
#: window of products of 20 us: few longer rows move 0.5 to 2 TB/s, so they alone do not tell the base of experts from
#: their bytes.
LEAST_S: Final = dict.fromkeys(GROUPS, 333e-6) | {
    "gemm": 20e-6,
    "gemm_fp8_block": 67e-6,
    "moe": 100e-6,
    "other": 50e-6,
}

#: The quantile to fit. Earlier work mostly draws less, so three rows out of four lie below the true power.
QUANTILE: Final = 0.75

_CELL_BYTES_PER_S, _CELL_FLOPS, _LEAST_ROWS, _FOLDS = 0.25e12, 25e12, 5, 3

#: Columns of the rows that `fit_power` takes.
COLUMNS = ("group", "shape", "seconds", "flops", "bytes", "compute_fraction", "memory_fraction", "watts")

_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0}

_DTYPE = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8"}


def write_power(tables: Path, folder: Path) -> Path:
    """Fit the H200 rows in `tables`/aiconfigurator/h200_sxm, write the model to `folder` and return its file.

    Raises:
        InputError: A table is missing or has no power column.
    """
    measured = parse_hardware("h200").accelerator
    rows = read_power_rows(tables / "aiconfigurator" / "h200_sxm", measured)
    model, errors = fit_power(rows, measured)
    held_out = {
        str(row["group"]): {"n": int(row["n"]), **{k: round(float(row[k]), 4) for k in ("median_abs", "p90_abs")}}
        for row in errors.to_dict("records")
    }
    fitted = PowerModel(model.curves, {"source": SOURCE, "rows": len(rows), "held_out": held_out})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    write_json(fitted.to_json(), str(path))
    return path


def fit_power(rows: pd.DataFrame, accelerator: Accelerator) -> tuple[PowerModel, pd.DataFrame]:
    """Fit one curve per group and return the model with its errors on shapes that were left out.

    Args:
        rows: Measurements with the columns group, shape, seconds, flops, bytes, compute_fraction and watts. A row
            weighs less the more rows have the same memory traffic and arithmetic, so that no corner of the grid
        dominates. accelerator: The measured accelerator.

    Returns:
        The model, and a table with the columns group, n, median_abs, p90_abs and bias.
    """
    import pandas as pd

    curves: dict[str, PowerCurve] = {}
    errors = []
    for group in FITTED:
        part = with_cells(rows[(rows.group == group) & (rows.seconds >= LEAST_S[group])])
        curves[group] = _fit_curve(part, accelerator)
        fold = pd.util.hash_pandas_object(part["shape"], index=False) % _FOLDS
        for k in range(_FOLDS):
            curve = _fit_curve(part[fold != k], accelerator)
            errors.append(pd.DataFrame({"group": group, "error": cell_errors(curve, part[fold == k], accelerator)}))
    dense = curves["gemm"]
    streams = with_cells(rows[(rows.group == "other") & (rows.seconds >= LEAST_S["other"])])
    curves["other"] = PowerCurve(dense.base, _joules_per_byte(streams, dense.base, accelerator), 0.0)
    curves["collective"] = PowerCurve(COLLECTIVE_BASE, dense.joules_per_byte, 0.0)
    table = pd.concat(errors).groupby("group").error
    held_out = table.agg(
        n="size", median_abs=lambda e: e.abs().median(), p90_abs=lambda e: e.abs().quantile(0.9), bias="mean"
    )
    return PowerModel(curves), held_out.reset_index()


def _joules_per_byte(streams: pd.DataFrame, base: float, accelerator: Accelerator) -> float:
    """Return the joules per byte of kernels that only stream, given the `base` share of a busy device."""
    idle_w, span_w = accelerator.idle_w, accelerator.tdp_w - accelerator.idle_w
    each = (streams.watts - idle_w - span_w * base) / streams.bytes_per_s
    return round(float(each.median()) * 1e12, 2) * 1e-12


def with_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with their cell of memory traffic and arithmetic, and the number of rows in it (`crowd`)."""
    kept = rows.assign(bytes_per_s=rows.bytes / rows.seconds)
    traffic = (kept.bytes_per_s / _CELL_BYTES_PER_S).round()
    cell = traffic * 1e4 + (kept.flops / kept.seconds / _CELL_FLOPS).round()
    return kept.assign(cell=cell, crowd=cell.groupby(cell).transform("size"))


def _drawn_w(curve: PowerCurve, rows: pd.DataFrame, accelerator: Accelerator) -> FloatArray:
    demand = curve.watts(rows.compute_fraction.to_numpy(), rows.bytes_per_s.to_numpy(), accelerator)
    return np.minimum(demand, capped_w(accelerator))


def cell_errors(curve: PowerCurve, rows: pd.DataFrame, accelerator: Accelerator) -> FloatArray:
    """Return the relative error against the upper quartile of each cell with at least _LEAST_ROWS rows.

    Shape of the result: (cells,).
    """
    cells = rows.assign(drawn=_drawn_w(curve, rows, accelerator)).groupby("cell")
    full = cells.size() >= _LEAST_ROWS
    off: FloatArray = (cells.drawn.median() / cells.watts.quantile(QUANTILE) - 1.0)[full].to_numpy()
    return off


def _fit_curve(rows: pd.DataFrame, accelerator: Accelerator) -> PowerCurve:
    from scipy.optimize import least_squares

    watts, weight = rows.watts.to_numpy(), 1.0 / np.sqrt(rows.crowd.to_numpy(dtype=np.float64))

    def residual(x: FloatArray) -> FloatArray:
        off = watts - _drawn_w(PowerCurve(x[0], x[1] * 1e-12, x[2]), rows, accelerator)
        out: FloatArray = off * np.where(off > 0.0, QUANTILE, 1.0 - QUANTILE) * weight
        return out

    bounds = ([0.0, 0.0, 0.0], [1.0, 300.0, 12.0])
    typical = 10.0 * float(np.median(weight))
    found = least_squares(residual, [0.3, 70.0, 1.0], bounds=bounds, loss="soft_l1", f_scale=typical)
    base, pj_per_byte, compute = map(float, found.x)
    return PowerCurve(round(base, 4), round(pj_per_byte, 2) * 1e-12, round(compute, 4))


def read_power_rows(folder: Path, accelerator: Accelerator) -> pd.DataFrame:
    """Read rows for `fit_power` from `<folder>/{gemm,attention,moe,mla,quantize}/vllm/0.22.0`.

    Rows beyond a hardware peak are dropped.

    Raises:
        InputError: A table is missing or has no power column.
    """
    import pandas as pd

    gemm = _read(folder / "gemm/vllm/0.22.0/gemm_perf.parquet")
    gemm = gemm[gemm.gemm_dtype.isin(list(_BYTES))].reset_index(drop=True)
    decode = _read(folder / "attention/vllm/0.22.0/generation_attention_perf.parquet")
    prefill = _read(folder / "attention/vllm/0.22.0/context_attention_perf.parquet")
    plain = [_gemm(gemm), _decode(decode[decode.window_size == 0]), _prefill(prefill[prefill.window_size == 0])]
    rows = pd.concat(plain, ignore_index=True)
    peak = rows.dtype.map(lambda d: accelerator.flops_for(_DTYPE[d]))
    rows["compute_fraction"] = rows.flops / rows.seconds / peak
    rows["group"] = rows.family.where(rows.dtype != "fp8_block", "gemm_fp8_block")
    modules = [_moe(_read(folder / "moe/vllm/0.22.0/moe_perf.parquet"), accelerator)]
    for stage, name in (("prefill", "mla_context_module_perf"), ("decode", "mla_generation_module_perf")):
        modules.append(_mla(_read(folder / f"mla/vllm/0.22.0/{name}.parquet"), stage, accelerator))
    modules.append(_quantize(_read(folder / "quantize/vllm/0.22.0/scale_matrix_perf.parquet"), accelerator))
    rows = pd.concat([rows, *modules], ignore_index=True)
    rows["memory_fraction"] = rows.bytes / rows.seconds / accelerator.memory_bandwidth_bytes_per_s
    within = (rows.compute_fraction <= 1.0) & (rows.memory_fraction <= 1.0) & (rows.watts > 0)
    return rows.loc[within, list(COLUMNS)].reset_index(drop=True)


def _moe(t: pd.DataFrame, accelerator: Accelerator) -> pd.DataFrame:
    import pandas as pd

    rows = pd.DataFrame(
        {
            "seconds": t.latency / 1e3,
            "watts": t.power,
            "tokens": t.num_tokens.astype(float),
            "hidden_size": t.hidden_size.astype(int),
            "intermediate_size": (t.inter_size // t.moe_tp_size).astype(int),
            "n_experts": t.num_experts.astype(int),
            "experts_per_token": t.topk.astype(int),
            "expert_ranks": t.moe_ep_size.astype(int),
            "dtype": t.moe_dtype.map(DTYPE),
        }
    )
    shape = t.hidden_size.astype(str) + "x" + t.inter_size.astype(str) + "x" + t.num_experts.astype(str)
    return _counted("moe", rows.assign(shape=shape), accelerator)


def _mla(t: pd.DataFrame, stage: str, accelerator: Accelerator) -> pd.DataFrame:
    t = t[t.mla_dtype == "bfloat16"].reset_index(drop=True)
    rows = mla_rows(t.assign(seconds=t.latency / 1e3, source=""), stage)
    shape = t.num_heads.astype(str) + "/" + t.kv_cache_dtype + "/" + t.gemm_type + "x" + t.batch_size.astype(str)
    return _counted("mla", rows.assign(watts=t.power, shape=shape), accelerator)


def _quantize(t: pd.DataFrame, accelerator: Accelerator) -> pd.DataFrame:
    import pandas as pd

    rows = pd.DataFrame({"seconds": t.latency / 1e3, "watts": t.power, "kind": "quantize", "tokens": t.m.astype(float)})
    return _counted("elementwise", rows.assign(bytes_per_token=3.0 * t.k, shape=t.k.astype(str)), accelerator)


def _counted(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> pd.DataFrame:
    """Return the rows with the simulator's count of flops and bytes, and with their power group."""
    counts = np.zeros((3, len(rows)))
    group = np.empty(len(rows), dtype=object)
    for op, at in operators_of(family, rows):
        counts[:, at] = flops(op), bytes_moved(op, accelerator), compute_s(op, accelerator)
        group[at] = group_of(op)
    arithmetic = counts[2] / rows.seconds.to_numpy()
    return rows.assign(flops=counts[0], bytes=counts[1], compute_fraction=arithmetic, group=group)


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    if not path.is_file():
        raise InputError("power table not found", str(path))
    table = pd.read_parquet(path)
    if "power" not in table:
        raise InputError("table carries no power column", str(path))
    return table


def _gemm(t: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    m, n, k, width = t.m.astype(float), t.n.astype(float), t.k.astype(float), t.gemm_dtype.map(_BYTES)
    shape = t.n.astype(str) + "x" + t.k.astype(str)
    return pd.DataFrame(
        {
            "family": "gemm",
            "shape": shape,
            "dtype": t.gemm_dtype,
            "seconds": t.latency / 1e3,
            "flops": 2 * m * n * k,
            "bytes": (n * k + m * k) * width + 2 * m * n,
            "watts": t.power,
        }
    )


def _heads(t: pd.DataFrame) -> pd.Series:
    return t.num_heads.astype(str) + "/" + t.num_key_value_heads.astype(str) + "x" + t.head_dim.astype(str)


def _decode(t: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    tokens = t.batch_size * (t.step + 1.0)
    return pd.DataFrame(
        {
            "family": "decode_attention",
            "shape": _heads(t),
            "dtype": t.attn_dtype,
            "seconds": t.latency / 1e3,
            "flops": 4 * tokens * t.num_heads * t.head_dim,
            "bytes": 2 * tokens * t.num_key_value_heads * t.head_dim * t.kv_cache_dtype.map(_BYTES),
            "watts": t.power,
        }
    )


def _prefill(t: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    tokens = t.batch_size * t.isl.astype(float)
    return pd.DataFrame(
        {
            "family": "prefill_attention",
            "shape": _heads(t),
            "dtype": t.attn_dtype,
            "seconds": t.latency / 1e3,
            "flops": 2 * tokens * t.isl * t.num_heads * t.head_dim,
            "bytes": tokens * (t.num_heads + t.num_key_value_heads) * 2 * t.head_dim * 2,
            "watts": t.power,
        }
    )
