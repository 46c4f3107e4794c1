"""What sequences hold where layers keep different parts of them: sliding windows and states beside full attention.

vLLM's hybrid KV cache manager cuts the layers of each kind into groups of as many layers (the smaller kind's number;
the larger one's where it is less than 1.5 times that; the last group of a kind is padded). A block is a page of one
group, all groups draw from one pool, and a windowed group frees the blocks behind its window
(`_get_kv_cache_groups_uniform_page_size` in vllm/v1/core/kv_cache_utils.py). Without it every layer keeps every token.

The simulated cache counts equal blocks of tokens. A sequence of a model with windows or states holds fewer bytes a
token the longer it is, so a run is given as many equal blocks as hold its workload's sequences, each weighted by the
time it decodes and halfway through its output (`even_blocks`).
"""

from __future__ import annotations

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

#: Kinds of layers that differ by less than this share one group size, the larger one's (vLLM).
ALIKE: Final = 1.5

#: Lengths that stand for all of a workload.
REPRESENTATIVES: Final = 256


class CacheGroup(NamedTuple):
    """Layers with one block table. padded: layers it takes memory for."""

    padded: int
    window_tokens: int | None

    def blocks(self, tokens: int, block_size: int) -> float:
        """That a decoding sequence holds, of a windowed group on average over where its window begins in a block."""
        whole = -(-tokens // block_size)
        if self.window_tokens is None or tokens <= self.window_tokens:
            return whole
        return min(whole, (self.window_tokens + block_size - 1) / block_size)


def cache_groups(shard: Shard) -> list[CacheGroup] | None:
    """vLLM's groups of a model with plain attention only, all of one size; None for other models."""
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
    """KV of one decoding sequence on one rank, in whole blocks; by vLLM's groups if asked and it has them."""
    groups, first = cache_groups(shard) if grouped else None, shard.model.groups[0]
    if groups is None or first.plain_attention is None:
        return sequence_bytes(shard, -(-tokens // block_size) * block_size)
    token = ShardedAttention(shard, first.count, first.plain_attention).kv_width
    layer = block_size * token * DTYPE_BYTES[shard.kv_dtype]
    held = sum(group.padded * group.blocks(tokens, block_size) for group in groups)
    return held * layer / (shard.pp * shard.kv_shards)


def varies(shard: Shard) -> bool:
    """Bytes a token depend on the length of the sequence."""
    return any(group.mixer is not None and not group.mixer.uniform_cache for group in shard.model.groups)


def even_blocks(resolved: ResolvedDeployment, memory: MemoryPlan, requests: RequestSet) -> int:
    """Equal blocks of one rank's cache for these requests; memory's own number where all lengths cost alike, or where
    somebody said how many there are."""
    shard, drafter = Shard.of(resolved), draft_shard(resolved)
    asked = memory.kv_bytes != max(memory.free_bytes, 0.0)
    if asked or not requests.n or resolved.engine.memory_rule == "slots" or not varies(shard):
        return memory.kv_blocks
    size, grouped = memory.block_size, resolved.engine.policy == "vllm-v1"
    tokens, weights = _representatives(requests)
    held = np.array([held_bytes(shard, n, size, grouped) for n in tokens.tolist()])
    if drafter is not None:
        held += np.array([held_bytes(drafter, n, size, grouped) for n in tokens.tolist()])
    per_block = float(weights @ held) / float(weights @ -(-tokens // size))
    longest = int((requests.input_tokens + requests.output_tokens).max())
    fits = -(-min(longest, memory.longest_sequence_tokens) // size)  # alone it has the cache for itself
    return max(int(memory.kv_bytes / per_block), fits)


def _representatives(requests: RequestSet) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """A few lengths, halfway through their outputs, and how long sequences like them decode together."""
    halfway = requests.input_tokens + requests.output_tokens // 2
    order = np.argsort(halfway, kind="stable")
    parts = np.array_split(order, min(REPRESENTATIVES, len(order)))
    weights = np.array([float(requests.output_tokens[part].sum()) for part in parts])
    means = [np.average(halfway[part], weights=requests.output_tokens[part]) for part in parts]
    return np.maximum(np.round(means).astype(np.int64), 1), weights
