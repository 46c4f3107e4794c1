"""When a deployment keeps up with its load: the shares of unserved requests that decide it, and rates that cannot.

A run is judged by the growth of the requests in the system over its steady window, as a share of the arrivals in the
window (`Observation.growth_fraction`). Rejected requests count, because the system does not serve them. All
constants below are judgements; `pytest tests/planner/evaluation/test_stability.py` shows what they imply for queues
whose answer is known.
"""

from __future__ import annotations

import math
from typing import Final

#: Largest share of unserved arrivals with which a long run counts as stable. A deployment that loses one request in
#: twenty does not serve its load, whatever the percentiles of the others are.
GROWTH_LIMIT: Final = 0.05

#: Standard deviations of the random walk of a busy but stable queue that a short run is allowed (`most_unserved`).
_WALK_SIGMAS: Final = 2.0

#: Largest growth that a batch which is still filling up may show. With up to this share, or while nothing waits for a
#: seat, the run is repeated with more requests before it counts as unstable (`Observation.undecided`).
FILLING_GROWTH: Final = 0.3

#: Growth from which even a short run shows an overload: the queue has kept half of all arrivals, which chance in a few
#: hundred requests does not explain.
CLEAR_OVERLOAD_GROWTH: Final = 0.5

#: Multiple of the estimated saturation rate from which a rate counts as an overload without a simulation. The estimate
#: may be too low by this margin.
OVERLOAD: Final = 1.15


def most_unserved(n_measured: int) -> float:
    """Return the largest share of the requests in a window that a stable system may leave unserved.

    It is GROWTH_LIMIT in long runs. In short runs it allows for chance: while n requests arrive at a busy system, the
    number of requests in it changes by about the square root of n.

    Args:
        n_measured: Requests in the window.
    """
    return max(GROWTH_LIMIT, _WALK_SIGMAS / math.sqrt(max(n_measured, 1)))
