"""Replicas that are on their way, and the places in a pool that they take."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf


@dataclass(slots=True, eq=False)
class Order:
    """A replica that was asked for. It occupies its accelerators from then on, and serves once it is ready."""

    pool: int
    ordered_s: float
    ready_s: float
    ended_s: float = inf  # when it became a replica, or was cancelled

    @property
    def pending(self) -> bool:
        return self.ended_s == inf


@dataclass(slots=True)
class Slots:
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
        """Nobody is there any more."""
        if not self._closed[slot]:
            heappush(self._free, slot)

    def close(self, slot: int) -> None:
        """Nobody new gets this place until it is opened."""
        self._closed[slot] += 1

    def open(self, slot: int) -> None:
        """One reason to close it is gone."""
        self._closed[slot] -= 1
        if not self._closed[slot] and slot < self.n and slot not in self._free:
            heappush(self._free, slot)
