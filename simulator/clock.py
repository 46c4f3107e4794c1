"""Simulated time: a SimPy environment with events at absolute times and an explicit order of ties.

At equal times: steps end first (replica 0, 1, …), then controllers act, then requests arrive, then idle engines wake.
So an arrival at the very end of a step misses the schedule made there, and requests that arrive together are scheduled
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import simpy

ARRIVAL = 1 << 20  # steps use the replica's index
CONTROL = ARRIVAL - 1
WAKE = ARRIVAL + 1  # + the replica's index

Callbacks = Sequence[Callable[["Tick"], None]]


class Tick:
    """A light event: what SimPy needs of one, a callback and a payload."""

    __slots__ = ("_ok", "callbacks", "payload")

    def __init__(self, callbacks: Callbacks, payload: int = 0) -> None:
        self.callbacks: Callbacks | None = callbacks
        self._ok = True
        self.payload = payload


class Clock(simpy.Environment):  # type: ignore[misc,unused-ignore]
    """`at` schedules without adding a delay to now, so that times are exactly what was computed."""

    def run_out(self) -> None:
        """Let all that is scheduled happen: SimPy's run(), for events that are all ticks and cannot fail."""
        queue = self._queue
        while queue:
            self._now, _, _, tick = heappop(queue)
            for callback in tick.callbacks or ():  # type: ignore[attr-defined,unused-ignore]
                callback(tick)  # type: ignore[arg-type,unused-ignore]

    @property
    def n_pending(self) -> int:
        """Events to come."""
        return len(self._queue)

    def at(self, time_s: float, order: int, callbacks: Callbacks, payload: int = 0) -> Tick:
        """Call each of `callbacks` with the tick at time_s (not before now). Ticks may share one list of them."""
        tick = Tick(callbacks, payload)
        heappush(self._queue, (time_s, order, next(self._eid), tick))  # type: ignore[misc,arg-type,unused-ignore]
        return tick
