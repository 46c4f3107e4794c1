"""The clients of a run, and what stands between them and the engines: API servers, time limits, retries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random

import numpy as np
from simpy import Event

from catalogs.arrays import FloatArray
from catalogs.deployments.faults import Retries
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.compiled import Pool
from simulator.core.clock import ARRIVAL, Clock, Process
from simulator.core.outcomes import TIMED_OUT, UNFINISHED, RequestOutcomes
from simulator.core.request import Request
from simulator.engine.api_server import RequestIntake


class Frontend:
    """The API servers before the engines: for each model, those of the pools that take its prompts.

    Pools of one model that run different engines have the API servers of the first: the router is behind them.
    """

    __slots__ = ("_intakes", "_models", "_output_s")

    def __init__(self, pools: Sequence[Pool], models: Sequence[int] | None) -> None:
        """models: the place of the model that each request wants; None: all want the first."""
        self._models = models
        self._intakes, self._output_s = list[RequestIntake](), list[float]()
        for model in range(1 + max(pool.model for pool in pools)):
            taking = [pool for pool in pools if pool.model == model and pool.role != "decode"] or pools
            servers = sum(pool.replicas * pool.rules.attention_ranks for pool in taking)
            self._intakes.append(RequestIntake(taking[0].rules.host, max(1, servers)))
            self._output_s.append(taking[0].rules.host.output_s)

    def admit(self, index: int, now: float, input_tokens: int) -> float:
        """Return when a request that is sent now will be at the router, seconds of the run's clock."""
        return self._intakes[self._models[index] if self._models else 0].admit(now, input_tokens)

    def output_s(self, index: int) -> float:
        """Return the seconds from the router back to the client of a request."""
        return self._output_s[self._models[index] if self._models else 0]

    def reach_times_s(self, sent_s: Sequence[float], input_tokens: Sequence[int]) -> FloatArray:
        """Return when each request is at the router, seconds. Shape (n,)."""
        if self._models is None:
            return np.array(list(map(self._intakes[0].admit, sent_s, input_tokens)))
        return np.array(list(map(self.admit, range(len(sent_s)), sent_s, input_tokens)))


class ClosedLoopClients:
    """A fixed number of clients: each thinks, sends the next request of the workload, and waits for its answer.

    A client that thinks is a process. For one that does not, no time passes between an answer and the next request:
    that is sent as soon as the time of the answer is known.

    send: Sends a request (its place in the workload) at a time, seconds; it will be at the router later.
    """

    __slots__ = ("_answers", "_clock", "_concurrency", "_n", "_n_sent", "_n_thoughts", "_send", "_think_s")

    def __init__(self, clock: Clock, requests: RequestSet, send: Callable[[int, float], None]) -> None:
        self._clock, self._send, self._n = clock, send, requests.n
        self._concurrency = requests.concurrency or 0
        self._think_s = None if requests.think_s is None else requests.think_s.tolist()
        self._n_sent = self._n_thoughts = 0
        self._answers: dict[int, Event] = {}  # of thinking clients, by request: what they wait for

    def start(self) -> None:
        """All clients begin at time zero, with a thought of their own where they think at all."""
        for _ in range(min(self._concurrency, self._n)):
            if self._think_s is None:
                self._send_next(0.0)
            else:
                self._clock.process(self._client(self._think_s))

    def _client(self, think_s: list[float]) -> Process:
        answered_s = 0.0
        while self._n_thoughts < self._n:
            self._n_thoughts += 1
            yield self._clock.at(answered_s + think_s[self._n_thoughts - 1], ARRIVAL)
            answer = self._answers[self._n_sent] = self._clock.event()
            self._send_next(self._clock.now)
            answered_s = yield answer

    def _send_next(self, now: float) -> None:
        """Send the next request of the workload, if any is left."""
        index = self._n_sent
        if index < self._n:
            self._n_sent = index + 1
            self._send(index, now)

    def answered(self, index: int, at_s: float) -> None:
        """The client of a request has its answer at `at_s`, which may be later than now."""
        if self._think_s is None:
            self._send_next(at_s)
        else:
            self._answers.pop(index).succeed(at_s)


class ClientTimeouts:
    """What clients ask of the order in which they are served, and when they give up.

    The engine notices that a client is gone when the step on the device has ended; tokens in flight are lost. A request
    of a closed loop that is given up is followed by its client's next one.

    timeout_s: The limit for every request, seconds; inf: none.
    give_up: Ends a request (its place in the workload) for its client.
    cancel: Takes a request away from the replica that holds it.
    """

    def __init__(
        self,
        clock: Clock,
        requests: RequestSet,
        results: RequestOutcomes,
        timeout_s: float,
        give_up: Callable[[int], None],
        cancel: Callable[[int], None],
    ) -> None:
        self._clock, self._terms, self._results = clock, requests.terms, results
        self._timeout_s, self._give_up, self._cancel = timeout_s, give_up, cancel
        self._watched: set[int] = set()

    @property
    def needed(self) -> bool:
        """Whether any request has a limit, a priority or a deadline."""
        return self._terms is not None or self._timeout_s < inf

    @property
    def some_give_up(self) -> bool:
        """Whether any request has a limit."""
        return self._timeout_s < inf or (self._terms is not None and bool((self._terms.timeout_s < inf).any()))

    def begin(self, request: Request) -> bool:
        """A request reaches the router, perhaps again; return False where its client is gone."""
        index, terms = request.index, self._terms
        arrival_s, limit_s = self._results.arrival_s[index], self._timeout_s
        if terms is not None:
            request.priority = int(terms.priority[index])
            request.deadline_s = arrival_s + float(terms.deadline_s[index])
            limit_s = min(limit_s, float(terms.timeout_s[index]))
        if limit_s == inf or index in self._watched:
            return self._results.status[index] != TIMED_OUT
        self._watched.add(index)
        if arrival_s + limit_s <= self._clock.now:
            self._end(index)
            return False
        self._clock.process(self._wait(index, arrival_s + limit_s))
        return True

    def _wait(self, index: int, until_s: float) -> Process:
        """The client of a request waits for its answer, and gives up if it has none by then."""
        yield self._clock.at(until_s, ARRIVAL)
        if self._results.status[index] == UNFINISHED:
            self._end(index)
            self._cancel(index)

    def _end(self, index: int) -> None:
        self._results.status[index] = TIMED_OUT
        self._give_up(index)


class RetryTracker:
    """Requests that were lost with their replica, and when they are sent again.

    retries: None: each is sent again at once, as often as it takes.
    """

    def __init__(self, retries: Retries | None) -> None:
        self.n = 0  # lost requests, and those with a computed prompt that no replica was left to decode
        self.n_waiting = 0  # to be sent again
        self._retries = retries
        self._counts: dict[int, int] = {}
        self._jitter = Random(0)

    def wait_s(self, index: int) -> float | None:
        """The request was lost once more: return the seconds until it is sent again; None: it has failed."""
        self.n += 1
        if self._retries is None:
            return 0.0
        self._counts[index] = count = self._counts.get(index, 0) + 1
        return None if count > self._retries.limit else self._retries.wait_s(count, self._jitter.random())
