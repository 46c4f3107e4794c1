"""Rows of MLA blocks: decodes composed from tables of their parts, and whole blocks less the norms that no engine runs.

The tables of vLLM and TensorRT-LLM time whole blocks of a layer. Those of SGLang time the attention kernel and the two
absorbed products (queries into the latent space, outputs out of it); the projections are in its table of products. A
block of one rank with h heads is, in order: the projection to the latent queries and keys, that of the queries to h
heads, the first absorbed product, the attention, the second absorbed product, and the projection of the outputs, with
SMALL_KERNELS between them. Prefill is not composed: the tables time the absorbed kernel, and the engine expands the
keys and values of prompts.

On Blackwell, SGLang can run the projections in FlashInfer's kernel of fixed tiles, which no table times. Its decode
blocks are composed with the law of that kernel, and its prompts are vLLM's blocks with their own products taken off and
those of the law added.

The collector of vLLM's blocks ran the RMSNorms and the rotation as chains of torch kernels, which an engine fuses or
compiles. Its authors timed the blocks of B200 again with vLLM's own kernels (`norm_dispatch` in collection_meta.yaml:
"the previous rows ran the never-in-serving native chain", +34 % in one anchor), and those of no other board. B200 has
tables of both kinds: 0.22 ran the chain and 0.24 does not. Their difference, the surplus of the chain, depends on the
tokens alone, not on dtype, heads or context: 44 us for one token, 64 us for 64, and 30 ns a token for long prompts.

The rows of GB200, B300 and GB300 exceed those of B200 by as much (38 to 43 us at one token, 220 to 260 us at 8,192),
and the surplus of B200 is taken off them and off those of H100 and H200. TensorRT-LLM's blocks on the same boards,
which ran no chain, confirm it: in block-scaled FP8, decodes of 1 to 256 sequences and prompts of 128 to 2,048 tokens
take 1.6 to 2.2 times as long in vLLM's rows of GB200 and 1.3 to 1.9 times in those of Hopper; without the surplus it is
0.98 to 1.05 and 0.80 to 0.99 times, and on B200 1.00 to 1.08 times. Other boards have no such blocks to compare with
and keep their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from calibration.families.fixed_tiles import FLASHINFER, TABLED
from calibration.families.gemm import GemmModel
from calibration.families.mla import REFERENCE_SHAPE
from calibration.operators.operators import Gemm, Num
from calibration.rows.physics_check import gate
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator
from catalogs.io.yaml_files import read_yaml

if TYPE_CHECKING:
    import pandas as pd

#: Norm of the latent queries, norm of the latent keys, rotation, write to the cache.
SMALL_KERNELS: Final = 4

#: A kernel of a few rows in a CUDA graph (the quantise kernel of the same tables, at one row).
SMALL_KERNEL_S: Final = 2e-6

#: Dtypes of projections for which blocks are composed, where the products were timed in them.
DTYPES: Final = ("bf16", TABLED, "fp4")

#: The board with tables of both kinds, the release that ran the chain, and the release that does not.
TIMED_TWICE: Final = ("b200_sxm", "0.22.0", "0.24.0")

#: Table of each stage of a block.
TABLE_OF: Final = {"prefill": "mla_context_module_perf", "decode": "mla_generation_module_perf"}

#: A block keeps at least this share of its time. A judgement: it only bounds a subtraction of noisy times.
LEAST_SHARE: Final = 0.3

_SHAPE: Final = ["kv_cache_dtype", "gemm_type", "num_heads", "batch_size", "isl", "step"]


def decode_blocks(
    attention: pd.DataFrame, absorbed: pd.DataFrame, products: pd.DataFrame, accelerator: Accelerator
) -> pd.DataFrame:
    """Return rows of decode blocks in every dtype of the projections.

    Args:
        attention: Rows of the attention kernel: num_heads (per rank), batch_size, step (tokens in the cache),
            kv_cache_dtype as the bundle names it, seconds, source, kernel_source.
        absorbed: Rows of both absorbed products: op_name, num_heads, num_tokens, seconds.
        products: Rows of the family "gemm".
        accelerator: The measured accelerator; on Blackwell, blocks are composed with FlashInfer's products too.
    """
    import pandas as pd

    model = GemmModel.fit(gate("gemm", products, accelerator)[0], accelerator)
    both = absorbed.groupby(["op_name", "num_heads", "num_tokens"], as_index=False)["seconds"].median()
    heads, batch = attention.num_heads.to_numpy(float), attention.batch_size.to_numpy(float)
    kept = np.isin(heads, absorbed.num_heads.unique())
    attention, heads, batch = attention[kept].reset_index(drop=True), heads[kept], batch[kept]
    around_s = np.full(len(batch), SMALL_KERNELS * SMALL_KERNEL_S)
    for name in ("mla_gen_pre", "mla_gen_post"):
        around_s = around_s + _at(both[both.op_name == name], heads, batch)
    parts = []
    dtypes = [d for d in DTYPES if d in model.grids]
    for dtype in (*dtypes, *((FLASHINFER,) if TABLED in dtypes and accelerator.is_data_center_blackwell else ())):
        seconds = attention.seconds.to_numpy(float) + around_s + _projections_s(model, dtype, heads, batch, accelerator)
        rows = attention[["source"]].assign(kernel=attention.kernel_source, seconds=seconds, dtype=dtype)
        work = {"tokens": batch, "pairs": 0.0, "context_tokens": batch * attention.step.to_numpy(float)}
        rows = rows.assign(stage="decode", sequences=batch, n_heads=heads.astype(int), **work, **REFERENCE_SHAPE)
        parts.append(rows.assign(kv_dtype=attention.kv_cache_dtype))
    return pd.concat(parts, ignore_index=True)


def flashinfer_prompts(blocks: pd.DataFrame, products: pd.DataFrame, accelerator: Accelerator) -> pd.DataFrame:
    """Return rows of prompt blocks with FlashInfer's products in place of those that were timed.

    Args:
        blocks: Rows of vLLM's blocks.
        products: Rows of the family "gemm" of the same release.
        accelerator: The measured accelerator.
    """
    model = GemmModel.fit(gate("gemm", products, accelerator)[0], accelerator)
    rows = blocks[(blocks.stage == "prefill") & (blocks.dtype == TABLED)].reset_index(drop=True)
    heads, tokens = rows.n_heads.to_numpy(float), rows.tokens.to_numpy(float)
    timed_s, law_s = (_projections_s(model, d, heads, tokens, accelerator, True) for d in (TABLED, FLASHINFER))
    return _exchanged(rows, timed_s, law_s).assign(dtype=FLASHINFER)


def with_older_products(
    blocks: pd.DataFrame, products: pd.DataFrame, older: pd.DataFrame, accelerator: Accelerator
) -> pd.DataFrame:
    """Return the block-scaled rows of blocks with the products of an older release in place of their own.

    Args:
        blocks: Rows of whole blocks of one release.
        products: Rows of the family "gemm" of the same release.
        older: Rows of the family "gemm" of the older release, which timed no blocks.
        accelerator: The accelerator of all rows.
    """
    import pandas as pd

    models = [GemmModel.fit(gate("gemm", rows, accelerator)[0], accelerator) for rows in (products, older)]
    found = []
    for stage in TABLE_OF:
        rows = blocks[(blocks.stage == stage) & (blocks.dtype == TABLED)].reset_index(drop=True)
        heads, tokens = rows.n_heads.to_numpy(float), rows.tokens.to_numpy(float)
        times_s = [_projections_s(m, TABLED, heads, tokens, accelerator, stage == "prefill") for m in models]
        found.append(_exchanged(rows, *times_s).assign(source=older.source.iloc[0]))
    return pd.concat(found, ignore_index=True)


def _exchanged(rows: pd.DataFrame, timed_s: FloatArray, other_s: FloatArray) -> pd.DataFrame:
    """Return rows of blocks with other products in place of those that were timed; both in seconds, shape (rows,)."""
    seconds = rows.seconds.to_numpy(float)
    return rows.assign(seconds=np.maximum(seconds - timed_s, LEAST_SHARE * seconds) + other_s)


def _at(times: pd.DataFrame, heads: FloatArray, batch: FloatArray) -> FloatArray:
    """Return seconds at heads and tokens, each shape (n,), interpolated over the tokens, which ascend in `times`."""
    seconds = np.zeros(len(batch))
    for h in np.unique(heads):
        own, here = times[times.num_heads == h], heads == h
        seconds[here] = np.interp(batch[here], own.num_tokens.to_numpy(float), own.seconds.to_numpy(float))
    return seconds


def _projections_s(
    model: GemmModel,
    dtype: str,
    heads: FloatArray,
    tokens: FloatArray,
    accelerator: Accelerator,
    expands: bool = False,
) -> FloatArray:
    """Return the seconds of the three projections of a block, shape (n,).

    `expands` adds the projection of the latent keys to the keys and values of all heads, which prompts run.
    """
    s = REFERENCE_SHAPE
    query, value = s["nope_head_dim"] + s["rope_head_dim"], s["v_head_dim"]
    latent = s["q_lora_rank"] + s["kv_lora_rank"] + s["rope_head_dim"]
    shapes: list[tuple[Num, Num]] = [
        (latent, s["hidden_size"]),
        (heads * query, s["q_lora_rank"]),
        (s["hidden_size"], heads * value),
    ]
    if expands:
        shapes.append((heads * (s["nope_head_dim"] + value), s["kv_lora_rank"]))
    return np.asarray(sum(model.cost(Gemm(tokens, n, k, dtype), accelerator)[0] for n, k in shapes), dtype=np.float64)


def as_fused(rows: pd.DataFrame, tables: Path, system: str, version: str) -> pd.DataFrame:
    """Return rows of MLA blocks without the surplus of the chain of norms.

    Rows stay as they are if they were timed without it, or if a table from which the surplus follows is missing.

    Args:
        rows: Rows of vLLM's blocks: stage, tokens (new ones of all sequences), seconds.
        tables: Folder of all systems.
        system: Folder of the system of the rows.
        version: Version of vLLM of the rows.
    """
    seconds = rows.seconds.to_numpy(float).copy()
    for stage, name in TABLE_OF.items():
        found = None if timed_fused(tables / system / "mla" / "vllm" / version, name) else surplus(tables, name)
        own = (rows.stage == stage).to_numpy()
        if found is not None and own.any():
            tokens, surplus_s = found
            rest = seconds[own] - np.interp(rows.tokens.to_numpy(float)[own], tokens, surplus_s)
            seconds[own] = np.maximum(rest, LEAST_SHARE * seconds[own])
    return rows.assign(seconds=seconds)


def timed_fused(folder: Path, table: str) -> bool:
    """Return whether the notes on a folder of tables say that a table was timed with the norms of the engine."""
    file = folder / "collection_meta.yaml"
    notes: Mapping[str, Any] = read_yaml(file) if file.is_file() else {}
    return "norm_dispatch" in notes.get("tables", {}).get(table, {})


def surplus(tables: Path, table: str) -> tuple[FloatArray, FloatArray] | None:
    """Return (tokens, seconds) of the chain, each shape (n,), tokens ascending; None if a table of B200 is missing.

    The median counts over all blocks of as many tokens. It does not fall with the tokens.
    """
    import pandas as pd

    system, chained, fused = TIMED_TWICE
    files = [tables / system / "mla" / "vllm" / version / f"{table}.parquet" for version in (chained, fused)]
    if not all(file.is_file() for file in files):
        return None
    both = pd.concat([_medians(file) for file in files], axis=1, keys=["chained", "fused"]).dropna().reset_index()
    length = both.isl if table == TABLE_OF["prefill"] else 1
    by_tokens = (both.chained - both.fused).groupby(both.batch_size * length).median().sort_index() * 1e-3
    return by_tokens.index.to_numpy(float), np.maximum.accumulate(by_tokens.to_numpy(float))


def _medians(file: Path) -> pd.Series[float]:
    import pandas as pd

    raw = pd.read_parquet(file)
    return raw[raw.mla_dtype == "bfloat16"].groupby(_SHAPE)["latency"].median()
