"""The capacity of a plan with one seed, from a line through its latency at several rates.

A high percentile of one run jumps from rate to rate. Where it rises steeply with the rate, the jumps hardly move the
rate at which it crosses its limit, and a bisection finds that rate. Where it rises slowly, a bisection ends anywhere
within ten per cent or more, so that a small change of an input seems to move the capacity by as much. The line through
several rates averages the jumps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from planner.evaluation.capacity import WIDEN, RateVerdict, find_capacity

#: Largest ratio of the values at two rates between which the capacity is fitted by a line. A judgement: several times
#: the jumps of the 99th percentile of 2,000 requests, which are about 3 %.
STEEP: Final = 1.4

#: Rates through which a line is fitted, as powers of the factor between the rates on either side of the capacity,
#: relative to the lower one. A judgement of cost: the two rates themselves, two between them, and one beyond each.
FITTED: Final = (-0.5, 0.0, 1 / 3, 2 / 3, 1.0, 1.5)

#: Least points of a fitted line. A judgement: fewer do not average the jumps.
LEAST_POINTS: Final = 4

#: Least value / limit whose logarithm is taken, for statistics that are 0 or do not exist.
_LEAST_RATIO: Final = 1e-9


class RateRatio(RateVerdict, Protocol):
    """What a fit needs to know about a deployment at a rate."""

    @property
    def ratio(self) -> float:
        """Return the largest value / limit of all objectives, or infinity if the queue grows."""


@dataclass(frozen=True, slots=True)
class FittedCapacity:
    """The capacity of a plan, and the line of log(value / limit) over log(rate) that crosses 0 there.

    Attributes:
        requests_per_s: The capacity.
        slope: Slope of the line; infinite where the capacity is between a rate that is met and an unstable one.
        low_per_s: The lowest rate to which the line applies.
        high_per_s: The highest rate to which the line applies.
    """

    requests_per_s: float
    slope: float
    low_per_s: float
    high_per_s: float

    def ratio_at(self, rate_per_s: float) -> float | None:
        """Return value / limit at a rate; None if there is no line, or beyond the rates to which it applies."""
        if not math.isfinite(self.slope) or not self.low_per_s <= rate_per_s <= self.high_per_s:
            return None
        return math.exp(self.slope * math.log(rate_per_s / self.requests_per_s))


def fitted_capacity(
    probe: Callable[[float], RateRatio], guess_per_s: float, floor: RateRatio, tolerance: float
) -> FittedCapacity:
    """Return the rate at which the objectives are just met.

    Args:
        probe: Returns the verdict at a rate in requests per second, always with the same seed and lengths.
        guess_per_s: The rate to try first.
        floor: A verdict at a low rate that meets every objective.
        tolerance: Relative distance of two rates, one met and one missed, between which the capacity is not sought any
            further.
    """
    seen: dict[float, RateRatio] = {}

    def noted(rate_per_s: float) -> RateRatio:
        if rate_per_s not in seen:
            seen[rate_per_s] = probe(rate_per_s)
        return seen[rate_per_s]

    found = find_capacity(noted, guess_per_s, floor, WIDEN - 1.0)
    if math.isinf(found.upper_requests_per_s):  # noise kept the search from ending
        return FittedCapacity(found.requests_per_s, math.inf, 0.0, 0.0)
    low, high = found.at_capacity, noted(found.upper_requests_per_s)
    if low is floor:  # which may be a shorter run
        low = noted(floor.requests_per_s)
    if not low.met:
        return FittedCapacity(low.requests_per_s, math.inf, 0.0, 0.0)
    while high.requests_per_s > low.requests_per_s * (1 + tolerance):
        if high.ratio <= STEEP * max(low.ratio, _LEAST_RATIO):
            return _by_line(noted, low, high)
        middle = noted(math.sqrt(low.requests_per_s * high.requests_per_s))
        low, high = (middle, high) if middle.met else (low, middle)
    return _between(low, high)


def _by_line(probe: Callable[[float], RateRatio], low: RateRatio, high: RateRatio) -> FittedCapacity:
    """Return the capacity from the line through rates between and around a rate that is met and one that is missed.

    Unstable rates do not belong to the line, and the capacity is below the lowest of them.
    """
    step = high.requests_per_s / low.requests_per_s
    points = [low if k == 0 else high if k == 1 else probe(low.requests_per_s * step**k) for k in FITTED]
    unstable_per_s = min((p.requests_per_s for p in points if math.isinf(p.ratio)), default=math.inf)
    line = [p for p in points if p.requests_per_s < unstable_per_s]
    if len(line) < LEAST_POINTS:
        return _between(low, high)
    rates, ratios = np.log([p.requests_per_s for p in line]), np.log([max(p.ratio, _LEAST_RATIO) for p in line])
    slope, at_zero = (float(value) for value in np.polyfit(rates, ratios, 1))
    least_per_s, most_per_s = line[0].requests_per_s, line[-1].requests_per_s
    if slope <= 0:  # the jumps hide how the value rises
        return _between(low, high)
    crossing_per_s = math.exp(min(max(-at_zero / slope, math.log(least_per_s)), math.log(points[-1].requests_per_s)))
    if crossing_per_s > most_per_s and math.isfinite(unstable_per_s):  # the queue already grows where the line crosses
        return FittedCapacity(math.sqrt(most_per_s * min(unstable_per_s, crossing_per_s)), math.inf, 0.0, 0.0)
    return FittedCapacity(min(crossing_per_s, most_per_s), slope, least_per_s, most_per_s)


def _between(low: RateRatio, high: RateRatio) -> FittedCapacity:
    """Return the capacity between a rate that is met and one that is missed, on the line through both."""
    if math.isinf(high.ratio):
        return FittedCapacity(low.requests_per_s, math.inf, 0.0, 0.0)
    below, above = math.log(max(low.ratio, _LEAST_RATIO)), math.log(high.ratio)
    span = math.log(high.requests_per_s / low.requests_per_s)
    slope = (above - below) / span
    rate_per_s = low.requests_per_s * math.exp(-below / slope)
    return FittedCapacity(rate_per_s, slope, low.requests_per_s, high.requests_per_s)
