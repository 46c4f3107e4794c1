"""What one replica is held to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an engine as its flags name them, in sequences, tokens and blocks."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int = 16
    kv_blocks: int = 0  # 0: not said, as many as memory holds
    prefix_caching: bool = True
