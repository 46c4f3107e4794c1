"""The estimates of closed forms for the candidates of one hardware, by which a search rules out and orders them.

They are few enough to be sent from one process to another; the compiled step costs behind them are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from calibration.accuracy.stated_error import StatedError
from planner.evaluation.closed_forms.bounds import Discard
from planner.problem.candidate import Candidate

#: Halvings of the search for an estimated capacity, on a logarithmic scale. A judgement: between rates that differ by a
#: factor of 100, 4 % remain.
_GUESS_STEPS: Final = 7

#: Returns an estimated latency at a rate, in seconds, given the rate, the metric and the quantile (None: the mean).
GuessS = Callable[[float, str, float | None], float]


@dataclass(frozen=True, slots=True)
class GuessedLimit:
    """A limit on an estimated latency.

    Attributes:
        metric: The name of the metric.
        quantile: Its quantile, as a share; None is the mean.
        factor: Factor on the estimate, by which it allows for an error.
        limit_s: The limit, seconds.
    """

    metric: str
    quantile: float | None
    factor: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class GuessedLimits:
    """Limits on the estimated latencies of a candidate whose steps take `speed` times as long as estimated."""

    speed: float
    limits: tuple[GuessedLimit, ...]

    def ratio(self, guess_s: GuessS, requests_per_s: float) -> float:
        """Return the estimated largest value / limit at a rate; infinite if overloaded."""
        rate = requests_per_s * self.speed
        return max(guess_s(rate, own.metric, own.quantile) * own.factor / own.limit_s for own in self.limits)

    def capacity_per_s(self, guess_s: GuessS, light_per_s: float, full_per_s: float) -> float:
        """Return the estimated highest rate that meets the limits; 0 if a light load is estimated to miss one.

        Args:
            guess_s: Estimates a latency.
            light_per_s: A light load.
            full_per_s: The rate of a full batch, above which nothing is looked for.
        """
        low, high = light_per_s, full_per_s
        if self.ratio(guess_s, low) > 1:
            return 0.0
        for _ in range(_GUESS_STEPS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.ratio(guess_s, middle) <= 1 else (low, middle)
        return low


@dataclass(slots=True)
class Estimates:
    """The closed forms of one evaluator that were computed so far, each once.

    Attributes:
        space: The candidates; None where they are not known yet.
        discards: Why a candidate can never meet the objectives, or None, by candidate.
        saturation_per_s: The rate with a full batch, by candidate.
        light_per_s: A rate at which requests rarely overlap, by candidate.
        errors: The stated error of simulated latencies, by candidate at its own limits.
        capacity_per_s: The highest rate that meets limits on latencies, by candidate and limits.
    """

    space: list[Candidate] | None = None
    discards: dict[Candidate, Discard | None] = field(default_factory=dict)
    saturation_per_s: dict[Candidate, float] = field(default_factory=dict)
    light_per_s: dict[Candidate, float] = field(default_factory=dict)
    errors: dict[Candidate, StatedError] = field(default_factory=dict)
    capacity_per_s: dict[tuple[Candidate, GuessedLimits], float] = field(default_factory=dict)
