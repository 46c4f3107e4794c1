"""Error bars: sampling noise from independent seeds, and the calibration's error carried through the load.

If every step took f times as long, a system under rate r would show f times the latencies it shows under rate r * f at
the original speed (rescale the clock). So one curve of latency against rate answers what a calibration error does near
saturation, where a plain factor on the latency would be far too kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from planner.observation import Observation, Verdict
from planner.slo import Slo

LEVEL: Final = 0.9  # of the intervals printed
SAFE: Final = 0.9  # the probability a cautious operator asks for
_QUADRATURE: Final = 201  # equally likely step-time factors averaged over
#: A normal's median absolute deviation over its standard deviation: median error -> sigma.
_MEDIAN_TO_SIGMA: Final = 0.6745
#: Two-sided 90 % quantile of Student's t by degrees of freedom 1..9.
_T90: Final = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)


@dataclass(frozen=True, slots=True)
class Curve:
    """An objective's statistic against the rate: increasing rates, values that never fall, stability at each."""

    rates_per_s: tuple[float, ...]
    values_s: tuple[float, ...]
    stable: tuple[bool, ...]

    @classmethod
    def of(cls, verdicts: Sequence[Verdict], slo: Slo) -> Curve:
        by_rate: dict[float, Verdict] = {}
        for v in sorted(verdicts, key=lambda v: len(v.observations)):  # of equal rates the one with most seeds counts
            by_rate[v.requests_per_s] = v
        ordered = [by_rate[rate] for rate in sorted(by_rate)]
        values = np.maximum.accumulate([v.value_s(slo) for v in ordered])
        stable = np.logical_and.accumulate([v.stable for v in ordered])
        return cls(tuple(v.requests_per_s for v in ordered), tuple(map(float, values)), tuple(map(bool, stable)))

    def scaled(self, factor: float) -> Curve:
        """All values times `factor`."""
        return Curve(self.rates_per_s, tuple(v * factor for v in self.values_s), self.stable)

    def through(self, verdict: Verdict, slo: Slo) -> Curve:
        """The curve moved to the verdict's value at its rate: of the whole cluster, where this is of one replica."""
        return self.scaled(verdict.value_s(slo) / self.value_s(verdict.requests_per_s))

    def value_s(self, rate_per_s: float) -> float:
        """Log-linear between the rates simulated, constant outside them. Seconds."""
        return float(np.exp(np.interp(rate_per_s, self.rates_per_s, np.log(self.values_s))))

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
class Spread:
    """What is uncertain: sigma, of the logarithm of every step time; noise, of that of the sampled statistic."""

    sigma: float
    noise: float

    @classmethod
    def of(cls, observations: Sequence[Observation], slo: Slo, expected_error: float) -> Spread:
        """expected_error: the calibration's median absolute relative error of a step time."""
        return cls(expected_error / _MEDIAN_TO_SIGMA, log_noise(observations, slo))


def confidence(verdict: Verdict, curve: Curve, slo: Slo, expected_error: float) -> Confidence:
    """The error bars of a verdict whose neighbourhood is `curve`."""
    rate, value_s = verdict.requests_per_s, verdict.value_s(slo)
    spread = Spread.of(verdict.observations, slo, expected_error)
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    t = _T90[min(max(len(verdict.observations) - 1, 1), len(_T90)) - 1]
    ends = []
    for sign in (-1, 1):
        slower = math.exp(sign * z * spread.sigma)
        if verdict.stable and not curve.is_stable(rate * slower):
            ends.append(math.inf)
            continue
        moved = slower * curve.value_s(rate * slower) / curve.value_s(rate)
        ends.append(value_s * math.exp(sign * math.hypot(math.log(moved), t * spread.noise)))
    sure = probability_met(curve.through(verdict, slo), slo, rate, spread) if verdict.stable else 0.0
    return Confidence(value_s, ends[0], ends[1], sure)


def log_noise(observations: Sequence[Observation], slo: Slo) -> float:
    """Standard error of the logarithm of the pooled statistic, from its spread over independent seeds."""
    values = np.array([slo.value_s(o.samples_s[slo.metric]) for o in observations])
    if len(values) < 2 or not np.all(np.isfinite(values)) or np.any(values <= 0):
        return 0.0
    return float(np.std(np.log(values), ddof=1) / math.sqrt(len(values)))


def probability_met(curve: Curve, slo: Slo, rate_per_s: float, spread: Spread) -> float:
    """The mean over log-normal step times of the chance that the statistic at this rate meets the limit."""
    normal = NormalDist()
    n = 1 if spread.sigma == 0 else _QUADRATURE
    met = 0.0
    for i in range(n):
        slower = math.exp(spread.sigma * normal.inv_cdf((i + 0.5) / n))
        if not curve.is_stable(rate_per_s * slower):
            continue
        margin = math.log(slo.limit_s / (slower * curve.value_s(rate_per_s * slower)))
        met += normal.cdf(margin / spread.noise) if spread.noise > 0 else float(margin >= 0)
    return met / n


def safe_rate_per_s(curve: Curve, slo: Slo, highest_per_s: float, spread: Spread) -> float | None:
    """The highest rate up to `highest_per_s` that meets the limit with SAFE probability; None where none seems to."""
    rates = np.linspace(highest_per_s, 0.2 * highest_per_s, 81)
    return next((float(r) for r in rates if probability_met(curve, slo, float(r), spread) >= SAFE), None)
