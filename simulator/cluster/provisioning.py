"""Replicas that are being provisioned, and the slots of a pool that replicas occupy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from simulator.core.clock import Process, Timetable


@dataclass(slots=True, eq=False)
class PendingReplica:
    """A replica on order, which occupies its accelerators from the order on and serves once it is ready."""

    pool: int
    ordered_s: float
    ready_s: float
    ended_s: float = inf  # when it became a replica, or was cancelled

    @property
    def pending(self) -> bool:
        """Return whether the replica is neither ready nor cancelled."""
        return self.ended_s == inf


class PendingReplicas:
    """All replica orders of a run."""

    def __init__(self, timetable: Timetable, deliver: Callable[[int], object]) -> None:
        """Create an empty record; `deliver` adds a replica to the pool of a given index."""
        self.placed: list[PendingReplica] = []  # all orders, the oldest first
        self._timetable, self._deliver = timetable, deliver

    def place(self, pool: int, cold_s: float) -> PendingReplica:
        """Order a replica of a pool; it is ready cold_s seconds from now."""
        now = self._timetable.now
        order = PendingReplica(pool, now, now + cold_s)
        self.placed.append(order)
        self._timetable.process(self._cold_start(order))
        return order

    def _cold_start(self, order: PendingReplica) -> Process:
        """Wait for the cold start of a replica and add it, unless the order has been cancelled."""
        yield self._timetable.until(order.ready_s)
        if order.pending:
            order.ended_s = self._timetable.now
            self._deliver(order.pool)

    def cancel(self, order: PendingReplica) -> None:
        """Cancel a pending order now."""
        order.ended_s = self._timetable.now

    def pending(self, pool: int) -> list[PendingReplica]:
        """Return the pending orders of a pool, the oldest first."""
        return [order for order in self.placed if order.pool == pool and order.pending]


@dataclass(slots=True)
class ReplicaSlots:
    """The slots of a pool, numbered from 0, which determine the accelerators of its replicas."""

    n: int = 0  # number of slots used so far
    _free: list[int] = field(default_factory=list)
    _closed: Counter[int] = field(default_factory=Counter)  # number of reasons to keep a slot closed

    def take(self) -> int:
        """Occupy and return the lowest free slot that is not closed."""
        while self._free:
            slot = heappop(self._free)
            if not self._closed[slot]:
                return slot
        while self._closed[self.n]:
            self.n += 1
        self.n += 1
        return self.n - 1

    def give(self, slot: int) -> None:
        """Free the slot of a replica that has ended."""
        if not self._closed[slot]:
            heappush(self._free, slot)

    def close(self, slot: int) -> None:
        """Close a slot to new replicas until it is opened as often as it was closed."""
        self._closed[slot] += 1

    def open(self, slot: int) -> None:
        """Remove one reason to keep a slot closed."""
        self._closed[slot] -= 1
        if not self._closed[slot] and slot < self.n and slot not in self._free:
            heappush(self._free, slot)
