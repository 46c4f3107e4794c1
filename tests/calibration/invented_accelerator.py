"""An invented accelerator whose kernels obey a known law, and rows of it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from calibration.operators.operators import DecodeAttention, Gemm, PrefillAttention
from calibration.operators.roofline import roofline_s
from catalogs.hardware.specs import Accelerator

EFFICIENCY = 0.8
LAUNCH_S = 3e-6
SOURCE = "invented@0 toy vllm 1.2.3"


def law(bound_s: np.ndarray) -> np.ndarray:
    """Seconds of every kernel: the roofline at one efficiency plus a launch."""
    return bound_s / EFFICIENCY + LAUNCH_S


def gemm_rows(acc: Accelerator, dtype: str = "bf16") -> pd.DataFrame:
    sizes = [256.0, 1024.0, 4096.0, 16384.0]
    m, n, k = (a.ravel() for a in np.meshgrid([1.0, 16.0, 64.0, 256.0, 1024.0, 4096.0], sizes, sizes, indexing="ij"))
    seconds = law(roofline_s(Gemm(m, n, k, dtype), acc))
    return pd.DataFrame({"m": m, "n": n, "k": k, "dtype": dtype, "seconds": seconds, "source": SOURCE})


def _heads(table: pd.DataFrame, heads: int, kv_heads: int) -> pd.DataFrame:
    fixed = {"n_heads": heads, "n_kv_heads": kv_heads, "head_dim": 128, "kv_dtype": "bf16", "window_tokens": 0}
    return table.assign(**fixed, source=SOURCE)


def decode_rows(acc: Accelerator) -> pd.DataFrame:
    parts = []
    s, c = (a.ravel() for a in np.meshgrid(2.0 ** np.arange(9), 2.0 ** np.arange(4, 14), indexing="ij"))
    for heads, kv in ((8, 8), (32, 8), (8, 2), (8, 1), (4, 4), (16, 4)):
        op = DecodeAttention(s, s * c, c, heads, kv, 128, "bf16")
        rows = pd.DataFrame({"sequences": s, "context_tokens": s * c, "max_context_tokens": c})
        parts.append(_heads(rows.assign(seconds=law(roofline_s(op, acc))), heads, kv))
    return pd.concat(parts, ignore_index=True)


def prefill_rows(acc: Accelerator) -> pd.DataFrame:
    parts = []
    b, q = (a.ravel() for a in np.meshgrid([1.0, 4.0, 16.0], 2.0 ** np.arange(4, 14), indexing="ij"))
    for heads, kv in ((8, 8), (32, 8), (8, 2), (8, 1), (4, 4), (16, 4)):
        op = PrefillAttention(b, b * q, b * q * q / 2, heads, kv, 128, "bf16")
        rows = pd.DataFrame({"chunks": b, "tokens": b * q, "pairs": b * q * q / 2})
        parts.append(_heads(rows.assign(seconds=law(roofline_s(op, acc))), heads, kv))
    return pd.concat(parts, ignore_index=True)
