"""Blocks of a KV cache that hold attention and recurrent states: hybrid models in vLLM V1.

All layers share one pool of pages of equal size. vLLM raises the block size until a page of one attention layer is at
least as large as a layer's state, and pads the state to it (`HybridAttentionMambaModelConfig`, since 0.29
`Platform.update_block_size_for_backend` in vllm/platforms/interface.py). Layers of each kind form groups of equal size,
each of which takes one page for a block of tokens or for a state (`_get_kv_cache_groups_uniform_page_size` in
vllm/v1/core/kv_cache_utils.py).

With prefix caching, the state at the end of every chunk of a prompt is kept like a block of tokens, chunks end where
blocks end, and a prompt finds only prefixes that end at a kept state (`mamba_cache_mode: align`, `MambaManager` in
vllm/v1/core/single_type_kv_cache_manager.py and `_mamba_block_aligned_split` in vllm/v1/core/sched/scheduler.py).
"""

from __future__ import annotations

from math import ceil
from typing import Final, NamedTuple

from catalogs.models.mixers import Attention
from catalogs.models.spec import ModelSpec
from catalogs.units import DTYPE_BYTES

#: Kinds of layers whose numbers differ by less than this factor use the larger number as group size (vLLM).
ALIKE: Final = 1.5


class StatePages(NamedTuple):
    """The pages of a hybrid model.

    Attributes:
        block_tokens: Tokens of a block of attention.
        state_blocks: Blocks that the state of one sequence takes.
    """

    block_tokens: int
    state_blocks: int


def group_size(layers: tuple[int, ...]) -> int:
    """Return the number of layers that share a page, given the number of layers of each kind."""
    least, most = min(layers), max(layers)
    return most if most < least * ALIKE else least


def state_pages(model: ModelSpec, tensor_parallel: int, kv_dtype: str, block_size: int) -> StatePages | None:
    """Return the pages of a model with attention of one kind and states of one kind; None for other models.

    Args:
        model: The model.
        tensor_parallel: Ranks that divide heads and states; KV heads are repeated where there are fewer.
        kv_dtype: Number format of keys and values.
        block_size: The least tokens of a block, of which the block size is a multiple.
    """
    mixers = [(group.mixer, group.count * group.n_mixers) for group in model.groups if group.mixer is not None]
    attending = [(mixer, n) for mixer, n in mixers if mixer.attends]
    states = {mixer.state_bytes() for mixer, _ in mixers if not mixer.attends}
    kinds = {mixer for mixer, _ in attending}
    if len(states) != 1 or len(kinds) != 1 or model.encoder_groups:
        return None
    attention = kinds.pop()
    if not isinstance(attention, Attention) or attention.window_tokens is not None:
        return None
    share = attention.rank_kv_heads(tensor_parallel) / attention.n_kv_heads
    token_bytes = attention.kv_bytes_per_token(DTYPE_BYTES[kv_dtype]) * share
    tokens = block_size * ceil(states.pop() / tensor_parallel / (block_size * token_bytes))
    n_attention = sum(n for _, n in attending)
    n_states = sum(n for _, n in mixers) - n_attention
    size = group_size((n_attention, n_states))
    return StatePages(tokens, ceil(ceil(n_states / size) / ceil(n_attention / size)))
