"""Error bars: sampling noise from independent seeds, and the stated error carried through the load.

If every step took f times as long, a system under rate r would show f times the latencies it shows under rate r * f at
the original speed (rescale the clock). So one curve of latency against rate answers what slower steps do near
saturation, where a plain factor on the latency would be far too kind.

How far off whole runs are is known by statistic (`calibration.accuracy.stated_error`). In closed loops, where it was
learned,
throughput is clients over end-to-end time: that error is the one of the speed, and moves the rate. The objective's own
error multiplies its latency. Both are taken at the same level: whoever is slower than simulated is slower in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import FloatArray
from planner.evaluation.evaluator import Observation, Verdict
from planner.problem.latency_metrics import E2E
from planner.problem.slo import Slo

LEVEL: Final = 0.9  # of the intervals printed

SAFE: Final = 0.9  # the probability a cautious operator asks for

_QUADRATURE: Final = 201  # equally likely errors averaged over

#: The statistic whose stated error is the error of the speed.
SPEED: Final = E2E.stated_error

#: Two-sided 90 % quantile of Student's t by degrees of freedom 1..9.
_T90: Final = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)

#: Probability levels of the stated error at which a run is repeated with steps that much slower.
LEVELS: Final = (0.05, 0.25, 0.5, 0.75, 0.95)

#: Independent seeds of a value whose error bars come from such runs.
SEEDS: Final = 3

#: Equally likely errors that a probability is averaged over.
_DENSE: Final = 201

#: Seconds that stand for an infinite latency between two levels: far beyond any limit.
_ENDLESS_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """An objective's statistic against the rate: increasing rates, values that never fall, stability at each."""

    rates_per_s: tuple[float, ...]
    values_s: tuple[float, ...]
    stable: tuple[bool, ...]

    @classmethod
    def of(cls, verdicts: Sequence[Verdict], slo: Slo) -> LatencyCurve:
        by_rate: dict[float, Verdict] = {}
        for v in sorted(verdicts, key=lambda v: len(v.observations)):  # of equal rates the one with most seeds counts
            by_rate[v.requests_per_s] = v
        ordered = [by_rate[rate] for rate in sorted(by_rate)]
        values = np.maximum.accumulate([v.value_s(slo) for v in ordered])
        stable = np.logical_and.accumulate([v.stable for v in ordered])
        return cls(tuple(v.requests_per_s for v in ordered), tuple(map(float, values)), tuple(map(bool, stable)))

    def scaled(self, factor: float) -> LatencyCurve:
        """All values times `factor`."""
        return LatencyCurve(self.rates_per_s, tuple(v * factor for v in self.values_s), self.stable)

    def through(self, verdict: Verdict, slo: Slo) -> LatencyCurve:
        """The curve moved to the verdict's value at its rate: of the whole cluster, where this is of one replica."""
        return self.scaled(verdict.value_s(slo) / self.value_s(verdict.requests_per_s))

    def value_s(self, rate_per_s: float) -> float:
        """Log-linear between the rates simulated, constant outside them. Seconds."""
        return float(self.values_at(np.array(rate_per_s)))

    def values_at(self, rates_per_s: FloatArray) -> FloatArray:
        """value_s of every rate."""
        found: FloatArray = np.exp(np.interp(rates_per_s, self.rates_per_s, np.log(self.values_s)))
        return found

    def is_stable(self, rate_per_s: float) -> bool:
        """Stable up to the highest rate simulated as stable (the next one up is not known to be)."""
        stable_rates = [r for r, s in zip(self.rates_per_s, self.stable, strict=True) if s]
        return bool(stable_rates) and (rate_per_s <= stable_rates[-1] or all(self.stable))


@dataclass(frozen=True, slots=True)
class Confidence:
    """value_s with its two-sided LEVEL interval, and the probability that the true value meets the limit.

    high_s is infinite where slower steps would let the queue grow: no latency then holds for long.
    """

    value_s: float
    low_s: float
    high_s: float
    probability_met: float


@dataclass(frozen=True, slots=True)
class Factors:
    """True over simulated at some probability levels, shape (levels,): of the time of every step, of the latency."""

    speed: FloatArray
    latency: FloatArray

    @classmethod
    def at(cls, levels: FloatArray, slo: Slo, error: StatedError) -> Factors:
        return cls(error.factors(SPEED, levels), error.factors(slo.latency.stated_error, levels))


@dataclass(frozen=True, slots=True)
class Spread:
    """What is uncertain. factors: equally likely, ascending; noise: standard error of the statistic's logarithm."""

    factors: Factors
    noise: float

    @classmethod
    def of(cls, observations: Sequence[Observation], slo: Slo, error: StatedError) -> Spread:
        levels = (np.arange(_QUADRATURE) + 0.5) / _QUADRATURE
        return cls(Factors.at(levels, slo, error), log_noise(observations, slo))


def confidence(verdict: Verdict, curve: LatencyCurve, slo: Slo, error: StatedError) -> Confidence:
    """The error bars of a verdict whose neighbourhood is `curve`. The interval need not hold value_s: where measured
    runs were slower than simulated ones nearly always, it lies above."""
    rate, value_s = verdict.requests_per_s, verdict.value_s(slo)
    spread = Spread.of(verdict.observations, slo, error)
    t = _T90[min(max(len(verdict.observations) - 1, 1), len(_T90)) - 1]
    levels = np.array([(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    factors = Factors.at(levels, slo, error)
    low, middle, high = (
        _log_moved(curve, rate, *pair) if curve.is_stable(rate * pair[0]) or not verdict.stable else math.inf
        for pair in zip(map(float, factors.speed), map(float, factors.latency), strict=True)
    )
    if math.isinf(middle):
        middle = low  # what lies above it holds for no queue
    ends = [
        value_s * math.exp(middle + sign * math.hypot(end - middle, t * spread.noise))
        if math.isfinite(end)
        else math.inf
        for sign, end in ((-1, low), (1, high))
    ]
    sure = probability_met(curve.through(verdict, slo), slo, rate, spread) if verdict.stable else 0.0
    return Confidence(value_s, ends[0], ends[1], sure)


def _log_moved(curve: LatencyCurve, rate_per_s: float, speed: float, latency: float) -> float:
    """Logarithm of the latency over the simulated one, where every step takes `speed` times as long."""
    return math.log(latency * curve.value_s(rate_per_s * speed) / curve.value_s(rate_per_s))


def log_noise(observations: Sequence[Observation], slo: Slo) -> float:
    """Standard error of the logarithm of the pooled statistic, from its spread over independent seeds."""
    values = np.array([slo.value_s(o.samples_s[slo.metric]) for o in observations])
    if len(values) < 2 or not np.all(np.isfinite(values)) or np.any(values <= 0):
        return 0.0
    return float(np.std(np.log(values), ddof=1) / math.sqrt(len(values)))


def probability_met(curve: LatencyCurve, slo: Slo, rate_per_s: float, spread: Spread) -> float:
    """The mean over equally likely errors of the chance that the statistic at this rate meets the limit."""
    normal = NormalDist()
    factors = spread.factors
    rates = rate_per_s * factors.speed
    margins = math.log(slo.limit_s) - np.log(factors.latency) - np.log(curve.values_at(rates))
    met = 0.0
    for rate, margin in zip(rates.tolist(), margins.tolist(), strict=True):
        if curve.is_stable(rate):
            met += normal.cdf(margin / spread.noise) if spread.noise > 0 else float(margin >= 0)
    return met / len(rates)


def safe_rate_per_s(curve: LatencyCurve, slo: Slo, highest_per_s: float, spread: Spread) -> float | None:
    """The highest rate up to `highest_per_s` that meets the limit with SAFE probability; None where none seems to."""
    rates = np.linspace(highest_per_s, 0.2 * highest_per_s, 81)
    return next((float(r) for r in rates if probability_met(curve, slo, float(r), spread) >= SAFE), None)


def interval(value: float, moved: FloatArray, noise: float, levels: Sequence[float] = LEVELS) -> tuple[float, float]:
    """Return the two-sided LEVEL interval of a value, from its values at levels of the stated error.

    It is built as in `confidence`. `moved` has shape (levels,). `noise` is the standard error of the value's logarithm
    over SEEDS seeds. Ends may be infinite; both are nan where the value itself is not a positive number.
    """
    if not 0 < value < math.inf:
        return math.nan, math.nan
    logs = np.log(moved / value)
    middle = float(np.interp(0.5, levels, logs)) if np.isfinite(logs).all() else float(logs.min())
    low, high = (math.hypot(float(end) - middle, _T90[SEEDS - 2] * noise) for end in (logs.min(), logs.max()))
    return value * math.exp(middle - low), value * math.exp(middle + high)


def probability(moved: FloatArray, noise: float, limit_s: float, levels: Sequence[float] = LEVELS) -> float:
    """Return the share of the stated error (and of the noise) under which the limit in seconds is met.

    `moved` has shape (levels,): the values at levels of the stated error, in seconds.
    """
    at = (np.arange(_DENSE) + 0.5) / _DENSE
    margins = math.log(limit_s) - np.interp(at, levels, np.log(np.minimum(moved, _ENDLESS_S)))
    if noise <= 0:
        return float(np.mean(margins >= 0))
    normal = NormalDist()
    return float(np.mean([normal.cdf(float(m) / noise) for m in margins]))
