"""The rules one replica runs by: limits, cache, pipeline depth and host times. What a scheduler is constructed from."""

from __future__ import annotations

from dataclasses import dataclass

from catalogs.engines import HostTimes, Receiving
from catalogs.limits import Limits
from catalogs.queueing import FCFS, Queueing
from simulator.host_cache import OffloadRules
from simulator.lora import LoraRules
from simulator.swap import SwapRules


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules(Limits):
    """The limits of one replica (all its ranks together), and how its engine goes about them."""

    host: HostTimes
    chunked_prefill: bool = True
    admit_whole_prompt: bool = False  # admit a request only if its whole prompt fits now (newer vLLM)
    lag: int = 1  # steps scheduled ahead of the one that runs: 1 with async scheduling, 0 without
    pipeline_stages: int = 1  # batches in flight at once
    policy: str = "vllm-v1"
    max_output_tokens: int = 0  # max_tokens that every client declares; a run raises it to its longest output
    physical_batch_tokens: int = 0  # most tokens of one pass of the device; 0: a step is one pass
    attention_ranks: int = 1  # data-parallel ranks of attention
    balance_steps: int = 0  # steps these wait until each has a prompt to start; 0: they do not wait
    receiving: Receiving | None = None  # None: new requests are seen before every step
    unit_blocks: int = 1  # KV blocks that share one content key: more than 1 for traces with coarse keys (kv_cache.py)
    queueing: Queueing = FCFS
    offload: OffloadRules | None = None  # blocks are kept in host memory too
    lora: LoraRules | None = None  # None: it serves no adapters
    swap: SwapRules | None = None  # preempted requests are moved to host memory; None: they are computed again
