"""The batches that run on the accelerators of one replica, several at a time where it has several instances.

The kernels of one accelerator run one after the other, whatever instance launches them. So an instance alone keeps
the accelerator busy for a share of its time, `busy_s / seconds`, and fills the rest with the host. Instances together
get at most the whole accelerator: while the sum of their shares is above one, it is divided max-min fairly, and each is
slower by what it gets less. Two instances thus gain what they hide of each other's host time, and never more than that.

What this leaves out: kernels too small to fill the accelerator may run at the same time (which gains), kernels compete
for the cache (which loses), and each instance has a core of the host for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from simpy import Event

from simulator.core.clock import STEP, Clock
from simulator.jobs.compiled import BatchPrice

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Running(Generic[T]):
    """A batch in progress: its remaining seconds on an idle accelerator, and how fast it runs since `since_s`."""

    batch: T
    left_s: float
    share: float  # of the accelerator, when alone
    since_s: float
    speed: float = 1.0

    @property
    def end_s(self) -> float:
        """Return when the batch ends if its speed stays as it is."""
        return self.since_s + self.left_s / self.speed


class SharedAccelerator(Generic[T]):
    """Batches in progress, of which each ends by a call of `on_end` with those that end at the same time."""

    def __init__(self, clock: Clock, index: int, on_end: Callable[[list[T]], None]) -> None:
        """Create idle accelerators; `index` orders simultaneous ends of several replicas."""
        self._clock, self._order, self._on_end = clock, STEP + index, on_end
        self._running: list[_Running[T]] = []
        self._next: Event | None = None  # the event at the next end; others are out of date

    def start(self, batch: T, price: BatchPrice) -> None:
        """Start a batch at the present time of the clock, beside those that already run."""
        share = min(1.0, price.busy_s / price.seconds) if price.seconds > 0.0 else 1.0
        self._running.append(_Running(batch, price.seconds, share, self._clock.now))
        self._adjust()

    def _adjust(self) -> None:
        """Set the speeds of all batches from now on, and schedule the next end."""
        now, speeds = self._clock.now, fair_speeds([each.share for each in self._running])
        for each, speed in zip(self._running, speeds, strict=True):
            if speed != each.speed:
                each.left_s = max(0.0, each.left_s - (now - each.since_s) * each.speed)
                each.since_s, each.speed = now, speed
        end_s = min((each.end_s for each in self._running), default=inf)
        self._next = self._clock.at(max(now, end_s), self._order, [self._end]) if self._running else None

    def _end(self, event: Event) -> None:
        if event is not self._next:
            return
        now = self._clock.now
        ended = [each for each in self._running if each.end_s <= now]
        self._running = [each for each in self._running if each.end_s > now]
        self._next = None
        if self._running:
            self._adjust()
        self._on_end([each.batch for each in ended])


def fair_speeds(shares: list[float]) -> list[float]:
    """Return the speed of each batch relative to running alone.

    The accelerator is divided max-min fairly (Bertsekas and Gallager, *Data Networks*, 6.5.2): a batch that needs less
    than an equal part gets what it needs, and the others share what is left.
    """
    if sum(shares) <= 1.0:
        return [1.0] * len(shares)
    speeds, left, n = [1.0] * len(shares), 1.0, len(shares)
    for i in sorted(range(len(shares)), key=shares.__getitem__):
        given = min(shares[i], left / n)
        speeds[i] = given / shares[i] if shares[i] > 0.0 else 1.0
        left, n = left - given, n - 1
    return speeds
