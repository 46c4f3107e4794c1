"""Import Vidur's A800 profile of Llama-2-7B (attention and MLP operators, times in ms).

A800 is an A100 80 GB with NVLink cut to 400 GB/s: single-GPU operators are A100's. `time_stats.X.median` is the median
in ms of CUDA-event times around an eager launch. Attention rows are FlashInfer: one prompt chunk of
`prefill_chunk_size` tokens after `kv_cache_size` cached ones, or `batch_size` decodes over `kv_cache_size` tokens each;
the KV write is timed separately (attn_kv_cache_save). mlp_up_proj is gate and up in one product. Norms, rotary and
activation are not imported: their 6 us at one token is the launch, and their kernels are older than the engine's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pandas as pd

from catalogs.errors import InputError

SOURCE: Final = "microsoft/vidur and NetX-lab/Frontier (MIT) A800 Llama-2-7b"

HARDWARE: Final = "a100-80gb"

_FOLDER: Final = Path("a800/meta-llama/Llama-2-7b-hf")


def import_profiles(tables: Path, hardware: str = HARDWARE) -> dict[str, pd.DataFrame]:
    """Return gemm, prefill and decode attention rows.

    Raises:
        InputError: The hardware is not the A100 80 GB.
    """
    if hardware != HARDWARE:
        raise InputError("Vidur's profile is for other hardware", hardware, HARDWARE)
    try:
        mlp = pd.read_csv(tables / _FOLDER / "mlp.csv")
        attention = pd.read_csv(tables / _FOLDER / "attention.csv")
    except OSError:
        raise InputError("no Vidur profile in this folder", str(tables / _FOLDER)) from None
    found = {"gemm": _gemm(mlp), **_attention(attention)}
    return {f: t[t.seconds > 0].reset_index(drop=True).assign(source=SOURCE) for f, t in found.items()}


def _gemm(mlp: pd.DataFrame) -> pd.DataFrame:
    hidden, wide = float(mlp.n_embd.iloc[0]), float(mlp.n_expanded_embd.iloc[0])
    sizes = {
        "attn_pre_proj": (3 * hidden, hidden),
        "attn_post_proj": (hidden, hidden),
        "mlp_up_proj": (2 * wide, hidden),
        "mlp_down_proj": (hidden, wide),
    }
    rows = pd.DataFrame({"m": mlp.num_tokens.astype(float), "dtype": "bf16"})
    parts = [
        rows.assign(n=n, k=k, seconds=mlp[f"time_stats.{layer}.median"] * 1e-3, kernel=layer)
        for layer, (n, k) in sizes.items()
    ]
    return pd.concat(parts, ignore_index=True)


def _attention(raw: pd.DataFrame) -> dict[str, pd.DataFrame]:
    heads = {
        "n_heads": raw.n_q_head.astype(int),
        "n_kv_heads": raw.n_kv_head.astype(int),
        "head_dim": (raw.n_embd // raw.n_q_head).astype(int),
    }
    rows = raw[[]].assign(**heads, kv_dtype="bf16", window_tokens=0, kernel="FLASHINFER")
    chunk, context, batch = (raw[c].astype(float) for c in ("prefill_chunk_size", "kv_cache_size", "batch_size"))
    pairs = batch * chunk * (context + chunk / 2.0)
    prefill = rows.assign(chunks=batch, tokens=batch * chunk, pairs=pairs)
    prefill["seconds"] = raw["time_stats.attn_prefill.median"] * 1e-3
    decode = rows.assign(sequences=batch, context_tokens=batch * context, max_context_tokens=context)
    decode["seconds"] = raw["time_stats.attn_decode.median"] * 1e-3
    return {"prefill_attention": prefill[raw.is_prefill], "decode_attention": decode[~raw.is_prefill & (context > 0)]}
