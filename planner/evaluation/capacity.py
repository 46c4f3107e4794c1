"""The highest request rate that meets every objective: bracket, then bisect on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

TOLERANCE: Final = 0.02

_WIDEN: Final = 1.4

_MAX_STEPS: Final = 60

#: Assumed growth of value / limit with the rate, as an exponent, before two rates are known.
_FIRST_GROWTH: Final = 2.0

#: Most steps of the first jump along a grid.
_FIRST_JUMP: Final = 8


class RateVerdict(Protocol):
    """What a search for a capacity needs to know about a deployment at a rate."""

    @property
    def requests_per_s(self) -> float:
        """Return the rate of the run, in requests per second."""

    @property
    def ratio(self) -> float:
        """Return the largest value / limit; infinite if the system does not keep up."""

    @property
    def met(self) -> bool:
        """Return whether every objective is met."""


V = TypeVar("V", bound=RateVerdict)


@dataclass(frozen=True, slots=True)
class Capacity(Generic[V]):
    """The capacity of a deployment.

    Attributes:
        requests_per_s: The highest rate found that meets every objective.
        upper_requests_per_s: A higher rate that does not (inf: none was found).
        at_capacity: The verdict at `requests_per_s`.
    """

    requests_per_s: float
    upper_requests_per_s: float
    at_capacity: V


def find_capacity(
    probe: Callable[[float], V],
    guess_per_s: float,
    floor: V,
    tolerance: float = TOLERANCE,
    hopeless: Callable[[float], bool] | None = None,
) -> Capacity[V]:
    """Return the highest rate that meets every objective, with a relative error of `tolerance`.

    Every probe must use the same seed and lengths (common random numbers), so that the verdict is nearly monotone in
    the rate. If noise breaks this, the result is still a rate that meets the objectives close to one that does not.

    Args:
        probe: Returns the verdict at a rate in requests per second.
        guess_per_s: The rate to try first.
        floor: A verdict at a low rate that meets every objective.
        tolerance: Relative distance of the two final rates.
        hopeless: Returns, at less cost than `probe`, whether a rate is certainly missed; it is asked from the guess
            downwards until it says no.
    """
    holds, fails = floor, float("inf")
    rate = max(guess_per_s, floor.requests_per_s * (1 + tolerance))
    for _ in range(_MAX_STEPS):
        if hopeless is not None and hopeless(rate):
            fails = rate
        else:
            hopeless, verdict = None, probe(rate)
            if verdict.met:
                holds = verdict
            else:
                fails = rate
        if fails <= holds.requests_per_s * (1 + tolerance):
            break
        middle = math.sqrt(holds.requests_per_s * fails)
        if math.isinf(fails):
            rate *= _WIDEN
        elif holds is floor and fails > floor.requests_per_s * _WIDEN**2:
            rate = max(fails / _WIDEN, middle)  # no bracket yet: approach from the guess, not from the floor
        else:
            rate = middle
    return Capacity(holds.requests_per_s, fails, holds)


def walk_to_capacity(probe: Callable[[float], V], start_per_s: float, most_steps: int) -> float | None:
    """Return the highest rate of a grid around a start that meets every objective, beside one that does not.

    The rates of the grid are a factor of 1 + TOLERANCE apart. The search leaps along the grid by as many steps as the
    growth of value / limit suggests, and then closes in between a rate that is met and one that is missed. If verdicts
    are monotone in the rate, the result is that of going step by step.

    Args:
        probe: Returns the verdict at a rate in requests per second.
        start_per_s: The first rate.
        most_steps: Most steps to go up or down. If the rate there is still met, it is the result; if it is still
            missed, there is none (None).
    """
    met: dict[int, V] = {}
    missed: dict[int, V] = {}
    step, halves = 0, False
    for _ in range(2 * most_steps):
        verdict = probe(start_per_s * (1 + TOLERANCE) ** step)
        (met if verdict.met else missed)[step] = verdict
        low = max((k for k in met if k < min(missed, default=most_steps + 1)), default=None)
        high = min((k for k in missed if low is None or k > low), default=None)
        if low is not None and (low == most_steps or (high is not None and high - low == 1)):
            return start_per_s * (1 + TOLERANCE) ** low
        if low is None and high == -most_steps:
            return None
        if low is not None and high is not None:
            share = 0.5 if halves else _share(met[low], missed[high])
            step, halves = low + min(max(round(share * (high - low)), 1), high - low - 1), not halves
        elif low is not None:
            step = min(low + _leap(met, low), most_steps)
        else:
            assert high is not None
            step = max(high - _leap(missed, high), -most_steps)
    return None


def _share(holds: RateVerdict, failed: RateVerdict) -> float:
    """Return where value / limit is expected to be 1 between two rates: 0 at the one that is met, 1 at the other."""
    if not 0 < holds.ratio < 1 < failed.ratio < math.inf:
        return 0.5
    below, above = -math.log(holds.ratio), math.log(failed.ratio)
    return below / (below + above)


def _leap(seen: dict[int, V], last: int) -> int:
    """Return the steps from the last rate of a grid to where value / limit is expected to be 1, at least one."""
    others = [k for k in seen if k != last]
    nearest = min(others, key=lambda k: abs(k - last), default=None)
    here, growth, most = seen[last].ratio, _FIRST_GROWTH * math.log1p(TOLERANCE), _FIRST_JUMP
    if not 0 < here < math.inf:
        return 1 if nearest is None else 2 * abs(last - nearest)
    if nearest is not None:
        most = 2 * abs(last - nearest)
        there = seen[nearest].ratio
        growth = math.log(here / there) / (last - nearest) if 0 < there < math.inf else growth
    if growth <= 0:
        return most
    return min(max(math.ceil(abs(math.log(here)) / growth), 1), most)
