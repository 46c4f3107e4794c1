"""Exchanges between ranks that hold different parts of a cache: context parallelism, in prompts and in decodes.

Ranks that share the cache of a sequence by its tokens exchange queries and merge partial outputs in a decode. For a
prompt they send each other the keys and values that they lack. Every function yields the collectives of one group of
layers, in the form in which the mixers of `attention.py` enter them into a step.
"""

from __future__ import annotations

from calibration.operators.flops_and_bytes import ACTIVATION_BYTES as ACT
from calibration.operators.operators import Collective
from catalogs.arrays import FloatArray
from simulator.layers.operator_call import Calls, OperatorCall
from simulator.layers.shard import Shard


def merge_calls(shard: Shard, count: int, sequences: FloatArray, queries: int, outputs: int) -> Calls:
    """Yield the exchange of a decode between ranks that hold the keys of different tokens (decode context parallelism).

    The queries of all heads go to each rank, and partial outputs are merged by the weights of their softmaxes (vLLM's
    cp_lse_ag_out_rs). Among context-parallel ranks every query is already present, and outputs are all-reduced. In an
    MLA block each rank keeps its own heads: it reads less, and its arithmetic is the same.

    Args:
        shard: The rank.
        count: The number of layers.
        sequences: Sequences that decode. Shape (...).
        queries: Values of the queries of one token in a layer.
        outputs: Values of the output of attention of one token in a layer.
    """
    ranks, kind = shard.kv_shards, "collective"
    if ranks == 1:
        return
    if shard.joined_heads > 1:
        gathered = Collective("all_gather", sequences * (ranks * queries * ACT), ranks)
        yield OperatorCall("query_gather", kind, count, gathered)
    merge = "reduce_scatter" if shard.joined_heads > 1 else "all_reduce"
    merged = Collective(merge, sequences * (shard.joined_heads * outputs * ACT), ranks)
    yield OperatorCall("output_merge", kind, count, merged, stride=1 if shard.joined_heads > 1 else shard.tp)


def gather_calls(shard: Shard, count: int, token_bytes: float, new: FloatArray, prior: FloatArray) -> Calls:
    """Yield the exchange of keys and values that a rank needs for a prompt and other ranks hold (context parallelism).

    Those of the new tokens come from the ranks that share the prompt and, if caches are divided, those of earlier
    tokens too. Attention hides none of this time (vLLM gathers before it attends).

    Args:
        shard: The rank.
        count: The number of layers.
        token_bytes: Bytes of the keys and values of one token in a layer.
        new: New tokens of the prompts. Shape (...); broadcasts with `prior`.
        prior: Tokens of the prompts that are in the cache already. Same shape.
    """
    if shard.cp > 1:
        lacking: FloatArray = new + prior if shard.kv_shards > 1 else new
        gathered = Collective("all_gather", lacking * token_bytes, shard.cp, False)
        yield OperatorCall("kv_gather", "collective", count, gathered, stride=shard.tp)
    elif shard.kv_shards > 1:
        gathered = Collective("all_gather", prior * token_bytes, shard.kv_shards, False)
        yield OperatorCall("kv_gather", "collective", count, gathered)
