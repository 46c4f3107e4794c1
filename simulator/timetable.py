"""What controllers do at given times, and again and again, while there is anything left to serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulator.clock import CONTROL, Clock

#: Periodic actions in a row with nothing else to come, after which a run is given up.
MOST_HOPELESS: Final = 10_000


class Timetable:
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
