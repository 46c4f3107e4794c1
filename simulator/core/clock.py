"""Simulated time: a SimPy environment with events at absolute times and an explicit order of ties.

At equal times: steps end first (replica 0, 1, …), then controllers act, then requests arrive, then idle engines wake.
So an arrival at the very end of a step misses the schedule made there, and requests that arrive together are scheduled
together.

What controllers do at given times, and again and again, while there is anything left to serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from operator import length_hint
from typing import Final, TypeAlias

import simpy

ARRIVAL = 1 << 20  # steps use the replica's index

CONTROL = ARRIVAL - 1

WAKE = ARRIVAL + 1  # + the replica's index

#: What a scheduled event is known by: its callbacks and a payload. Two of them are told apart by identity.
Tick: TypeAlias = tuple[Sequence[Callable[["Tick"], None]], int]

Callbacks: TypeAlias = Sequence[Callable[[Tick], None]]


class Clock(simpy.Environment):  # type: ignore[misc,unused-ignore]
    """`at` schedules without adding a delay to now, so that times are exactly what was computed.

    Its events are ticks and `run_out` is its loop: SimPy's own events and loop take several times as long.
    """

    now = 0.0  # seconds; plain, where SimPy's is a property: everybody reads it all the time

    def __init__(self) -> None:
        super().__init__()
        self._times_s: Iterable[float] = ()
        self._fed: Iterator[int] = iter(())
        self._act: Callable[[int], object] = int

    def feed(self, times_s: Sequence[float], payloads: Sequence[int], act: Callable[[int], None]) -> None:
        """Call act(payload) at each of the ascending times, as events of order ARRIVAL would, without an event each.
        Once in a run, before it."""
        self._times_s, self._fed, self._act = times_s, iter(payloads), act

    def run_out(self, until_s: float = inf) -> None:
        """Let all that is scheduled happen, what is due after until_s not: SimPy's run(), for events that are all
        ticks and cannot fail."""
        queue: list[tuple[float, int, int, Tick]] = self._queue  # type: ignore[assignment,unused-ignore]
        act, serial = self._act, next(self._eid)  # type: ignore[misc,unused-ignore]
        for time_s, payload in zip(self._times_s, self._fed, strict=True):
            if time_s > until_s:
                break
            fed = (time_s, ARRIVAL, serial)
            while queue and queue[0] < fed:
                self.now, _, _, tick = heappop(queue)
                for callback in tick[0]:
                    callback(tick)
            self.now = time_s
            serial = next(self._eid)  # type: ignore[misc,unused-ignore]
            act(payload)
        while queue and queue[0][0] <= until_s:
            self.now, _, _, tick = heappop(queue)
            for callback in tick[0]:
                callback(tick)

    @property
    def n_pending(self) -> int:
        """Events to come; what is fed counts as one."""
        return len(self._queue) + (length_hint(self._fed) > 0)

    def at(self, time_s: float, order: int, callbacks: Callbacks, payload: int = 0) -> Tick:
        """Call each of `callbacks` with the tick at time_s (not before now). Ticks may share one list of them."""
        tick = (callbacks, payload)
        heappush(self._queue, (time_s, order, next(self._eid), tick))  # type: ignore[misc,arg-type,unused-ignore]
        return tick


#: Periodic actions in a row with nothing else to come, after which a run is given up.
MOST_HOPELESS: Final = 10_000


class PeriodicActions:
    """done: all is served. plea: what to say where nothing will ever happen."""

    def __init__(self, clock: Clock, done: Callable[[], bool], plea: Callable[[], str]) -> None:
        self._clock, self._done, self._plea = clock, done, plea
        self._n_periodic = self._hopeless = 0

    @property
    def now(self) -> float:
        return self._clock.now

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Act then, after steps that end and before requests that arrive at that time; not once all is served."""
        self._clock.at(time_s, CONTROL, [lambda _: None if self._done() else action()])

    def every(self, period_s: float, action: Callable[[], None]) -> None:
        """Act again and again, a period from now first, until everything is served."""

        def act() -> None:
            self._n_periodic -= 1
            action()
            self._check_hope()
            self.every(period_s, action)

        self._n_periodic += 1
        self.at(self._clock.now + period_s, act)

    def _check_hope(self) -> None:
        """Raises RuntimeError where periodic actions go on and on and nothing else will ever happen."""
        self._hopeless = self._hopeless + 1 if self._clock.n_pending <= self._n_periodic else 0
        if self._hopeless > MOST_HOPELESS:
            raise RuntimeError(f"no progress: {self._plea()}")
