"""Simulated time: a SimPy environment with events at absolute times and explicit tie-breaking.

SimPy runs the simulation (`Clock.run`). Activities that last are SimPy processes: arrivals, clients, retries,
transfers, autoscalers and faults. Engine steps are plain events with a callback, because they are far more frequent
than all other events.

At equal times, the events that SimPy schedules itself come first (a process begins, an event is triggered). Then steps
end (replica 0, 1, …), then controllers act, then requests arrive, and then idle engines wake. A request that arrives
exactly at the end of a step therefore misses the schedule made there, and requests that arrive together are scheduled
together. Among events of equal time and order, the event that was scheduled first comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappush
from typing import Any, Final

import simpy
from simpy.events import NORMAL, EventPriority

# Priorities of events at the same time: those with smaller numbers come first.

#: The end of a step, plus the replica's index.
STEP: Final = EventPriority(NORMAL + 1)

#: The arrival of a request, after all steps: there are fewer replicas than this number.
ARRIVAL: Final = EventPriority(1 << 20)

#: An action of a controller, before the arrivals of its time.
CONTROL: Final = EventPriority(ARRIVAL - 1)

#: The wake-up of an idle step loop, plus the replica's index: it sees all arrivals of its time.
WAKE: Final = EventPriority(ARRIVAL + 1)

#: The end of a run, after everything else of its time.
LAST: Final = EventPriority(1 << 40)

#: Number of consecutive periodic actions without any other pending event after which a run is aborted.
MOST_IDLE_PERIODS: Final = 10_000

Callback = Callable[[Any], None]  # with the event as its argument

#: A SimPy process: a generator that yields the events that it waits for.
Process = Generator[simpy.Event, Any, None]


class TimedEvent(simpy.Event):
    """An event whose time is known when it is created."""

    def __init__(self, env: Clock, callbacks: list[Callback], value: Any) -> None:
        self.env, self.callbacks, self._value, self._ok = env, callbacks, value, True


class Clock(simpy.Environment):
    """A SimPy environment that also schedules events at absolute times.

    SimPy schedules events by their delay, but now + (t - now) does not always equal t in floating point. SimPy also
    distinguishes only two priorities among simultaneous events. `at` therefore inserts an event directly into SimPy's
    queue with the given time and order.
    """

    __slots__ = ("_now",)

    now: float  # seconds

    def __init__(self) -> None:
        super().__init__(0.0)

    def at(self, time_s: float, order: int, callbacks: list[Callback] | None = None, value: Any = None) -> simpy.Event:
        """Schedule and return an event at `time_s` with the given order among simultaneous events.

        `time_s` must not be in the past. Events may share one list of callbacks if no process waits for them.
        """
        event = TimedEvent(self, [] if callbacks is None else callbacks, value)
        heappush(self._queue, (time_s, order, next(self._eid), event))  # type: ignore[misc]
        return event

    def repeat(self, event: simpy.Event, time_s: float, order: int, callbacks: list[Callback]) -> None:
        """Reschedule an event that is being processed to happen again at `time_s`.

        Reusing the event takes half the time of creating one, which matters because engine steps are by far the most
        frequent events.
        """
        event.callbacks = callbacks
        heappush(self._queue, (time_s, order, next(self._eid), event))  # type: ignore[misc]

    @property
    def n_pending(self) -> int:
        """Return the number of scheduled events."""
        return len(self._queue)


#: Both names refer to one slot: SimPy writes `_now`, and reading `now` avoids the call of SimPy's own property.
Clock.now = Clock._now  # type: ignore[misc]


class Timetable:
    """The schedule of controller actions.

    Controllers act before requests that arrive at the same time, and only until all requests are answered.
    """

    def __init__(self, clock: Clock, done: Callable[[], bool], explain_stall: Callable[[], str]) -> None:
        """Create the schedule.

        Args:
            clock: The clock of the run.
            done: Returns whether all requests are answered.
            explain_stall: Returns the error message for a run that cannot make progress.
        """
        self._clock, self._done, self._explain_stall = clock, done, explain_stall
        self._n_periodic = self._idle_periods = 0

    @property
    def now(self) -> float:
        """Return the simulated time in seconds since the run began."""
        return self._clock.now

    def at(self, time_s: float, action: Callable[[], object]) -> None:
        """Call `action` at `time_s`, unless all requests are answered by then."""

        def act(_: simpy.Event) -> None:
            if not self._done():
                action()

        self._clock.at(time_s, CONTROL, [act])

    def until(self, time_s: float) -> simpy.Event:
        """Return an event at `time_s` for a controller's process to wait for.

        The event never happens if all requests are answered by then.
        """
        reached = self._clock.event()
        self.at(time_s, reached.succeed)
        return reached

    def after(self, wait_s: float) -> simpy.Event:
        """Return an event `wait_s` seconds from now for a controller's process to wait for."""
        return self.until(self._clock.now + wait_s)

    def process(self, process: Process) -> None:
        """Start a controller's process now."""
        self._clock.process(process)

    def every(self, period_s: float, action: Callable[[], object]) -> None:
        """Call `action` every `period_s` seconds, starting one period from now, until all requests are answered.

        Raises:
            RuntimeError: During the run, if only periodic actions remain and no other event is pending.
        """
        self._clock.process(self._repeat(period_s, action))

    def _repeat(self, period_s: float, action: Callable[[], object]) -> Process:
        while True:
            self._n_periodic += 1
            yield self.after(period_s)
            self._n_periodic -= 1
            action()
            self._idle_periods = self._idle_periods + 1 if self._clock.n_pending <= self._n_periodic else 0
            if self._idle_periods > MOST_IDLE_PERIODS:
                raise RuntimeError(f"no progress: {self._explain_stall()}")
