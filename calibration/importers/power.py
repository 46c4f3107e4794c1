"""Power rows of the public operator tables: the only ones with watts are H200 under vLLM 0.22."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.importers.aiconfigurator_moe import MOE_DTYPE, mla_rows
from calibration.operators.roofline import bytes_moved, compute_s, flops
from calibration.power.model import group_of
from calibration.rows.row_operators import operators_of
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


#: What a fit needs of a row.
COLUMNS = ("group", "shape", "seconds", "flops", "bytes", "compute_fraction", "memory_fraction", "watts")

_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0}

_DTYPE = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8"}


def read_power_rows(folder: Path, accelerator: Accelerator) -> pd.DataFrame:
    """Tidy rows (see power.fit_power) from `<folder>/{gemm,attention,moe,mla,quantize}/vllm/0.22.0`; rows beyond
    hardware peak dropped.

    Raises InputError where the tables are missing or carry no power column.
    """
    import pandas as pd

    gemm = _read(folder / "gemm/vllm/0.22.0/gemm_perf.parquet")
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
            "dtype": t.moe_dtype.map(MOE_DTYPE),
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
    """Rows of operators with the simulator's own count of flops and bytes, and their group."""
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
