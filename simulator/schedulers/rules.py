"""The rules of one replica, from which a scheduler is constructed: limits, cache, pipeline depth and host times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from catalogs.deployments.layout import Limits
from catalogs.deployments.queueing import FCFS, Queueing
from catalogs.engines.profile import HostTimes, ReceiveIntervals
from simulator.cache.lora_slots import LoraRules
from simulator.cache.offload import OffloadRules, SwapRules
from simulator.core.batch import Batch
from simulator.core.speculation import SpeculationRules


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules(Limits):
    """The limits of one replica (all its ranks together) and the behaviour of its engine."""

    host: HostTimes
    chunked_prefill: bool = True
    admit_whole_prompt: bool = False  # admit a request only if its whole prompt fits now (newer vLLM)
    lag: int = 1  # steps scheduled ahead of the one that runs: 1 with async scheduling, 0 without
    pipeline_stages: int = 1  # batches in flight at once
    policy: str = "vllm-v1"
    max_output_tokens: int = 0  # max_tokens that every client declares; a run raises it to its longest output
    physical_batch_tokens: int = 0  # most tokens of one pass on the device; 0: a step is one pass
    attention_ranks: int = 1  # data-parallel ranks of attention
    rank_dispatch: str = ""  # dispatch of requests to ranks with their own schedulers; "": one scheduler for all
    balance_steps: int = 0  # most steps that these ranks wait until each has a prompt to start; 0: they do not wait
    receiving: ReceiveIntervals | None = None  # None: the engine reads new requests before every step
    unit_blocks: int = 1  # KV blocks that share one content key; more than 1 for traces with coarse keys
    queueing: Queueing = FCFS
    offload: OffloadRules | None = None  # KV blocks are also kept in host memory
    lora: LoraRules | None = None  # None: no LoRA adapters
    speculation: SpeculationRules | None = None  # None: one token per decode and step
    encoder_tokens: int = 0  # positions of every request's encoder output, kept in blocks; 0: no encoder
    swap: SwapRules | None = None  # preempted requests are moved to host memory; None: they are recomputed

    @property
    def cross_blocks(self) -> int:
        """KV blocks that every request holds for its encoder's output."""
        return -(-self.encoder_tokens // self.block_size)

    @property
    def in_lockstep(self) -> bool:
        """Whether every rank has its own scheduler, and their steps begin together."""
        return self.attention_ranks > 1 and bool(self.rank_dispatch)

    def of_rank(self) -> Self:
        """Return the rules of one rank."""
        n = self.attention_ranks
        return replace(
            self,
            max_num_seqs=self.max_num_seqs // n,
            max_num_batched_tokens=self.max_num_batched_tokens // n,
            kv_blocks=self.kv_blocks // n,
            attention_ranks=1,
            rank_dispatch="",
        )

    def moving_s(self, batch: Batch) -> float:
        """Return the seconds that a step takes longer because of swapped blocks and of adapters."""
        seconds, moves = 0.0, batch.moves
        if moves is None:
            return seconds
        if self.swap is not None and not batch.prefill_tokens:
            seconds += self.swap.s_per_block * moves.blocks
        if self.lora is not None and moves.adapters:
            seconds += self.lora.added_s(moves.adapter_tokens, moves.adapters)
            seconds += self.lora.bringing_s(*moves.brought_adapters)
        return seconds
