"""The highest request rate that meets every objective: bracket, then bisect on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

#: Relative distance of the rates between which a capacity lies. A judgement: the value of one seed is uncertain by a
#: few per cent anyway (docs/search.md).
TOLERANCE: Final = 0.02

#: Largest factor between one rate and the next while there is no bracket. A judgement: the guess is often above the
#: capacity, and each step costs a run; two or three such steps reach half or twice the guess.
WIDEN: Final = 1.4

#: Most rates of one search for a capacity. It only ends a search that noise keeps from ending: steps of `WIDEN` change
#: the rate by a factor of 10**8 in 60 rounds.
_MAX_STEPS: Final = 60


class RateVerdict(Protocol):
    """What a search for a capacity needs to know about a deployment at a rate."""

    @property
    def requests_per_s(self) -> float:
        """Return the rate of the run, in requests per second."""

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
    first_step: float = WIDEN,
) -> Capacity[V]:
    """Return the highest rate that meets every objective, with a relative error of `tolerance`.

    Every probe must use the same seed and lengths (common random numbers), so that the verdict is nearly monotone in
    the rate. If noise breaks this, the result is still a rate that meets the objectives close to one that does not.

    Args:
        probe: Returns the verdict at a rate in requests per second.
        guess_per_s: The rate to try first.
        floor: A verdict at a low rate that meets every objective.
        tolerance: Relative distance of the two final rates.
        hopeless: Returns, at less cost than `probe`, whether a rate is certainly missed; it is called for the guess and
            for lower rates until it returns False.
        first_step: Factor between the guess and the next rate, at most WIDEN. Each factor that leaves no bracket is
            followed by its square, up to WIDEN: a small first step saves rates if the guess is known to be close.
    """
    holds, fails, step = floor, float("inf"), first_step
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
            rate *= step
            step = min(step**2, WIDEN)
        elif holds is floor and fails > floor.requests_per_s * WIDEN**2:
            rate = max(fails / step, middle)  # no bracket yet: approach from the guess, not from the floor
            step = min(step**2, WIDEN)
        else:
            rate = middle
    return Capacity(holds.requests_per_s, fails, holds)
