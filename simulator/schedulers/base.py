"""The contract between a replica and its scheduler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import ClassVar

from simulator.cache.encoder_cache import EncoderCache, RequestEmbeddings
from simulator.cache.kv_cache import KvCache
from simulator.cache.lora_slots import AdapterSlots
from simulator.cache.offload import HostCache, SwapSpace
from simulator.cache.retention import RetainingKvCache
from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.schedulers.rules import EngineRules, PeakUse


class Scheduler(ABC):
    """The base class of schedulers, which decide the batch of each step.

    A scheduler counts tokens when they are scheduled, not when they are output. It does not know output lengths: the
    replica calls `retire` when a request has nothing left to schedule, and `release` when its last output has been
    processed. The output limit that clients declare is in the rules and is the same for all requests.

    Attributes:
        mixes_phases: A step may hold both prefill and decodes.
        preempts: A request may lose its blocks and be computed again from its prompt.
        pipelines: Several schedulers may share a queue and a cache, each with its own batch in flight.
        hands_over: It can compute prompts that other replicas decode (see `hold_for_transfer`).
        takes_over: It decodes requests that arrive with their blocks (`Request.brought_tokens`).
        chunks: It can split a prompt over several steps, if `EngineRules.chunked_prefill` allows it.
        pads: Sequences that have ended are computed until the whole batch has ended.
        streams: Tokens are sent as they are generated; otherwise all of them with the last one.
    """

    mixes_phases: ClassVar[bool] = True
    preempts: ClassVar[bool] = True
    pipelines: ClassVar[bool] = False
    hands_over: ClassVar[bool] = True
    takes_over: ClassVar[bool] = False
    chunks: ClassVar[bool] = True
    pads: ClassVar[bool] = False
    streams: ClassVar[bool] = True

    def __init__(self, rules: EngineRules, kv: KvCache | None = None) -> None:
        self.rules = rules
        self.now_s = 0.0  # time of the schedule() call, for policies that wait for batches to fill up
        self.retry_s = inf  # if the last schedule() call returned no batch: when a further call may return one
        self.preempted: list[Request] = []  # requests that the last schedule() call preempted
        self.fetches: list[Request] = []  # requests whose blocks the last schedule() call fetches from the host
        self.fetching: dict[Request, None] = {}  # waiting requests whose blocks are being copied from the host
        self.host: HostCache | None = None
        self.swap_space: SwapSpace | None = None
        self.slots: AdapterSlots | None = None
        self.encoders: EncoderCache | RequestEmbeddings | None = None
        self.kv = kv or _empty_cache(rules)

    @abstractmethod
    def add(self, request: Request) -> None:
        """Add a request that has reached the engine core."""

    @abstractmethod
    def schedule(self) -> Batch | None:
        """Return the batch of the next step, or None if nothing can run."""

    @abstractmethod
    def retire(self, request: Request) -> None:
        """Stop scheduling a request whose last token has just been scheduled; it keeps its seat and blocks."""

    def leaving(self, request: Request) -> tuple[Request, ...]:
        """Return the requests that end with the step of the last token of `request`, which has just been retired."""
        return (request,)

    @abstractmethod
    def withdraw(self, request: Request) -> bool:
        """Remove a request that its client has cancelled, if it waits or its prompt is unfinished.

        Returns False if the scheduler cannot remove it.
        """

    @abstractmethod
    def release(self, request: Request) -> None:
        """Free the seat and the blocks of a request whose last output has been processed."""

    def hold_for_transfer(self, request: Request) -> None:  # noqa: B027 (a scheduler that does nothing keeps the seat)
        """Free the seat of a request, but keep its blocks, which are sent to another replica; `release` follows."""

    @abstractmethod
    def quiet_rounds(self, batch: Batch, most: int) -> int:
        """Return the number of further schedule() calls (0..most) that would repeat just the decodes of `batch`.

        They involve no decision, provided that nothing arrives and nothing is released. The result is 0 in case of
        doubt.
        """

    @abstractmethod
    def skip(self, rounds: int) -> None:
        """Update the state as if schedule() had been called `rounds` times, which `quiet_rounds` has allowed."""

    def blocks_for(self, rounds: int) -> int:  # noqa: ARG002 (0 is right for policies that take all blocks at once)
        """Return the blocks that `skip(rounds)` would take."""
        return 0

    @property
    @abstractmethod
    def blocked(self) -> bool:
        """Return whether no waiting request can be admitted before something is released."""

    @property
    @abstractmethod
    def n_running(self) -> int:
        """Return the number of requests with a seat."""

    @property
    @abstractmethod
    def n_waiting(self) -> int:
        """Return the number of waiting requests."""

    @property
    def feeds_idle_batches(self) -> bool:
        """Return whether an idle batch in flight of the same engine may find something to do."""
        return self.n_waiting > 0

    @abstractmethod
    def running_requests(self) -> list[Request]:
        """Return the requests with a seat, in order of service, for the check of invariants."""

    @abstractmethod
    def waiting_requests(self) -> list[Request]:
        """Return the waiting requests, for the check of invariants and for messages that name stuck requests."""

    @property
    def cache_blocks(self) -> tuple[int, int]:
        """Return the blocks of the KV cache that requests hold, and all its blocks."""
        return self.kv.held, self.kv.total

    @property
    def peak_use(self) -> PeakUse | None:
        """Return how much of its limits the engine has used; None if other limits may have changed the run even so."""
        return None

    def resume_fetched(self, request: Request) -> None:
        """Make a request schedulable whose blocks have arrived from the host."""
        raise NotImplementedError

    def holding_requests(self) -> list[Request]:
        """Return the requests that wait and hold blocks, for the check of invariants."""
        return []

    def held_blocks(self, request: Request) -> int:
        """Return the blocks that a running request holds, shared ones included, for the check of invariants."""
        return -(-self.computed_tokens(request) // self.rules.block_size)

    def context_before(self, request: Request) -> int:
        """Return the tokens that a decoding request had in its cache before the last scheduled round.

        For the check of invariants.
        """
        return self.computed_tokens(request) - 1

    @abstractmethod
    def computed_tokens(self, request: Request) -> int:
        """Return the tokens of a request whose KV is scheduled or stored, for the check of invariants."""


def _empty_cache(rules: EngineRules) -> KvCache:
    """Return the KV cache of a replica when it starts."""
    if rules.retention is not None:
        return RetainingKvCache(rules.kv_blocks, rules.block_size, rules.unit_blocks, rules.retention)
    return KvCache(rules.kv_blocks, rules.block_size, rules.prefix_caching, rules.unit_blocks)
