"""Attention data parallelism as engines run it: a scheduler, a queue and a cache for each rank, and steps that begin
together, because experts are shared and every layer waits for everybody's tokens.

A request is given to a rank when it arrives and stays there. In each step every rank schedules for itself; one that has
nothing runs a dummy batch (vLLM's execute_dummy_batch, SGLang's idle batch, TensorRT-LLM's dummy request). When no rank
has work the group is idle.

TensorRT-LLM balances (attention_dp_config): with `balance_steps` prompts start only in a step in which every rank has
one waiting, or some rank has nothing to generate, or after so many steps without either.

Last tokens where ranks step together: one may prefill, and its decodes stand still, while others go on.

The caches of ranks that step together, as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import cast

from simulator.cache.kv_cache import KvCache
from simulator.core.batch import Batch, together
from simulator.core.request import Request
from simulator.schedulers.base import Headroom, Scheduler
from simulator.schedulers.completion_rounds import NEVER, CompletionRounds
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.dp_dispatch import RankDispatch
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.trtllm import AttentionDpBalance, MaxUtilization


class _Rank:
    """One rank as dispatch sees it."""

    def __init__(self, scheduler: ContinuousBatching, group: Lockstep) -> None:
        self.scheduler, self._group = scheduler, group
        self.n_requests = self.prompt_tokens = 0
        self.idle = True  # it was asked since it last had something, and had nothing

    @property
    def n_running(self) -> int:
        return self.scheduler.n_running

    @property
    def n_waiting(self) -> int:
        return self.scheduler.n_waiting

    @property
    def used_fraction(self) -> float:
        kv, ahead = self.scheduler.kv, self.scheduler.blocks_for(self._group.rounds_ahead())
        return (kv.held + ahead) / max(1, kv.total)


class Lockstep(Scheduler):
    """See the module. `rules` are those of the whole group; `ranks` have schedulers of their own, with theirs."""

    def __init__(self, rules: EngineRules, ranks: Sequence[ContinuousBatching], dispatch: RankDispatch) -> None:
        self._group = [_Rank(scheduler, self) for scheduler in ranks]
        self.rounds_ahead: Callable[[], int] = lambda: 0  # rounds that a run of steps has not booked yet
        self._dispatch = dispatch
        self._place: dict[Request, int] = {}  # the rank of each request that is here
        self._newest: Batch | None = None  # scheduled last
        balances = rules.balance_steps > 0 and isinstance(ranks[0], MaxUtilization)
        self._balance = AttentionDpBalance(rules.balance_steps) if balances else None
        self._going: list[ContinuousBatching] = []  # whom a run of steps asks; an idle rank may get a request meanwhile
        self._stalls = not ranks[0].mixes_phases  # a rank may prefill alone while others decode
        super().__init__(rules, cast(KvCache, RankCaches([scheduler.kv for scheduler in ranks])))
        self.ranks = tuple(ranks)
        self.rounds = RankRounds(len(ranks), self._place.__getitem__)

    def add(self, request: Request) -> None:
        place = self._dispatch.choose(request, self._group)
        rank = self._group[place]
        self._place[request] = place
        rank.n_requests += 1
        rank.prompt_tokens += request.input_tokens
        rank.idle = False
        rank.scheduler.add(request)

    def rank_of(self, request: Request) -> ContinuousBatching:
        """The scheduler it was given to."""
        return self._group[self._place[request]].scheduler

    def schedule(self) -> Batch | None:
        if self.preempted:
            self.preempted = []
        if self._balance is not None:
            self._count(self._balance)
        parts = [self._part(rank) for rank in self._group]
        if not any(parts):
            return None
        self._newest = batch = together(parts)
        if self._stalls and batch.decodes:
            for place, part in enumerate(parts):
                if part is None or not part.decodes:
                    self.rounds.stand_still(place)
        return batch

    def _part(self, rank: _Rank) -> Batch | None:
        if rank.idle:
            return None
        scheduler = rank.scheduler
        batch = scheduler.schedule()
        if scheduler.preempted:
            self.preempted += scheduler.preempted
        if batch is None:
            rank.idle = not scheduler.n_running and not scheduler.n_waiting
        return batch

    def _count(self, balance: AttentionDpBalance) -> None:
        balance.count(self._even)
        for rank in self.ranks:
            assert isinstance(rank, MaxUtilization)
            rank.holds_prompts = balance.holds

    @property
    def _even(self) -> bool:
        return all(rank.n_waiting for rank in self.ranks) or not all(rank.decodes.n for rank in self.ranks)

    def retire(self, request: Request) -> None:
        self.rank_of(request).retire(request)
        if self.rules.speculation is not None and self._newest is not None:
            self._newest.accepted = sum(part.accepted for part in self._newest.ranks if part is not None)

    def leaving(self, request: Request) -> tuple[Request, ...]:
        return self.rank_of(request).leaving(request)

    def withdraw(self, request: Request) -> bool:
        gone = self.rank_of(request).withdraw(request)
        if gone:
            self._forget(request)
        return gone

    def release(self, request: Request) -> None:
        self.rank_of(request).release(request)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        rank = self._group[self._place.pop(request)]
        rank.n_requests -= 1
        rank.prompt_tokens -= request.input_tokens

    def park(self, request: Request) -> None:
        self.rank_of(request).park(request)

    @property
    def reach(self) -> Headroom | None:
        found = [rank.reach for rank in self.ranks]
        known = [reach for reach in found if reach is not None]
        if self._balance is not None or len(known) < len(found):
            return None
        return Headroom(len(known) * max(r.seats for r in known), len(known) * min(r.spare_blocks for r in known))

    def quiet_rounds(self, batch: Batch, most: int) -> int:
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
        for scheduler in self._going:
            scheduler.skip(rounds)
        if self._balance is not None:
            self._balance.count(self._even, rounds)

    def blocks_for(self, rounds: int) -> int:
        return sum(rank.blocks_for(rounds) for rank in self.ranks)

    @property
    def blocked(self) -> bool:
        return self._balance is None and all(rank.blocked for rank in self.ranks)

    @property
    def longest_queue(self) -> int:
        """The place of the rank with the most waiting requests."""
        return max(range(len(self.ranks)), key=lambda place: self.ranks[place].n_waiting)

    @property
    def n_running(self) -> int:
        return sum(rank.n_running for rank in self.ranks)

    @property
    def n_waiting(self) -> int:
        return sum(rank.n_waiting for rank in self.ranks)

    def running_requests(self) -> list[Request]:
        return [request for rank in self.ranks for request in rank.running_requests()]

    def waiting_requests(self) -> list[Request]:
        return [request for rank in self.ranks for request in rank.waiting_requests()]

    def holding_requests(self) -> list[Request]:
        return [request for rank in self.ranks for request in rank.holding_requests()]

    def held_blocks(self, request: Request) -> int:
        return self.rank_of(request).held_blocks(request)

    def computed_tokens(self, request: Request) -> int:
        return self.rank_of(request).computed_tokens(request)


class RankRounds(CompletionRounds):
    """Rounds are steps in which any rank decodes; each rank lags behind by those it stood still in. `rank_of`: where
    a request decodes."""

    __slots__ = ("_behind", "_heaps", "_rank_of")

    def __init__(self, n_ranks: int, rank_of: Callable[[Request], int]) -> None:
        super().__init__()
        self._rank_of = rank_of
        self._behind = [0] * n_ranks
        self._heaps: list[list[tuple[int, int, Request]]] = [[] for _ in range(n_ranks)]  # rounds of the rank itself

    def stand_still(self, rank: int) -> None:
        """It does not decode in the round that comes."""
        self._behind[rank] += 1
        self._look()

    def foresee(self, request: Request, rounds: int) -> None:
        if request.advances is not None:
            rounds = request.advances.foresee(rounds)
        self._serial += 1
        self._live[request] = self._serial
        if rounds:
            rank = self._rank_of(request)
            heappush(self._heaps[rank], (self.rounds - self._behind[rank] + rounds, self._serial, request))
            self._look()

    def _look(self) -> None:
        ends = (heap[0][0] + behind for heap, behind in zip(self._heaps, self._behind, strict=True) if heap)
        self.due_round = min(ends, default=NEVER)

    def due(self) -> Iterator[Request]:
        for heap, behind in zip(self._heaps, self._behind, strict=True):
            while heap and heap[0][0] + behind <= self.rounds:
                _, serial, request = heappop(heap)
                if self._live.get(request) == serial:
                    yield request
        self._look()

    def rounds_left(self) -> int:
        live = self._live
        for heap in self._heaps:
            while heap and live.get(heap[0][2]) != heap[0][1]:
                heappop(heap)
        self._look()
        return self.due_round - self.rounds if self.due_round < NEVER else 0


class RankCaches:
    """The caches of all ranks, counted together; the part of KvCache that is asked of a replica."""

    def __init__(self, caches: Sequence[KvCache]) -> None:
        self._caches = caches
        self.total = sum(kv.total for kv in caches)
        self.block_size, self.unit_blocks, self.unit_tokens = (
            caches[0].block_size,
            caches[0].unit_blocks,
            caches[0].unit_tokens,
        )

    @property
    def available(self) -> int:
        return sum(kv.available for kv in self._caches)

    @property
    def held(self) -> int:
        return sum(kv.held for kv in self._caches)

    @property
    def cached(self) -> int:
        return sum(kv.cached for kv in self._caches)

    @property
    def min_available(self) -> int:
        """As if all had been as full as the fullest was: a full rank's requests do not fit elsewhere."""
        return len(self._caches) * min(kv.min_available for kv in self._caches)
