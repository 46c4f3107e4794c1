"""Attention data parallelism: each rank has a scheduler, queue and cache, and the steps of all ranks begin together.

The steps begin together because the ranks share experts, and every layer waits for the tokens of all ranks.

A request is assigned to a rank when it arrives and stays there. In each step every rank schedules for itself. A rank
without work runs a dummy batch (vLLM's execute_dummy_batch, SGLang's idle batch, TensorRT-LLM's dummy request). When no
rank has work the group is idle.

TensorRT-LLM balances the ranks (attention_dp_config): with `balance_steps`, prompts start only in a step in which every
rank has one waiting, or some rank has nothing to generate, or after this many steps without either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import cast

from simulator.cache.kv_cache import KvCache
from simulator.core.batch import Batch, together
from simulator.core.completion_rounds import NEVER, CompletionRounds
from simulator.core.request import Request
from simulator.schedulers.base import Scheduler
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.dp_dispatch import Rank, RankDispatch
from simulator.schedulers.rules import EngineRules, PeakUse
from simulator.schedulers.trtllm import AttentionDpBalance, MaxUtilization


class Lockstep(Scheduler):
    """The scheduler of ranks whose steps begin together.

    `rules` are those of the whole group. Each of `ranks` is the scheduler of one rank, with the rules of one rank.
    """

    def __init__(self, rules: EngineRules, ranks: Sequence[ContinuousBatching], dispatch: RankDispatch) -> None:
        self.rounds_ahead: Callable[[], int] = lambda: 0  # rounds of a run of steps that are not recorded yet
        self._group = [Rank(scheduler, lambda: self.rounds_ahead()) for scheduler in ranks]
        self.dispatch = dispatch
        self._place: dict[Request, int] = {}  # the rank of each request
        self._newest: Batch | None = None  # the last scheduled batch
        balances = rules.balance_steps > 0 and isinstance(ranks[0], MaxUtilization)
        self._balance = AttentionDpBalance(rules.balance_steps) if balances else None
        # The ranks of a run of steps. An idle rank may get a request in the meantime.
        self._going: list[ContinuousBatching] = []
        self._stalls = not ranks[0].mixes_phases  # a rank may prefill alone while others decode
        super().__init__(rules, cast(KvCache, RankCaches([scheduler.kv for scheduler in ranks])))
        self.ranks = tuple(ranks)
        self.rounds = RankRounds(len(ranks), self._place.__getitem__)

    def add(self, request: Request) -> None:
        """Assign a request to a rank."""
        place = self.dispatch.choose(request.index, self._group)
        rank = self._group[place]
        self._place[request] = place
        rank.n_requests += 1
        rank.prompt_tokens += request.input_tokens
        rank.idle = False
        rank.scheduler.add(request)

    def rank_of(self, request: Request) -> ContinuousBatching:
        """Return the scheduler of a request's rank."""
        return self._group[self._place[request]].scheduler

    def schedule(self) -> Batch | None:
        """Return the batches of all ranks as one, or None if no rank can run anything."""
        if self.preempted:
            self.preempted = []
        if self._balance is not None:
            self._balance.count(self._even)
            for scheduler in self.ranks:
                assert isinstance(scheduler, MaxUtilization)
                scheduler.holds_prompts = self._balance.holds
        parts = [self._part(rank) for rank in self._group]
        if not any(parts):
            return None
        self._newest = batch = together(parts)
        if self._stalls and batch.decodes:
            for place, part in enumerate(parts):
                if part is None or not part.decodes:
                    self.rounds.stand_still(place)
        return batch

    def _part(self, rank: Rank) -> Batch | None:
        if rank.idle:
            return None
        scheduler = rank.scheduler
        batch = scheduler.schedule()
        if scheduler.preempted:
            self.preempted += scheduler.preempted
        if batch is None:
            rank.idle = not scheduler.n_running and not scheduler.n_waiting
        return batch

    @property
    def _even(self) -> bool:
        return all(rank.n_waiting for rank in self.ranks) or not all(rank.decodes.n for rank in self.ranks)

    def retire(self, request: Request) -> None:
        """Stop scheduling a request whose last token has just been scheduled."""
        self.rank_of(request).retire(request)
        if self.rules.speculation is not None and self._newest is not None:
            self._newest.accepted = sum(part.accepted for part in self._newest.ranks if part is not None)

    def leaving(self, request: Request) -> tuple[Request, ...]:
        """Return the requests that end with the step of the last token of `request`."""
        return self.rank_of(request).leaving(request)

    def withdraw(self, request: Request) -> bool:
        """Remove a request that its client has cancelled; return False if its rank cannot."""
        gone = self.rank_of(request).withdraw(request)
        if gone:
            self._forget(request)
        return gone

    def release(self, request: Request) -> None:
        """Free the seat and the blocks of a request."""
        self.rank_of(request).release(request)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        rank = self._group[self._place.pop(request)]
        rank.n_requests -= 1
        rank.prompt_tokens -= request.input_tokens

    def hold_for_transfer(self, request: Request) -> None:
        """Free the seat of a request whose blocks are sent to another replica."""
        self.rank_of(request).hold_for_transfer(request)

    def restore(self, places: dict[Request, int], idle: list[bool]) -> None:
        """Take over the ranks of all unfinished requests from `simulator/engine/fast_lockstep.py`.

        Args:
            places: The rank of each request.
            idle: Whether each rank had nothing to schedule since its last request.
        """
        self._place.update(places)
        for request, place in places.items():
            self._group[place].n_requests += 1
            self._group[place].prompt_tokens += request.input_tokens
        for rank, nothing in zip(self._group, idle, strict=True):
            rank.idle = nothing

    @property
    def peak_use(self) -> PeakUse | None:
        """How much of its limits the group has used, as if all ranks were as full as the fullest; None if unknown."""
        n, known = len(self.ranks), [use for rank in self.ranks if (use := rank.peak_use) is not None]
        if self._balance is not None or len(known) < n:
            return None
        return PeakUse(n * max(use.seats for use in known), n * min(use.free_blocks for use in known))

    def quiet_rounds(self, batch: Batch, most: int) -> int:
        """Return the number of further decode steps of all ranks that involve no decision."""
        if self._balance is not None and self.n_waiting and not self._even:
            most = min(most, self._balance.left)
        self._going = [rank.scheduler for rank in self._group if not rank.idle]
        for rank, part in zip(self._group, batch.ranks, strict=True):
            if most <= 0:
                return 0
            if isinstance(part, Batch):
                most = rank.scheduler.quiet_rounds(part, most)
            elif not rank.idle:
                return 0
        return max(0, most)

    def skip(self, rounds: int) -> None:
        """Schedule `rounds` rounds of the same decodes at once."""
        for scheduler in self._going:
            scheduler.skip(rounds)
        if self._balance is not None:
            self._balance.count(self._even, rounds)

    def blocks_for(self, rounds: int) -> int:
        """Return the blocks that `skip(rounds)` would take."""
        return sum(rank.blocks_for(rounds) for rank in self.ranks)

    @property
    def blocked(self) -> bool:
        """Return whether no rank can admit a waiting request before something is released."""
        return self._balance is None and all(rank.blocked for rank in self.ranks)

    @property
    def n_running(self) -> int:
        """Return the number of requests with a seat, on all ranks."""
        return sum(rank.n_running for rank in self.ranks)

    @property
    def n_waiting(self) -> int:
        """Return the number of waiting requests, on all ranks."""
        return sum(rank.n_waiting for rank in self.ranks)

    def running_requests(self) -> list[Request]:
        """Return the requests with a seat, rank by rank."""
        return [request for rank in self.ranks for request in rank.running_requests()]

    def waiting_requests(self) -> list[Request]:
        """Return the waiting requests, rank by rank."""
        return [request for rank in self.ranks for request in rank.waiting_requests()]

    def holding_requests(self) -> list[Request]:
        """Return the requests that wait and hold blocks, rank by rank."""
        return [request for rank in self.ranks for request in rank.holding_requests()]

    def held_blocks(self, request: Request) -> int:
        """Return the blocks that a running request holds on its rank."""
        return self.rank_of(request).held_blocks(request)

    def computed_tokens(self, request: Request) -> int:
        """Return the tokens of a request whose KV is scheduled or stored."""
        return self.rank_of(request).computed_tokens(request)


class RankRounds(CompletionRounds):
    """The rounds in which requests schedule their last tokens where ranks step together.

    Rounds are steps in which any rank decodes. While one rank prefills, its decodes pause and the others continue, so
    each rank lags behind by the rounds in which it paused. `rank_of` returns the rank of a request.
    """

    def __init__(self, n_ranks: int, rank_of: Callable[[Request], int]) -> None:
        super().__init__()
        self._rank_of = rank_of
        self._behind = [0] * n_ranks
        # Last tokens by rank, in rounds of the rank itself.
        self._heaps: list[list[tuple[int, int, Request]]] = [[] for _ in range(n_ranks)]

    def stand_still(self, rank: int) -> None:
        """Record that a rank does not decode in the next round."""
        self._behind[rank] += 1
        self._update_due_round()

    def _push(self, request: Request, rounds: int) -> None:
        rank = self._rank_of(request)
        heappush(self._heaps[rank], (self.rounds - self._behind[rank] + rounds, self._serial, request))
        self._update_due_round()

    def restore(self, rounds: int, serial: int, due: list[tuple[int, int, Request]], ending: Iterable[Request]) -> None:
        """Take over the decoding requests from `simulator/engine/fast_lockstep.py`, with the arguments of the base."""
        super().restore(rounds, serial, [], ending)
        for last, number, request in due:  # the numbers differ only within a rank
            self._live[request] = number
            heappush(self._heaps[self._rank_of(request)], (last, number, request))
        self._update_due_round()

    def _update_due_round(self) -> None:
        ends = (heap[0][0] + behind for heap, behind in zip(self._heaps, self._behind, strict=True) if heap)
        self.due_round = min(ends, default=NEVER)

    def due(self) -> Iterator[Request]:
        """Yield the requests whose round has come, once."""
        for heap, behind in zip(self._heaps, self._behind, strict=True):
            while heap and heap[0][0] + behind <= self.rounds:
                _, serial, request = heappop(heap)
                if self._live.get(request) == serial:
                    yield request
        self._update_due_round()

    def rounds_left(self) -> int:
        """Return the rounds until the next last token; 0 if there is no decoding request."""
        live = self._live
        for heap in self._heaps:
            while heap and live.get(heap[0][2]) != heap[0][1]:
                heappop(heap)
        self._update_due_round()
        return self.due_round - self.rounds if self.due_round < NEVER else 0


class RankCaches:
    """The caches of all ranks, counted together; the part of `KvCache` that a replica reads."""

    def __init__(self, caches: Sequence[KvCache]) -> None:
        self._caches = caches
        self.total = sum(kv.total for kv in caches)
        self.block_size, self.unit_blocks = caches[0].block_size, caches[0].unit_blocks
        self.units_in, self.blocks_of = caches[0].units_in, caches[0].blocks_of

    @property
    def available(self) -> int:
        """Return the free and cached blocks of all ranks."""
        return sum(kv.available for kv in self._caches)

    @property
    def held(self) -> int:
        """Return the blocks that requests hold on all ranks."""
        return sum(kv.held for kv in self._caches)

    @property
    def min_available(self) -> int:
        """Return the fewest available blocks, as if all ranks had been as full as the fullest.

        The requests of a full rank do not fit elsewhere.
        """
        return len(self._caches) * min(kv.min_available for kv in self._caches)
