"""Replicas that are being provisioned, and the places in a pool that they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from simulator.core.clock import Process, Timetable


@dataclass(slots=True, eq=False)
class PendingReplica:
    """A replica that was ordered. It occupies its accelerators from then on, and serves once it is ready."""

    pool: int
    ordered_s: float
    ready_s: float
    ended_s: float = inf  # when it became a replica, or was cancelled

    @property
    def pending(self) -> bool:
        return self.ended_s == inf


class PendingReplicas:
    """All orders of a run. deliver: Makes a replica of a pool, once it is ready."""

    def __init__(self, timetable: Timetable, deliver: Callable[[int], object]) -> None:
        self.given: list[PendingReplica] = []
        self._timetable, self._deliver = timetable, deliver

    def place(self, pool: int, cold_s: float) -> PendingReplica:
        """Order a replica of that pool, which will be ready cold_s seconds from now."""
        now = self._timetable.now
        order = PendingReplica(pool, now, now + cold_s)
        self.given.append(order)
        self._timetable.process(self._cold_start(order))
        return order

    def _cold_start(self, order: PendingReplica) -> Process:
        """A replica gets its accelerators, loads its weights and is there, unless the order is cancelled."""
        yield self._timetable.until(order.ready_s)
        if order.pending:
            order.ended_s = self._timetable.now
            self._deliver(order.pool)

    def cancel(self, order: PendingReplica) -> None:
        """The replica is not needed any more."""
        order.ended_s = self._timetable.now

    def pending(self, pool: int) -> list[PendingReplica]:
        """Return the orders of a pool that are on their way, the oldest first."""
        return [order for order in self.given if order.pool == pool and order.pending]


@dataclass(slots=True)
class ReplicaSlots:
    """Places for the replicas of a pool, numbered from 0: which accelerators one uses. The lowest free one is next."""

    n: int = 0  # that were ever taken
    _free: list[int] = field(default_factory=list)
    _closed: Counter[int] = field(default_factory=Counter)  # how many reasons there are

    def take(self) -> int:
        while self._free:
            slot = heappop(self._free)
            if not self._closed[slot]:
                return slot
        while self._closed[self.n]:
            self.n += 1
        self.n += 1
        return self.n - 1

    def give(self, slot: int) -> None:
        """The replica in this place is gone."""
        if not self._closed[slot]:
            heappush(self._free, slot)

    def close(self, slot: int) -> None:
        """No new replica gets this place until it is opened."""
        self._closed[slot] += 1

    def open(self, slot: int) -> None:
        """One reason to close it is gone."""
        self._closed[slot] -= 1
        if not self._closed[slot] and slot < self.n and slot not in self._free:
            heappush(self._free, slot)
