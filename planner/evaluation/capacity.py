"""The highest request rate that still holds every objective: bracket, then bisect on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from planner.evaluation.evaluator import Verdict

TOLERANCE: Final = 0.02

_WIDEN: Final = 1.4

_MAX_STEPS: Final = 60

Probe = Callable[[float], Verdict]  # requests/s -> verdict


@dataclass(frozen=True, slots=True)
class Capacity:
    """requests_per_s holds, upper_requests_per_s does not (inf: no failing rate was found)."""

    requests_per_s: float
    upper_requests_per_s: float
    at_capacity: Verdict


def find_capacity(probe: Probe, guess_per_s: float, floor: Verdict, tolerance: float = TOLERANCE) -> Capacity:
    """Highest rate whose verdict is met, to `tolerance`; `floor` is a verdict already met at a low rate.

    Every probe must use the same seed and lengths (common random numbers), which makes the verdict as good as
    monotone in the rate; where noise breaks that, the answer is still a rate that holds beside one that does not.
    """
    holds, fails = floor, float("inf")
    rate = max(guess_per_s, floor.requests_per_s * (1 + tolerance))
    for _ in range(_MAX_STEPS):
        verdict = probe(rate)
        if verdict.met:
            holds = verdict
        else:
            fails = rate
        if fails <= holds.requests_per_s * (1 + tolerance):
            break
        rate = _next_rate(holds.requests_per_s, fails, rate, floor.requests_per_s)
    return Capacity(holds.requests_per_s, fails, holds)


def _next_rate(holds: float, fails: float, last: float, floor: float) -> float:
    if fails == float("inf"):
        return last * _WIDEN
    if holds == floor and fails > floor * _WIDEN**2:  # no bracket yet: come down from the guess, not up from the floor
        return max(fails / _WIDEN, math.sqrt(holds * fails))
    return math.sqrt(holds * fails)
