"""Clients that give up, and what they ask of the order in which they are served.

What stands before the engines: for each model, the API servers of the pools that take its prompts.

Pools of one model that run different engines have the API servers of the first: who gets a request is decided behind
them, when it has been read.

The clients of a closed loop: each thinks, sends the next request of the workload, and waits for its answer.

Requests that were lost with their replica, and when they are sent again; n counts beside them those whose prompt was
computed when nobody was left to decode them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.deployments.faults import Retries
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.compiled import Pool
from simulator.core.clock import ARRIVAL, Clock, Tick
from simulator.core.outcomes import TIMED_OUT, UNFINISHED
from simulator.core.request import Request
from simulator.engine.api_server import RequestIntake
from simulator.schedulers.rules import EngineRules

if TYPE_CHECKING:
    from simulator.cluster.cluster import Cluster


class ClientTimeouts:
    """When clients give up. The engine notices when the step on the device has ended; tokens in flight are lost.

    A request of a closed loop that is given up is followed by its client's next one.
    """

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster, self._timeout_s = cluster, timeout_s
        self._watched: set[int] = set()

    @classmethod
    def of(cls, cluster: Cluster, rules: Sequence[EngineRules]) -> ClientTimeouts | None:
        """None where nobody gives up and nobody asks for anything."""
        limits = [each.queueing.timeout_s for each in rules if each.queueing.timeout_s is not None]
        timeout_s = min(limits, default=inf)
        terms = cluster.requests.terms
        if terms is None and timeout_s == inf:
            return None
        gives_up = timeout_s < inf or (terms is not None and bool((terms.timeout_s < inf).any()))
        if gives_up and any(opened.pool.role != "both" for opened in cluster.pools):
            raise InputError("timeouts are not simulated with prefill and decode pools yet", "timeout_s", "null")
        return cls(cluster, timeout_s)

    def begin(self, request: Request) -> bool:
        """A request reaches the router, perhaps again; False where its client is gone."""
        cluster, index = self._cluster, request.index
        arrival_s, terms = cluster.results.arrival_s[index], cluster.requests.terms
        limit_s = self._timeout_s
        if terms is not None:
            request.priority = int(terms.priority[index])
            request.deadline_s = arrival_s + float(terms.deadline_s[index])
            limit_s = min(limit_s, float(terms.timeout_s[index]))
        if limit_s == inf or index in self._watched:
            return cluster.results.status[index] != TIMED_OUT
        self._watched.add(index)
        if arrival_s + limit_s <= cluster.clock.now:
            self._give_up(index)
            return False
        cluster.clock.at(arrival_s + limit_s, ARRIVAL, [partial(self._expire, index)])
        return True

    def _give_up(self, index: int) -> None:
        self._cluster.results.status[index] = TIMED_OUT
        self._cluster.answered(index)

    def _expire(self, index: int, _: Tick) -> None:
        cluster = self._cluster
        if cluster.results.status[index] != UNFINISHED:
            return
        self._give_up(index)
        number = cluster.results.replica[index]  # the last that had it
        if number >= 0 and cluster.replicas[number].died_s > cluster.clock.now:
            replica = cluster.replicas[number]
            held = next((request for request in replica.held_requests() if request.index == index), None)
            if held is not None:
                replica.abandon(held)


class Frontend:
    """models: which model each request wants, by its place; None: all the first."""

    __slots__ = ("_intakes", "_models", "_output_s")

    def __init__(self, pools: Sequence[Pool], models: Sequence[int] | None) -> None:
        self._models = models
        self._intakes, self._output_s = list[RequestIntake](), list[float]()
        for model in range(1 + max(pool.model for pool in pools)):
            taking = [pool for pool in pools if pool.model == model and pool.role != "decode"] or pools
            servers = sum(pool.replicas * pool.rules.attention_ranks for pool in taking)
            self._intakes.append(RequestIntake(taking[0].rules.host, max(1, servers)))
            self._output_s.append(taking[0].rules.host.output_s)

    def admit(self, index: int, now: float, input_tokens: int) -> float:
        """A request is sent; when it will be at an engine, seconds of the run's clock."""
        return self._intakes[self._models[index] if self._models else 0].admit(now, input_tokens)

    def output_s(self, index: int) -> float:
        """Seconds from there to its client."""
        return self._output_s[self._models[index] if self._models else 0]

    def reach_times_s(self, sent_s: Sequence[float], input_tokens: Sequence[int]) -> FloatArray:
        """When each request is at an engine, (n,)."""
        if self._models is None:
            return np.array(list(map(self._intakes[0].admit, sent_s, input_tokens)))
        return np.array(list(map(self.admit, range(len(sent_s)), sent_s, input_tokens)))


class ClosedLoopClients:
    """send: what sends a request of the workload (its place) at a time (seconds). Requests leave in workload order."""

    __slots__ = ("_clock", "_concurrency", "_n", "_n_begun", "_n_sent", "_send", "_think_s")

    def __init__(self, clock: Clock, requests: RequestSet, send: Callable[[int, float], None]) -> None:
        self._clock, self._send, self._n = clock, send, requests.n
        self._concurrency = requests.concurrency or 0
        self._think_s = None if requests.think_s is None else requests.think_s.tolist()
        self._n_begun = self._n_sent = 0

    def start(self) -> None:
        """All of them begin at time zero, with a thought of their own where they think at all."""
        for _ in range(min(self._concurrency, self._n)):
            self.answered(0.0)

    def answered(self, at_s: float) -> None:
        """One of them has its answer then. It goes on while requests are left."""
        if self._n_begun == self._n:
            return
        self._n_begun += 1
        if self._think_s is None:
            self._send(self._n_begun - 1, at_s)
        else:
            self._clock.at(at_s + self._think_s[self._n_begun - 1], ARRIVAL, [self._wake])

    def _wake(self, _: Tick) -> None:
        self._n_sent += 1
        self._send(self._n_sent - 1, self._clock.now)


class RetryTracker:
    """Counts them by request. No retries given: each is sent again at once, as often as it takes."""

    def __init__(self, retries: Retries | None) -> None:
        self.n = 0
        self.n_waiting = 0  # to be sent again
        self._retries = retries
        self._counts: dict[int, int] = {}
        self._jitter = Random(0)

    def wait_s(self, index: int) -> float | None:
        """It was lost once more: how long until it is sent again; None: it has failed."""
        self.n += 1
        if self._retries is None:
            return 0.0
        self._counts[index] = count = self._counts.get(index, 0) + 1
        return None if count > self._retries.limit else self._retries.wait_s(count, self._jitter.random())
