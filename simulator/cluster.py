"""All replicas of a deployment behind one router, fed by one set of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from catalogs.block_hashes import EngineBlocks
from catalogs.errors import InputError
from catalogs.request_set import RequestSet
from simulator.clock import ARRIVAL, Clock, Tick
from simulator.laws import LawBroken, check_drained
from simulator.replica import Replica, ReplicaContext, StepTimer
from simulator.request import Request
from simulator.results import NOT_SENT, TOO_LARGE, TOO_LONG, TOO_WIDE, UNFINISHED, Results
from simulator.router import make_router
from simulator.rules import EngineRules
from simulator.schedulers import POLICIES


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run, not what: none of these changes a result except router and horizon_s."""

    fast_forward: bool = True
    seed: int | None = None  # for materialising a workload; the simulation itself draws nothing
    router: str = "round_robin"
    horizon_s: float | None = None  # stop after this time; what is unfinished stays so
    check_laws: bool = False  # check every law after every schedule (slow)


class Cluster:
    """One simulated run. Build it, call `run` once, read `results` and the replicas' logs."""

    def __init__(
        self, rules: EngineRules, timer: StepTimer, requests: RequestSet, n_replicas: int, options: RunOptions
    ) -> None:
        _check_requests(requests)
        self._keys, unit_blocks = _content_keys(requests, rules)
        self._input_tokens: list[int] = requests.input_tokens.tolist()
        self._output_tokens: list[int] = requests.output_tokens.tolist()
        # Workloads do not say which max_tokens their clients declare: all declare the same, which is enough for each.
        declared = max(rules.max_output_tokens, max(self._output_tokens, default=0))
        self.rules = rules = replace(rules, unit_blocks=unit_blocks, max_output_tokens=declared)
        self.requests = requests
        self.options = options
        self.results = Results(requests.n)
        self.clock = Clock()
        self._router = make_router(options.router)
        host = rules.host
        delays_s = host.request_s + host.request_s_per_input_token * requests.input_tokens
        self._delay_s: list[float] = delays_s.tolist()  # from the client to the engine core
        context = ReplicaContext(
            clock=self.clock,
            rules=rules,
            timer=timer,
            results=self.results,
            output_tokens=self._output_tokens,
            on_finish=self._answered,
            fast_forward=options.fast_forward,
            check_laws=options.check_laws,
        )
        self.replicas = [Replica(i, context) for i in range(n_replicas)]
        self._n_sent = 0
        self._on_reach = [self._reach_open_loop if requests.concurrency is None else self._reach_closed_loop]
        self._order: list[int] = []  # open loop: requests in the order they reach an engine
        self._reach_s: list[float] = []

    def run(self) -> None:
        """Let time pass until everything is served, or until the horizon."""
        if self.requests.concurrency is None:
            self._start_open_loop()
        else:
            for _ in range(min(self.requests.concurrency, self.requests.n)):
                self._send_next(0.0)
        horizon_s = self.options.horizon_s
        if horizon_s is not None:
            while self.clock.peek() <= horizon_s:
                self.clock.step()
            self._stop(horizon_s)
            return
        self.clock.run()
        if self.options.check_laws:
            self._check_end()

    def _start_open_loop(self) -> None:
        self.results.arrival_s[:] = type(self.results.arrival_s)("d", self.requests.arrival_s.tolist())
        reach_s = self.requests.arrival_s + np.array(self._delay_s)
        order = np.argsort(reach_s, kind="stable")
        self._order, self._reach_s = order.tolist(), reach_s[order].tolist()
        if self._order:
            self.clock.at(self._reach_s[0], ARRIVAL, self._on_reach, 0)

    def _reach_open_loop(self, tick: Tick) -> None:
        position = tick.payload
        if position + 1 < len(self._order):
            self.clock.at(self._reach_s[position + 1], ARRIVAL, self._on_reach, position + 1)
        self._reach(self._order[position])

    def _send_next(self, now: float) -> None:
        """A client of the closed loop sends the next request of the workload, if one is left."""
        index = self._n_sent
        if index < self.requests.n:
            self._n_sent += 1
            self.results.arrival_s[index] = now
            self.clock.at(now + self._delay_s[index], ARRIVAL, self._on_reach, index)

    def _reach_closed_loop(self, tick: Tick) -> None:
        self._reach(tick.payload)

    def _reach(self, index: int) -> None:
        """The request is tokenised: route it, or reject it."""
        rejection = self._rejection(index)
        if rejection:
            self.results.status[index] = rejection
            self._answered()
            return
        request = Request(index, self._input_tokens[index], self._keys[index] if self._keys else ())
        replica = self.replicas[self._router.choose(request, self.replicas)]
        self.results.status[index] = UNFINISHED
        self.results.replica[index] = replica.index
        replica.receive(request)

    def _rejection(self, index: int) -> int:
        rules = self.rules
        tokens = self._input_tokens[index] + self._output_tokens[index]
        if tokens > rules.max_model_len:
            return TOO_LONG
        if not rules.chunked_prefill:  # all it may have to compute at once must fit in one step
            longest = tokens if POLICIES[rules.policy].preempts else self._input_tokens[index]
            if longest > rules.max_num_batched_tokens:
                return TOO_WIDE
        if -(-(tokens - 1) // rules.block_size) > rules.kv_blocks:
            return TOO_LARGE
        return 0

    def _answered(self) -> None:
        """A request was served or rejected: its client sends the next one."""
        if self.requests.concurrency is not None:
            self._send_next(self.clock.now + self.rules.host.output_s)

    def _stop(self, horizon_s: float) -> None:
        for replica in self.replicas:
            replica.stop(horizon_s)
        status, arrival_s = self.results.status, self.results.arrival_s
        for index, sent_s in enumerate(arrival_s):
            if status[index] == NOT_SENT and sent_s <= horizon_s:
                status[index] = UNFINISHED

    def _check_end(self) -> None:
        for replica in self.replicas:
            check_drained(replica.scheduler)
        results = self.results
        open_ends = [i for i, status in enumerate(results.status) if status in (NOT_SENT, UNFINISHED)]
        if open_ends:
            raise LawBroken(f"arrived != completed + rejected: request {open_ends[0]} was never answered")


def _check_requests(requests: RequestSet) -> None:
    if requests.n and (int(requests.input_tokens.min()) < 1 or int(requests.output_tokens.min()) < 1):
        raise InputError("every request needs at least one input and one output token")
    if requests.concurrency is not None and requests.concurrency < 1:
        raise InputError("closed-loop concurrency must be at least 1", requests.concurrency)


def _content_keys(requests: RequestSet, rules: EngineRules) -> tuple[Sequence[tuple[int, ...]], int]:
    """(content keys by request, KV blocks per key); no keys where nothing is shared or caching is off."""
    hashes = requests.block_hashes
    if hashes is None or not rules.prefix_caching:
        return (), 1
    if requests.hash_block_tokens % rules.block_size == 0:
        return hashes, requests.hash_block_tokens // rules.block_size
    return EngineBlocks(hashes, requests.hash_block_tokens, rules.block_size), 1
