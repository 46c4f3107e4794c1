"""The clients of a closed loop: each thinks, sends the next request of the workload, and waits for its answer."""

from __future__ import annotations

from collections.abc import Callable

from catalogs.request_set import RequestSet
from simulator.clock import ARRIVAL, Clock, Tick


class Clients:
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
