"""The clients of a run, and the API servers, timeouts and retries between clients and engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    """The API servers in front of the engines: for each model, those of the pools that accept its prompts.

    Pools of one model that run different engines use the API servers of the first pool, because the router is behind
    them.
    """

    __slots__ = ("_intakes", "_models", "_output_s")

    def __init__(self, pools: Sequence[Pool], models: Sequence[int] | None, random_prompts: bool = False) -> None:
        """Create the API servers; `models` holds each request's model index, or None if all use the first model."""
        self._models = models
        self._intakes, self._output_s = list[RequestIntake](), list[float]()
        for model in range(1 + max(pool.model for pool in pools)):
            taking = [pool for pool in pools if pool.model == model and pool.role in ("both", "prefill")] or pools
            servers, host = sum(pool.replicas * pool.rules.api_servers for pool in taking), taking[0].rules.host
            self._intakes.append(RequestIntake(host, max(1, servers), random_prompts))
            self._output_s.append(host.output_s)

    def admit(self, index: int, now: float, input_tokens: int) -> float:
        """Return when a request that is sent at `now` reaches the router, in seconds of the run's clock."""
        return self._intakes[self._models[index] if self._models else 0].admit(now, input_tokens)

    def output_s(self, index: int) -> float:
        """Return the seconds from the router back to the client of a request."""
        return self._output_s[self._models[index] if self._models else 0]

    def router_arrivals_s(self, sent_s: Sequence[float], input_tokens: Sequence[int]) -> FloatArray:
        """Return when each request reaches the router, in seconds. Shape (n,)."""
        if self._models is None:
            return np.array(list(map(self._intakes[0].admit, sent_s, input_tokens)))
        return np.array(list(map(self.admit, range(len(sent_s)), sent_s, input_tokens)))


class ClosedLoopClients:
    """A fixed number of clients that each think, send the next request of the workload, and wait for its answer.

    A client with think times is a process. For a client without think times, no time passes between an answer and the
    next request, so the next request is sent as soon as the time of the answer is known.
    """

    __slots__ = ("_answers", "_clock", "_concurrency", "_n", "_n_sent", "_n_thoughts", "_send", "_think_s")

    def __init__(self, clock: Clock, requests: RequestSet, send: Callable[[int, float], None]) -> None:
        """Create the clients.

        Args:
            clock: The clock of the run.
            requests: The workload with its concurrency and think times.
            send: Sends the request with a given index at a given time in seconds; it reaches the router later.
        """
        self._clock, self._send, self._n = clock, send, requests.n
        self._concurrency = requests.concurrency or 0
        self._think_s = None if requests.think_s is None else requests.think_s.tolist()
        self._n_sent = self._n_thoughts = 0
        self._answers: dict[int, Event] = {}  # by request index: the event that a client with think times waits for

    def start(self) -> None:
        """Start all clients at time zero, each with a think time if the workload has think times."""
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
        """Send the next request of the workload, if any remain."""
        index = self._n_sent
        if index < self._n:
            self._n_sent = index + 1
            self._send(index, now)

    def answered(self, index: int, at_s: float) -> None:
        """Inform the client of a request that its answer arrives at `at_s`, which may be later than now."""
        if self._think_s is None:
            self._send_next(at_s)
        else:
            self._answers.pop(index).succeed(at_s)


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """The priorities, deadlines and timeouts of requests.

    The engine notices that a client has given up when the step on the device has ended; tokens in flight are lost. In a
    closed loop, a client that gives up a request then sends its next one.

    Attributes:
        clock: The clock of the run.
        requests: The workload with the terms of its requests.
        results: The outcomes of the run.
        timeout_s: The timeout of every request in seconds; inf for none.
        give_up: Ends the request with a given index for its client.
        cancel: Removes the request with a given index from the replica that holds it.
    """

    clock: Clock
    requests: RequestSet
    results: RequestOutcomes
    timeout_s: float
    give_up: Callable[[int], None]
    cancel: Callable[[int], None]
    _watched: set[int] = field(default_factory=set)

    @property
    def needed(self) -> bool:
        """Return whether any request has a timeout, a priority or a deadline."""
        return self.requests.terms is not None or self.timeout_s < inf

    @property
    def some_give_up(self) -> bool:
        """Return whether any request has a timeout."""
        terms = self.requests.terms
        return self.timeout_s < inf or (terms is not None and bool((terms.timeout_s < inf).any()))

    def begin(self, request: Request) -> bool:
        """Apply the terms of a request that reaches the router (again); return False if its client has given up."""
        index, terms = request.index, self.requests.terms
        arrival_s, limit_s = self.results.arrival_s[index], self.timeout_s
        if terms is not None:
            request.priority = int(terms.priority[index])
            request.deadline_s = arrival_s + float(terms.deadline_s[index])
            limit_s = min(limit_s, float(terms.timeout_s[index]))
        if limit_s == inf or index in self._watched:
            return self.results.status[index] != TIMED_OUT
        self._watched.add(index)
        if arrival_s + limit_s <= self.clock.now:
            self._end(index)
            return False
        self.clock.process(self._wait(index, arrival_s + limit_s))
        return True

    def _wait(self, index: int, until_s: float) -> Process:
        """Wait until the timeout of a request, and give it up if it is unfinished then."""
        yield self.clock.at(until_s, ARRIVAL)
        if self.results.status[index] == UNFINISHED:
            self._end(index)
            self.cancel(index)

    def _end(self, index: int) -> None:
        self.results.status[index] = TIMED_OUT
        self.give_up(index)


class RetryTracker:
    """Requests that were lost with their replica, and the times of their retries."""

    def __init__(self, retries: Retries | None) -> None:
        """Create the tracker; without `retries`, each request is retried immediately and without limit."""
        self.n = 0  # lost requests, and requests with a computed prompt but without a replica to decode them
        self.n_waiting = 0  # requests that wait to be sent again
        self._retries = retries
        self._counts: dict[int, int] = {}
        self._jitter = Random(0)

    def wait_s(self, index: int) -> float | None:
        """Count another loss of a request and return the seconds until its retry; None if the request has failed."""
        self.n += 1
        if self._retries is None:
            return 0.0
        self._counts[index] = count = self._counts.get(index, 0) + 1
        return None if count > self._retries.limit else self._retries.wait_s(count, self._jitter.random())
