"""The rates at which the latency curve around a rate is simulated.

Most of them are rates of one grid, which is the same for all rates and all candidates. Curves around neighbouring rates
therefore share most of their runs.
"""

from __future__ import annotations

import math
from typing import Final

#: Factor between neighbouring rates of the grid. A judgement: coarse enough that neighbouring curves share rates, and
#: fine enough for latencies to be interpolated.
GRID_STEP: Final = 1.12

#: Least factor between a rate and the next rate of its curve, and between the rate at the speed that decides and the
#: one that is simulated. A judgement: closer rates differ by less than the noise. The curve reaches a little beyond the
#: deciding speed, because a deployment counts as overloaded beyond the highest rate at which it was seen to keep up.
_LEAST_APART: Final = 1.02

#: Largest rates of the curve below a rate, as shares of it, and the number of grid steps between the rates that may be
#: taken. A judgement: one close to the rate, where the curve is steep, and two far below, which more rates share.
_BELOW: Final = ((1 / _LEAST_APART, 1), (0.8, 2), (0.45, 6))


def higher_rates(rate_per_s: float, speed: float, slowest: float) -> tuple[float, ...]:
    """Return the rates above a rate whose latencies show the effect of slower steps, ascending.

    They are the next rate of the grid and, if steps may be slower than simulated, a rate just above the one at the
    speed that decides, and one that the slowest steps do not exceed.

    Args:
        rate_per_s: The rate, requests per second; 0, of users that are never answered, has no other rates.
        speed: Factor on the time of a step at the confidence of the request, at least 1.
        slowest: The same of the slowest steps that count, at least `speed`.
    """
    if not rate_per_s:
        return ()
    next_per_s = rate_per_s * _LEAST_APART
    slower = () if slowest <= 1 else (next_per_s * speed, _at_least(rate_per_s * slowest))
    return tuple(sorted({_at_least(next_per_s), *slower}))


def lower_rates(rate_per_s: float) -> tuple[float, ...]:
    """Return the rates below a rate whose latencies show the effect of faster steps, ascending; none below 0."""
    if not rate_per_s:
        return ()
    return tuple(sorted({_at_most(rate_per_s * share, steps) for share, steps in _BELOW}))


def _at_most(rate_per_s: float, steps: int = 1) -> float:
    """Return the highest rate up to `rate_per_s` of the grid whose neighbours are `steps` grid steps apart."""
    return float(GRID_STEP ** (steps * math.floor(math.log(rate_per_s, GRID_STEP) / steps)))


def _at_least(rate_per_s: float) -> float:
    """Return the lowest rate of the grid from `rate_per_s` on."""
    return float(GRID_STEP ** math.ceil(math.log(rate_per_s, GRID_STEP)))
