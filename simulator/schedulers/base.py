"""What a replica asks of a scheduler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from simulator.cache.kv_cache import KvCache
from simulator.cache.lora_slots import AdapterSlots
from simulator.cache.offload import HostCache, SwapSpace
from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.schedulers.dp_dispatch import PRESSURE_FROM
from simulator.schedulers.rules import EngineRules


class Scheduler(ABC):
    """Decides the batch of each step. Counts tokens when they are scheduled, not when they come out.

    It never learns output lengths: the replica tells it when a request has nothing left to schedule (`retire`) and when
    the last output has been processed (`release`). What clients declare as their limit is in the rules, one for all.
    """

    mixes_phases: ClassVar[bool] = True  # a step may hold prefill and decodes; False: one or the other
    preempts: ClassVar[bool] = True  # a request may lose its blocks and have all it knows computed again
    pipelines: ClassVar[bool] = False  # several may share a queue and a cache, each with its own batch in flight
    hands_over: ClassVar[bool] = True  # can compute prompts for others to decode: frees the seat, keeps the blocks
    takes_over: ClassVar[bool] = False  # decodes requests that come with their blocks (Request.brought_tokens)
    chunks: ClassVar[bool] = True  # can cut a prompt over several steps, where EngineRules.chunked_prefill says so
    pads: ClassVar[bool] = False  # sequences that have ended compute on until the whole batch has
    streams: ClassVar[bool] = True  # tokens go out as they are made; False: with the last one

    def __init__(self, rules: EngineRules, kv: KvCache | None = None) -> None:
        self.rules = rules
        self.now_s = 0.0  # of the schedule() call, for those who wait for batches to fill up
        self.look_again_s = inf  # when the last schedule() call, which found nothing to run, would find something
        self.preempted: list[Request] = []  # by the last schedule() call
        self.fetches: list[Request] = []  # whose blocks the last schedule() call wants from the host
        self.host: HostCache | None = None
        self.swap_space: SwapSpace | None = None
        self.slots: AdapterSlots | None = None
        self.kv = kv or KvCache(rules.kv_blocks, rules.block_size, rules.prefix_caching, rules.unit_blocks)

    @abstractmethod
    def add(self, request: Request) -> None:
        """It reached the engine core."""

    @abstractmethod
    def schedule(self) -> Batch | None:
        """The next step, or None if nothing can run."""

    @abstractmethod
    def retire(self, request: Request) -> None:
        """Its last token has just been scheduled: keep its seat and blocks, schedule it no more."""

    def leaving(self, request: Request) -> tuple[Request, ...]:
        """Who ends with the step that holds the last token of `request`, which has just been retired."""
        return (request,)

    def withdraw(self, request: Request) -> bool:  # noqa: ARG002 - not everybody can
        """Its client is gone, and it waits or has an unfinished prompt: forget it. False where it cannot be helped."""
        return False

    @abstractmethod
    def release(self, request: Request) -> None:
        """Its last output is processed: free seat and blocks."""

    def park(self, request: Request) -> None:  # noqa: B027 - who does nothing keeps the seat, too
        """Its last output here is processed and its blocks go to another replica: free its seat; `release` follows."""

    @abstractmethod
    def quiet_rounds(self, batch: Batch, most: int) -> int:
        """How many further schedule() calls (0..most) would give just the decodes of `batch` again, without a
        decision, if nothing arrives and nothing is released. 0 when in doubt."""

    @abstractmethod
    def skip(self, rounds: int) -> None:
        """As if schedule() had been called that often, where quiet_rounds() allowed it."""

    def blocks_for(self, rounds: int) -> int:  # noqa: ARG002 - 0 suits who takes all blocks at once
        """Blocks that skip(rounds) would take."""
        return 0

    @property
    @abstractmethod
    def blocked(self) -> bool:
        """No waiting request can be admitted before something is released."""

    @property
    @abstractmethod
    def n_running(self) -> int: ...

    @property
    @abstractmethod
    def n_waiting(self) -> int: ...

    @abstractmethod
    def running_requests(self) -> list[Request]:
        """For checking laws: those with a seat, in order of service."""

    @abstractmethod
    def waiting_requests(self) -> list[Request]:
        """For checking laws and for naming who is stuck."""

    @property
    def reach(self) -> Headroom | None:
        """How near it came to its limits; None where it does not know, or they matter before they are reached."""
        return None

    @property
    def n_fetching(self) -> int:
        """Waiting requests that blocks are on their way to."""
        return 0

    def landed(self, request: Request) -> None:
        """The blocks it waited for have come from the host."""
        raise NotImplementedError

    def holding_requests(self) -> list[Request]:
        """For checking laws: those that wait and hold blocks."""
        return []

    def held_blocks(self, request: Request) -> int:
        """For checking laws: blocks that a running request holds, shared ones included."""
        return -(-self.computed_tokens(request) // self.rules.block_size)

    def context_before(self, request: Request) -> int:
        """For checking laws: tokens that a decoding request had in its cache before the round scheduled last."""
        return self.computed_tokens(request) - 1

    @abstractmethod
    def computed_tokens(self, request: Request) -> int:
        """For checking laws: tokens of the request whose KV is scheduled or stored."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """Of one engine; of ranks in lockstep, which share all limits evenly, as if all had been as full as the fullest."""

    seats: int  # most requests with a seat at once
    spare_blocks: int  # fewest that were left free, or would have been at the end of a run of steps; < 0: too few

    def same_under(self, own: EngineRules, other: EngineRules, step_tokens: int) -> bool:
        """Whether a run under `other`, which differs from `own` in limits alone, would be the same. step_tokens: the
        most of a step. A limit that does not differ may have been reached."""
        seats = own.max_num_seqs, other.max_num_seqs
        tokens = own.max_num_batched_tokens, other.max_num_batched_tokens
        clear = seats[0] == seats[1] or self.seats < min(seats)
        clear = clear and (tokens[0] == tokens[1] or (own.chunked_prefill and step_tokens < min(tokens)))
        blocks = own.kv_blocks, other.kv_blocks
        if blocks[0] == blocks[1]:
            return clear
        quiet = not own.in_lockstep or blocks[0] - self.spare_blocks <= PRESSURE_FROM * min(blocks)  # for dispatch
        return clear and quiet and self.spare_blocks >= max(0, blocks[0] - blocks[1])
