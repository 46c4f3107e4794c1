"""The KV cache of models whose layers keep different parts of a sequence: sliding windows, states, full attention.

vLLM's hybrid KV cache manager divides the layers of each kind into groups of equal size: the number of layers of the
smaller kind, or of the larger kind if that is less than 1.5 times as many. The last group of a kind is padded. A block
is a page of one group, all groups draw from one pool, and a windowed group frees the blocks behind its window
(`_get_kv_cache_groups_uniform_page_size` in vllm/v1/core/kv_cache_utils.py). Without this manager every layer keeps
every token.

The simulated cache counts equal blocks of tokens. In a model with windows or states, a longer sequence holds fewer
bytes per token. A run is therefore given as many equal blocks as hold the sequences of its workload, each weighted by
its decode time and taken halfway through its output (`even_blocks`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.units import DTYPE_BYTES
from catalogs.workloads.request_set import RequestSet
from simulator.layers.attention import ShardedAttention
from simulator.layers.drafter import draft_shard
from simulator.layers.shard import Shard
from simulator.memory.plan import MemoryPlan, sequence_bytes

#: Kinds of layers whose numbers differ by less than this factor use the larger number as group size (vLLM).
ALIKE: Final = 1.5

#: Number of lengths that represent a workload. A judgement: quantiles at every 0.4 %.
REPRESENTATIVES: Final = 256


class CacheGroup(NamedTuple):
    """Layers with one block table.

    Attributes:
        padded: The layers for which the group takes memory.
        window_tokens: The window of its layers; None for full attention.
    """

    padded: int
    window_tokens: int | None

    def blocks(self, tokens: int, block_size: int) -> float:
        """Return the blocks of a decoding sequence, averaged over the position of the window's start within a block."""
        whole = -(-tokens // block_size)
        if self.window_tokens is None or tokens <= self.window_tokens:
            return whole
        return min(whole, (self.window_tokens + block_size - 1) / block_size)


def cache_groups(shard: Shard) -> list[CacheGroup] | None:
    """Return vLLM's groups of a model that has only plain attention of one KV size; None for other models."""
    layers: dict[int | None, int] = {}
    pages = set()
    for group in shard.model.groups:
        a = group.plain_attention
        if a is None:
            return None
        pages.add((a.n_kv_heads, a.head_dim, a.value_dim))
        layers[a.window_tokens] = layers.get(a.window_tokens, 0) + group.count
    if len(pages) != 1:
        return None
    least, most = min(layers.values()), max(layers.values())
    size = most if most < least * ALIKE else least
    return [CacheGroup(size, window) for window, n in layers.items() for _ in range(-(-n // size))]


def held_bytes(shard: Shard, tokens: int, block_size: int, grouped: bool = True) -> float:
    """Return the KV bytes of one decoding sequence on one rank, in whole blocks.

    With `grouped`, vLLM's groups apply if the model has them.
    """
    groups, first = cache_groups(shard) if grouped else None, shard.model.groups[0]
    if groups is None or first.plain_attention is None:
        return sequence_bytes(shard, -(-tokens // block_size) * block_size)
    token = ShardedAttention(shard, first.count, first.plain_attention).kv_width
    layer = block_size * token * DTYPE_BYTES[shard.kv_dtype]
    held = sum(group.padded * group.blocks(tokens, block_size) for group in groups)
    return held * layer * shard.layer_share / shard.kv_shards


def varies(shard: Shard) -> bool:
    """Return whether the bytes per token depend on the length of the sequence."""
    return any(group.mixer is not None and not group.mixer.uniform_cache for group in shard.model.groups)


def even_blocks(resolved: ResolvedDeployment, memory: MemoryPlan, requests: RequestSet) -> int:
    """Return the number of equal blocks of one rank's cache for these requests.

    This is the memory plan's own number if all lengths cost the same per token, or if the number of blocks was given.
    """
    shard = replace(Shard.of(resolved), stage=memory.stage)
    shards = [each for each in (shard, draft_shard(resolved)) if each is not None]
    given = memory.kv_bytes != memory.free_bytes
    if given or not requests.n or resolved.engine.memory_rule == "slots" or not varies(shard):
        return memory.kv_blocks
    size, grouped = memory.block_size, resolved.engine.policy == "vllm-v1"
    tokens, weights = _representatives(requests)
    held = [sum(held_bytes(each, n, size, grouped) for each in shards) for n in tokens.tolist()]
    per_block = float(weights @ held) / float(weights @ -(-tokens // size))
    longest = int((requests.input_tokens + requests.output_tokens).max())
    fits = -(-min(longest, memory.longest_sequence_tokens) // size)  # the longest sequence fits if it runs alone
    return max(int(memory.kv_bytes / per_block), fits)


def _representatives(requests: RequestSet) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Return some lengths, each halfway through its output, and the decode time of the sequences they represent."""
    halfway = requests.input_tokens + requests.output_tokens // 2
    order = np.argsort(halfway, kind="stable")
    parts = np.array_split(order, min(REPRESENTATIVES, len(order)))
    weights = np.array([float(requests.output_tokens[part].sum()) for part in parts])
    means = [np.average(halfway[part], weights=requests.output_tokens[part]) for part in parts]
    return np.maximum(np.round(means).astype(np.int64), 1), weights
