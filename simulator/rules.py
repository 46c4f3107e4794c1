"""The rules one replica runs by: limits, cache, pipeline depth and host times. What a scheduler is constructed from."""

from __future__ import annotations

from dataclasses import dataclass

from catalogs.engines import HostTimes


@dataclass(frozen=True, slots=True)
class EngineRules:
    """Limits of one replica (all its ranks together)."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_blocks: int
    host: HostTimes
    block_size: int = 16
    prefix_caching: bool = True
    chunked_prefill: bool = True
    admit_whole_prompt: bool = False  # admit a request only if its whole prompt fits now (newer vLLM)
    lag: int = 1  # steps scheduled ahead of the one that runs: 1 with async scheduling, 0 without
    policy: str = "vllm-v1"
    hash_block_tokens: int = 16  # granularity of the workload's content ids

    @property
    def unit_blocks(self) -> int:
        """KV blocks per cached unit (kv_cache.py)."""
        return max(1, self.hash_block_tokens // self.block_size)

    @property
    def hashes_per_unit(self) -> int:
        return max(1, self.block_size // self.hash_block_tokens)
