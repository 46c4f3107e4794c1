"""Compose decode blocks of MLA from tables that time their parts: attention, absorbed products and projections.

The tables of vLLM and TensorRT-LLM time whole blocks of a layer. Those of SGLang time the attention kernel and the two
absorbed products (queries into the latent space, outputs out of it); the projections are in its table of products. A
block of one rank with h heads is, in order: the projection to the latent queries and keys, that of the queries to h
heads, the first absorbed product, the attention, the second absorbed product, and the projection of the outputs, with
SMALL_KERNELS between them. Prefill is not composed: the tables time the absorbed kernel, and the engine expands the
keys and values of prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from calibration.families.gemm import GemmModel
from calibration.families.mla import REFERENCE_SHAPE
from calibration.operators.operators import Gemm
from calibration.rows.physics_check import gate
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd

#: Norm of the latent queries, norm of the latent keys, rotation, write to the cache.
SMALL_KERNELS: Final = 4

#: A kernel of a few rows in a CUDA graph (the quantise kernel of the same tables, at one row).
SMALL_KERNEL_S: Final = 2e-6

#: Dtypes of projections for which blocks are composed, where the products were timed in them.
DTYPES: Final = ("bf16", "fp8_block", "fp4")


def decode_blocks(
    attention: pd.DataFrame, absorbed: pd.DataFrame, products: pd.DataFrame, accelerator: Accelerator
) -> pd.DataFrame:
    """Return rows of decode blocks in every dtype of the projections.

    Args:
        attention: Rows of the attention kernel: num_heads (per rank), batch_size, step (tokens in the cache),
            kv_cache_dtype as the bundle names it, seconds, source, kernel_source.
        absorbed: Rows of both absorbed products: op_name, num_heads, num_tokens, seconds.
        products: Rows of the family "gemm".
        accelerator: The measured accelerator.
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
    for dtype in (d for d in DTYPES if d in model.grids):
        seconds = attention.seconds.to_numpy(float) + around_s + _projections_s(model, dtype, heads, batch, accelerator)
        rows = attention[["source"]].assign(kernel=attention.kernel_source, seconds=seconds, dtype=dtype)
        work = {"tokens": batch, "pairs": 0.0, "context_tokens": batch * attention.step.to_numpy(float)}
        rows = rows.assign(stage="decode", sequences=batch, n_heads=heads.astype(int), **work, **REFERENCE_SHAPE)
        parts.append(rows.assign(kv_dtype=attention.kv_cache_dtype))
    return pd.concat(parts, ignore_index=True)


def _at(times: pd.DataFrame, heads: FloatArray, batch: FloatArray) -> FloatArray:
    """Return seconds at heads and tokens, each shape (n,), interpolated over the tokens, which ascend in `times`."""
    seconds = np.zeros(len(batch))
    for h in np.unique(heads):
        own, here = times[times.num_heads == h], heads == h
        seconds[here] = np.interp(batch[here], own.num_tokens.to_numpy(float), own.seconds.to_numpy(float))
    return seconds


def _projections_s(
    model: GemmModel, dtype: str, heads: FloatArray, batch: FloatArray, accelerator: Accelerator
) -> FloatArray:
    """Return the seconds of the three projections of a block, shape (n,)."""
    s = REFERENCE_SHAPE
    query, value = s["nope_head_dim"] + s["rope_head_dim"], s["v_head_dim"]
    latent = s["q_lora_rank"] + s["kv_lora_rank"] + s["rope_head_dim"]
    shapes = ((latent, s["hidden_size"]), (heads * query, s["q_lora_rank"]), (s["hidden_size"], heads * value))
    return np.asarray(sum(model.cost(Gemm(batch, n, k, dtype), accelerator)[0] for n, k in shapes), dtype=np.float64)
