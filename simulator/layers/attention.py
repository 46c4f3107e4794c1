"""What ranks that share a sequence send each other in every attention layer (context parallelism)."""

from __future__ import annotations

from collections.abc import Iterator

from calibration.operators.operators import Collective
from calibration.operators.roofline import ACTIVATION_BYTES as ACT
from catalogs.arrays import FloatArray
from simulator.layers.operator_call import OperatorCall
from simulator.layers.shard import Shard


def merge_lines(shard: Shard, count: int, n: FloatArray, queries: int, outputs: int) -> Iterator[OperatorCall]:
    """Where ranks hold different tokens' keys: queries of all heads to each of them, and their partial outputs merged
    by the weights of their softmaxes (vLLM's cp_lse_ag_out_rs; among context ranks every query is there already, and
    outputs are all-reduced). An MLA block's heads stay its own: what it reads falls, its arithmetic is the same."""
    ranks, kind = shard.kv_shards, "collective"
    if ranks == 1:
        return
    if shard.joined_heads > 1:
        gathered = Collective("all_gather", n * (ranks * queries * ACT), ranks)
        yield OperatorCall("query_gather", kind, count, gathered)
    merge = "reduce_scatter" if shard.joined_heads > 1 else "all_reduce"
    merged = Collective(merge, n * (shard.joined_heads * outputs * ACT), ranks)
    yield OperatorCall("output_merge", kind, count, merged, stride=1 if shard.joined_heads > 1 else shard.tp)


def shared_keys(shard: Shard, count: int, each: float, new: FloatArray, prior: FloatArray) -> Iterator[OperatorCall]:
    """Keys and values that a rank needs and others hold: those of a prompt's new tokens from the ranks it is shared
    with, and where caches are cut, those of earlier tokens. `each`: bytes of a token in this layer. Nothing is hidden
    behind attention (vLLM gathers before it attends)."""
    if shard.cp > 1:
        lacking: FloatArray = new + prior if shard.kv_shards > 1 else new
        gathered = Collective("all_gather", lacking * each, shard.cp, False)
        yield OperatorCall("kv_gather", "collective", count, gathered, stride=shard.tp)
    elif shard.kv_shards > 1:
        yield OperatorCall(
            "kv_gather", "collective", count, Collective("all_gather", prior * each, shard.kv_shards, False)
        )
