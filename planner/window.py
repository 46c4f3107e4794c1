"""The steady part of a run: after it filled up, before it drains; and whether it kept up meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from planner.slo import FloatArray

#: Least share of the requests left out at the start, and most at start and end.
WARM_UP: Final = 0.1
MOST_WARM_UP: Final = 0.5
MOST_DRAIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Window:
    """measured: the requests whose latencies count. growth_fraction: of requests in the system, per arrival."""

    measured: npt.NDArray[np.bool_]
    growth_fraction: float


def steady_window(arrival_s: FloatArray, finish_s: FloatArray) -> Window:
    """The window of an open-loop run; finish_s is inf for a request that was never served.

    It starts two mean residence times into the run (every request that arrived into an empty system is gone, mostly)
    and ends one before the last arrival, after which nobody joins the batch. Growth is read up to the last arrival.
    """
    order = np.argsort(arrival_s, kind="stable")
    arrived, n = arrival_s[order], len(arrival_s)
    stay_s = float(np.mean((finish_s - arrival_s)[np.isfinite(finish_s)])) if np.any(np.isfinite(finish_s)) else 0.0
    first = int(np.searchsorted(arrived, arrived[0] + 2 * stay_s))
    first = min(max(first, int(WARM_UP * n)), int(MOST_WARM_UP * n))
    last = int(np.searchsorted(arrived, arrived[-1] - stay_s))
    last = max(last, n - int(MOST_DRAIN * n), first + 1)
    measured = np.zeros(n, dtype=np.bool_)
    measured[order[first:last]] = True
    finished = np.sort(finish_s)
    joined = n - 1 - first
    if joined <= 0:
        return Window(measured, 0.0)
    left = np.searchsorted(finished, [arrived[first], arrived[-1]], side="right")
    return Window(measured, float(joined - (left[1] - left[0])) / joined)
