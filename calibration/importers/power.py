"""Power rows of the public operator tables: the only ones with watts are H200 under vLLM 0.22."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from catalogs.errors import InputError
from catalogs.hardware import Accelerator

if TYPE_CHECKING:
    import pandas as pd

_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0}
_DTYPE = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8"}


def read_power_rows(folder: Path, accelerator: Accelerator) -> pd.DataFrame:
    """Tidy rows (see power.fit_power) from `<folder>/{gemm,attention}/vllm/0.22.0`; rows beyond hardware peak dropped.

    Raises InputError where the tables are missing or carry no power column.
    """
    import pandas as pd

    gemm = _read(folder / "gemm/vllm/0.22.0/gemm_perf.parquet")
    decode = _read(folder / "attention/vllm/0.22.0/generation_attention_perf.parquet")
    prefill = _read(folder / "attention/vllm/0.22.0/context_attention_perf.parquet")
    parts = [_gemm(gemm), _decode(decode[decode.window_size == 0]), _prefill(prefill[prefill.window_size == 0])]
    rows = pd.concat(parts, ignore_index=True)
    peak = rows.dtype.map(lambda d: accelerator.flops_for(_DTYPE[d]))
    rows["compute_fraction"] = rows.flops / rows.seconds / peak
    rows["memory_fraction"] = rows.bytes / rows.seconds / accelerator.memory_bandwidth_bytes_per_s
    rows["group"] = rows.family.where(rows.dtype != "fp8_block", "gemm_fp8_block")
    return rows[(rows.compute_fraction <= 1.0) & (rows.memory_fraction <= 1.0) & (rows.watts > 0)]


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
