"""The rules of one replica, from which a scheduler is constructed: limits, cache, pipeline depth and host times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

from catalogs.deployments.layout import Limits
from catalogs.deployments.queueing import FCFS, Queueing
from catalogs.engines.model_defaults import ReceiveIntervals
from catalogs.engines.profile import HostTimes
from simulator.cache.encoder_cache import EncoderLimits
from simulator.cache.lora_slots import LoraRules
from simulator.cache.offload import OffloadRules, SwapRules
from simulator.cache.retention import RetentionRules
from simulator.core.batch import Batch
from simulator.core.speculation import SpeculationRules

#: Fraction of a rank's KV cache in use above which newer vLLM sends waiting requests elsewhere (see `dp_dispatch`).
PRESSURE_FROM: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules(Limits):
    """The limits of one replica (all its ranks together) and the behaviour of its engine."""

    host: HostTimes
    chunked_prefill: bool = True
    admit_whole_prompt: bool = False  # admit a request only if its whole prompt fits now (newer vLLM)
    lag: int = 1  # steps scheduled ahead of the one that runs: 1 with async scheduling, 0 without
    held_launch_s: float = 0.0  # launch of a step with prompts that holds the outputs before it; 0: it holds none
    pipeline_stages: int = 1  # batches in flight at once
    stage_layers: tuple[int, ...] = ()  # layers of each stage; empty: the stages take equally long
    policy: str = "vllm-v1"
    max_output_tokens: int = 0  # max_tokens that every client declares; a run raises it to its longest output
    physical_batch_tokens: int = 0  # most tokens of one pass on the device; 0: a step is one pass
    attention_ranks: int = 1  # data-parallel ranks of attention
    api_servers: int = 1  # API server processes
    rank_dispatch: str = ""  # dispatch of requests to ranks with their own schedulers; "": one scheduler for all
    balance_steps: int = 0  # most steps that these ranks wait until each has a prompt to start; 0: they do not wait
    receiving: ReceiveIntervals | None = None  # None: the engine reads new requests before every step
    unit_blocks: int = 1  # KV blocks that share one content key; more than 1 for traces with coarse keys
    queueing: Queueing = FCFS
    offload: OffloadRules | None = None  # KV blocks are also kept in host memory
    retention: RetentionRules | None = None  # blocks that are evicted last; None: those used last are
    lora: LoraRules | None = None  # None: no LoRA adapters
    speculation: SpeculationRules | None = None  # None: one token per decode and step
    encoder_limits: EncoderLimits | None = None  # None: requests are text only
    encoder_tokens: int = 0  # positions of every request's encoder output, kept in blocks; 0: no encoder
    side_tokens: int = 0  # most tokens of a prompt, and of an output; 0: only their sum is limited
    swap: SwapRules | None = None  # preempted requests are moved to host memory; None: they are recomputed

    @property
    def cross_blocks(self) -> int:
        """Return the KV blocks that every request holds for its encoder's output."""
        return -(-self.encoder_tokens // self.block_size)

    @property
    def encodes_only(self) -> bool:
        """Return whether the replica belongs to an encoder pool and runs no language model."""
        return self.encoder_limits is not None and self.encoder_limits.where == "only here"

    @property
    def in_lockstep(self) -> bool:
        """Return whether every rank has its own scheduler, and their steps begin together."""
        return self.attention_ranks > 1 and bool(self.rank_dispatch)

    def of_rank(self) -> Self:
        """Return the rules of one rank."""
        divided = ("max_num_seqs", "max_num_batched_tokens", "kv_blocks")
        own = {name: getattr(self, name) // self.attention_ranks for name in divided}
        return replace(self, **own, attention_ranks=1, rank_dispatch="")

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


@dataclass(frozen=True, slots=True)
class PeakUse:
    """The largest use that one engine made of its limits in a run.

    For ranks in lockstep, which divide all limits evenly, every rank counts as if it had used as much as the fullest.

    Attributes:
        seats: The largest number of requests with a seat at the same time.
        free_blocks: The smallest number of free blocks. Runs of steps that were considered and given up count too, so
            it is negative if the blocks of such a run were too few.
    """

    seats: int
    free_blocks: int

    def same_under(self, own: EngineRules, other: EngineRules, step_tokens: int) -> bool:
        """Return whether a run under `other`, which differs from `own` only in limits, would be the same.

        The limits that differ must not have restricted this run. A limit that is equal may have.

        Args:
            own: The rules of this run.
            other: The other rules.
            step_tokens: The largest number of tokens of a step in this run.
        """
        seats = own.max_num_seqs, other.max_num_seqs
        tokens = own.max_num_batched_tokens, other.max_num_batched_tokens
        blocks = own.kv_blocks, other.kv_blocks
        same = seats[0] == seats[1] or self.seats < min(seats)
        same = same and (tokens[0] == tokens[1] or (own.chunked_prefill and step_tokens < min(tokens)))
        if blocks[0] == blocks[1]:
            return same
        # Requests are dispatched to ranks in lockstep by the use of their caches, from PRESSURE_FROM on.
        same = same and (not own.in_lockstep or blocks[0] - self.free_blocks <= PRESSURE_FROM * min(blocks))
        return same and self.free_blocks >= max(0, blocks[0] - blocks[1])
