"""Simulated time: a SimPy environment with events at absolute times and an explicit order of ties.

SimPy runs the simulation (`Clock.run`). What has a story over time is a process: arrivals, clients, retries, transfers,
autoscalers, faults. Steps of an engine are events with a callback: they are far more than all others.

At equal times, what SimPy itself schedules comes first (a process begins, an event was triggered). Then steps end
(replica 0, 1, …), then controllers act, then requests arrive, then idle engines wake. So an arrival at the very end of
a step misses the schedule made there, and requests that arrive together are scheduled together. Within one order, the
event that was scheduled first comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappush
from typing import Any, Final

import simpy
from simpy.events import NORMAL, EventPriority

STEP: Final = EventPriority(NORMAL + 1)  # + the replica's index

ARRIVAL: Final = EventPriority(1 << 20)

CONTROL: Final = EventPriority(ARRIVAL - 1)

WAKE: Final = EventPriority(ARRIVAL + 1)  # + the replica's index

LAST: Final = EventPriority(1 << 40)

#: Periodic actions in a row with nothing else to come, after which a run is given up.
MOST_HOPELESS: Final = 10_000

Callback = Callable[[Any], None]  # with the event as its argument

#: A story over time, told by the events that it waits for.
Process = Generator[simpy.Event, Any, None]


class TimedEvent(simpy.Event):
    """An event that happens at a time that is known when it is made."""

    _ok = True

    def __init__(self, env: Clock, callbacks: list[Callback], value: Any) -> None:
        self.env, self.callbacks, self._value = env, callbacks, value


class Clock(simpy.Environment):
    """SimPy's environment plus `at`. SimPy schedules a delay after now, but now + (t - now) is not always t in floating
    point, and it knows two orders of ties; `at` enters its queue directly, with the time and the order as they are."""

    __slots__ = ("_now",)

    now: float  # seconds

    def __init__(self) -> None:
        super().__init__(0.0)

    def at(self, time_s: float, order: int, callbacks: list[Callback] | None = None, value: Any = None) -> simpy.Event:
        """Return an event at `time_s`, which must not be before now, and at its place among ties.

        Events may share one list of callbacks if no process waits for them.
        """
        event = TimedEvent(self, [] if callbacks is None else callbacks, value)
        heappush(self._queue, (time_s, order, next(self._eid), event))  # type: ignore[misc]
        return event

    def repeat(self, event: simpy.Event, time_s: float, order: int, callbacks: list[Callback]) -> None:
        """Let an event that is happening now happen once more, at `time_s`. Steps of an engine are far more than all
        other events, and this takes half as long as a new one."""
        event.callbacks = callbacks
        heappush(self._queue, (time_s, order, next(self._eid), event))  # type: ignore[misc]

    @property
    def n_pending(self) -> int:
        """The number of events that are scheduled."""
        return len(self._queue)


#: One slot under both names: SimPy writes `_now`, and reading `now` costs no call as SimPy's own property would.
Clock.now = Clock._now  # type: ignore[misc]


class Timetable:
    """When controllers act: before requests that arrive at the same time, and only until everything is served.

    done: Whether everything is served.
    plea: What to report where nothing will ever happen.
    """

    def __init__(self, clock: Clock, done: Callable[[], bool], plea: Callable[[], str]) -> None:
        self._clock, self._done, self._plea = clock, done, plea
        self._n_periodic = self._hopeless = 0

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self._clock.now

    def at(self, time_s: float, action: Callable[[], object]) -> None:
        """Call `action` at `time_s`, unless everything is served by then."""

        def act(_: simpy.Event) -> None:
            if not self._done():
                action()

        self._clock.at(time_s, CONTROL, [act])

    def until(self, time_s: float) -> simpy.Event:
        """Return what a controller's process waits for until `time_s`. Once everything is served, it waits for ever."""
        reached = self._clock.event()
        self.at(time_s, reached.succeed)
        return reached

    def after(self, wait_s: float) -> simpy.Event:
        """Return what a controller's process waits for until `wait_s` seconds from now."""
        return self.until(self._clock.now + wait_s)

    def process(self, story: Process) -> None:
        """Let a controller's process begin now."""
        self._clock.process(story)

    def every(self, period_s: float, action: Callable[[], object]) -> None:
        """Call `action` again and again, for the first time a period from now, until everything is served.

        Raises:
            RuntimeError: While running, where such actions go on and nothing else will ever happen.
        """
        self._clock.process(self._repeat(period_s, action))

    def _repeat(self, period_s: float, action: Callable[[], object]) -> Process:
        while True:
            self._n_periodic += 1
            yield self.after(period_s)
            self._n_periodic -= 1
            action()
            self._check_hope()

    def _check_hope(self) -> None:
        self._hopeless = self._hopeless + 1 if self._clock.n_pending <= self._n_periodic else 0
        if self._hopeless > MOST_HOPELESS:
            raise RuntimeError(f"no progress: {self._plea()}")
