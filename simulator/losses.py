"""Requests that were lost with their replica, and when they are sent again; n counts beside them those whose prompt was
computed when nobody was left to decode them."""

from __future__ import annotations

from random import Random

from catalogs.faults import Retries


class Losses:
    """Counts them by request. No retries given: each is sent again at once, as often as it takes."""

    def __init__(self, retries: Retries | None) -> None:
        self.n = 0
        self.n_waiting = 0  # to be sent again
        self._retries = retries
        self._counts: dict[int, int] = {}
        self._jitter = Random(0)

    def wait_s(self, index: int) -> float | None:
        """It was lost once more: how long until it is sent again; None: it has failed."""
        self.n += 1
        if self._retries is None:
            return 0.0
        self._counts[index] = count = self._counts.get(index, 0) + 1
        return None if count > self._retries.limit else self._retries.wait_s(count, self._jitter.random())
