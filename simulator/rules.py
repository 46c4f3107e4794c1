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
    max_output_tokens: int = 0  # max_tokens that every client declares; a run raises it to its longest output
    physical_batch_tokens: int = 0  # most tokens of one pass of the device; 0: a step is one pass
    unit_blocks: int = 1  # KV blocks that share one content key: more than 1 for traces with coarse keys (kv_cache.py)
