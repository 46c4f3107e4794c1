"""Import ai-dynamo/aiconfigurator's vLLM operator tables: `latency` is in ms, and `step` tokens are in the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from calibration.operators.operators import window_pairs
from catalogs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


COMMIT: Final = "095f58a51"

#: Folder of the tables by hardware name of the catalog.
SYSTEM_OF: Final = {
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "l40s": "l40s",
    "a100-80gb": "a100_sxm",
    "rtxpro6000": "rtx_pro_6000_server",
    "b300": "b300_sxm",
    "gb200": "gb200",
}

_GEMM_DTYPE: Final = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "fp4"}

#: Versions with attention tables that leave out the kernel that writes new keys and values to the cache. vLLM 0.14's
#: attention wrote them itself; from 0.24 on the collector calls the write and the attention in turn (H200: 2.8 us over
#: the rows of 0.22 at one sequence whatever its context, 5 ns a token of prompts with 8 heads).
WITHOUT_CACHE_WRITE: Final = ("0.22.0",)

_KV_DTYPE: Final = {"bfloat16": "bf16", "fp8": "fp8"}


def newest_version(tables: Path, system: str, folder: str, name: str, engine: str = "vllm") -> str | None:
    """Return the highest version of an engine with a table `name` under SYSTEM/FOLDER/ENGINE, or None."""
    base = tables / system / folder / engine
    versions = [p.parent.name for p in base.glob(f"*/{name}.parquet")]
    return max(versions, key=_version_key, default=None)


def _version_key(version: str) -> tuple[int, ...]:
    """Return the numbers of a version; a development build sorts below its release."""
    return tuple(int(part) if part.isdigit() else -1 for part in version.split("."))


def import_tables(tables: Path, hardware: str) -> dict[str, pd.DataFrame]:
    """Return the rows of one accelerator by family, from the newest version of each table.

    Raises:
        InputError: There are no tables of this hardware, or a table cannot be read.
    """
    if hardware not in SYSTEM_OF:
        raise InputError("no public operator tables for this hardware", hardware, ", ".join(SYSTEM_OF))
    system = SYSTEM_OF[hardware]
    readers: dict[str, tuple[str, str, Callable[[pd.DataFrame], pd.DataFrame]]] = {
        "gemm": ("gemm", "gemm_perf", _gemm),
        "prefill_attention": ("attention", "context_attention_perf", _prefill),
        "decode_attention": ("attention", "generation_attention_perf", _decode),
    }
    found: dict[str, pd.DataFrame] = {}
    for family, (folder, name, reader) in readers.items():
        version = newest_version(tables, system, folder, name)
        if version is not None:
            raw = _read(tables / system / folder / "vllm" / version / f"{name}.parquet")
            rows = reader(raw)
            rows["seconds"] = raw["latency"].to_numpy(float) * 1e-3
            rows["kernel"] = raw["kernel_source"].to_numpy()
            rows["source"] = f"aiconfigurator@{COMMIT} {system} vllm {version}"
            if family == "decode_attention":
                rows["writes_cache"] = version not in WITHOUT_CACHE_WRITE
            found[family] = rows[rows.seconds > 0].reset_index(drop=True)
    if not found:
        raise InputError("no operator tables in this folder", str(tables / system))
    return found


def _read(file: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise InputError(f"table cannot be read ({type(error).__name__})", str(file)) from None


def _gemm(raw: pd.DataFrame) -> pd.DataFrame:
    rows = raw[["m", "n", "k"]].astype(float)
    rows["dtype"] = raw["gemm_dtype"].map(_GEMM_DTYPE)
    return rows


def _heads(raw: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    window = raw["window_size"] if "window_size" in raw.columns else pd.Series(0, index=raw.index)
    return pd.DataFrame(
        {
            "n_heads": raw["num_heads"].astype(int),
            "n_kv_heads": raw["num_key_value_heads"].astype(int),
            "head_dim": raw["head_dim"].astype(int),
            "kv_dtype": raw["kv_cache_dtype"].map(_KV_DTYPE),
            "window_tokens": window.astype(int),
        }
    )


def _prefill(raw: pd.DataFrame) -> pd.DataFrame:
    rows = _heads(raw)
    q, context, chunks = (raw[c].to_numpy(float) for c in ("isl", "step", "batch_size"))
    window = rows.window_tokens.to_numpy(float)
    rows["chunks"], rows["tokens"] = chunks, chunks * q
    rows["pairs"] = chunks * window_pairs(q, context, window)
    return rows


def _decode(raw: pd.DataFrame) -> pd.DataFrame:
    rows = _heads(raw)
    sequences = raw["batch_size"].to_numpy(float)
    context = raw["step"].to_numpy(float) + 1.0
    window = rows.window_tokens.to_numpy(float)
    seen = np.where(window > 0, np.minimum(context, window), context)
    rows["sequences"], rows["context_tokens"], rows["max_context_tokens"] = sequences, sequences * seen, seen
    return rows
