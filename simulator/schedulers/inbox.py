"""Requests that have arrived and that their engine has not looked at: SGLang's SchedulerRecvSkipper."""

from __future__ import annotations

from collections import deque

from catalogs.engines import Receiving
from simulator.request import Request


class Inbox:
    """It is looked at every so many steps; `busy`: requests that the engine had at a look, which decide how many."""

    __slots__ = ("_after", "_receiving", "_unseen", "arrived")

    def __init__(self, receiving: Receiving) -> None:
        self.arrived: deque[Request] = deque()
        self._receiving = receiving
        self._unseen = 0  # steps since the last look
        self._after = receiving.interval(0)

    @property
    def left(self) -> int:
        """Further steps without a look."""
        return self._after - self._unseen - 1

    def count(self) -> bool:
        """A step begins: whether it is time to look."""
        self._unseen += 1
        return self._unseen >= self._after

    def looked(self, busy: int) -> None:
        """All that had arrived was taken out."""
        self._after, self._unseen = self._receiving.interval(busy), 0

    def skip(self, steps: int, busy: int) -> None:
        """So many steps whose looks found nothing: what is here now came after them."""
        self._unseen += steps
        if self._unseen >= self._after:
            rest = self._unseen - self._after
            self.looked(busy)
            self._unseen = rest % self._after
