"""Attention data parallelism as engines run it: a scheduler, a queue and a cache for each rank, and steps that begin
together, because experts are shared and every layer waits for everybody's tokens.

A request is given to a rank when it arrives and stays there. In each step every rank schedules for itself; one that has
nothing runs a dummy batch (vLLM's execute_dummy_batch, SGLang's idle batch, TensorRT-LLM's dummy request). When no rank
has work the group is idle.

TensorRT-LLM balances (attention_dp_config): with `balance_steps` prompts start only in a step in which every rank has
one waiting, or some rank has nothing to generate, or after so many steps without either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from simulator.batch import Batch, together
from simulator.kv_cache import KvCache
from simulator.rank_caches import RankCaches
from simulator.rank_dispatch import Dispatch
from simulator.rank_rounds import RankRounds
from simulator.reach import Reach
from simulator.request import Request
from simulator.rules import EngineRules
from simulator.schedulers.balance import Balance
from simulator.schedulers.base import Scheduler
from simulator.schedulers.batching import ContinuousBatching
from simulator.schedulers.trtllm import MaxUtilization


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

    def __init__(self, rules: EngineRules, ranks: Sequence[ContinuousBatching], dispatch: Dispatch) -> None:
        self._group = [_Rank(scheduler, self) for scheduler in ranks]
        self.rounds_ahead: Callable[[], int] = lambda: 0  # rounds that a run of steps has not booked yet
        self._dispatch = dispatch
        self._place: dict[Request, int] = {}  # the rank of each request that is here
        self._newest: Batch | None = None  # scheduled last
        balances = rules.balance_steps > 0 and isinstance(ranks[0], MaxUtilization)
        self._balance = Balance(rules.balance_steps) if balances else None
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

    def _count(self, balance: Balance) -> None:
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
    def reach(self) -> Reach | None:
        found = [rank.reach for rank in self.ranks]
        known = [reach for reach in found if reach is not None]
        if self._balance is not None or len(known) < len(found):
            return None
        return Reach(len(known) * max(r.seats for r in known), len(known) * min(r.spare_blocks for r in known))

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
