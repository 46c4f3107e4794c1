"""Error bars: sampling noise from independent seeds, and the stated error propagated through the load.

If every step took f times as long, a system under rate r would show f times the latencies that it shows under rate
r * f at the original speed (a rescaled clock). One curve of latency against rate therefore gives the effect of slower
steps near saturation, where a plain factor on the latency would be far too optimistic.

The error of whole runs is known for each statistic (`calibration.accuracy.stated_error`). In closed loops, where it was
measured, throughput is clients over end-to-end time: that error is the error of the speed, and changes the rate. The
error of the objective's own statistic multiplies its latency. The error of a time to first token grows with the share
of it that is waiting, so a curve also has that share at each rate. Both are taken at the same probability level: a
system that is slower than simulated is slower in both. The probability that an objective is met is therefore at least c
if the objective is met with both errors at level c (`allowance_for`): this is how one run decides at any confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from calibration.accuracy.stated_error import ALL_WAITING, StatedError
from catalogs.arrays import FloatArray
from catalogs.statistics import student_t_cdf, student_t_quantile
from planner.evaluation.observation import Observation
from planner.evaluation.verdict import ErrorAllowance, Verdict
from planner.problem.latency_metrics import E2E
from planner.problem.slo import Slo

#: Level of the printed intervals where the answer's confidence does not set it (see `interval_level`). A convention:
#: nine of ten.
LEVEL: Final = 0.9

#: Least level of the interval around the value of an objective. A judgement: a narrower interval would look like
#: certainty.
LEAST_LEVEL: Final = 0.8

#: Probabilities of the equally likely errors over which a probability is averaged. A judgement: 201 of them resolve
#: half a per cent.
_EQUALLY_LIKELY: Final = (np.arange(201) + 0.5) / 201

#: The statistic whose stated error is the error of the speed.
SPEED: Final = E2E.stated_error

#: Probability levels of the stated error; a run is repeated with steps slowed by the error at each level. A judgement
#: of cost: both ends of the interval, the middle, and one level between on each side.
LEVELS: Final = (0.05, 0.25, 0.5, 0.75, 0.95)

#: Independent seeds of a value with error bars from such runs. A judgement of cost: each level repeats them.
SEEDS: Final = 3

#: The distribution of the noise is searched this many standard errors beyond the simulated values. It only bounds the
#: bisection.
_WIDEST_NOISE: Final = 100.0

#: Halvings of the search for a quantile. They exhaust the precision of a double.
_HALVINGS: Final = 60

#: A probability just below one half, which is printed as 49 %: confidences are rounded down to whole percent.
_BELOW_HALF: Final = 0.5 - 1e-6

#: Seconds that replace an infinite latency when levels are interpolated: far beyond any limit.
_ENDLESS_S: Final = 1e9

#: Quantiles above this, four months, are those of a deployment that may not keep up with its load: there is no end.
_LONGEST_S: Final = 1e7


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """The statistic of an objective against the rate.

    Attributes:
        rates_per_s: Increasing rates, requests per second.
        values_s: The statistic at each rate, seconds; it never decreases.
        stable: Whether the system keeps up at each rate.
        waiting: Share of the statistic that is waiting at each rate; it never decreases, so that a higher
            rate never has a higher confidence. Empty: everything waits.
    """

    rates_per_s: tuple[float, ...]
    values_s: tuple[float, ...]
    stable: tuple[bool, ...]
    waiting: tuple[float, ...] = ()

    @classmethod
    def of(cls, verdicts: Sequence[Verdict], slo: Slo) -> LatencyCurve:
        """Return the curve through verdicts; of several at one rate the one with the most seeds counts."""
        by_rate: dict[float, Verdict] = {}
        for v in sorted(verdicts, key=lambda v: len(v.observations)):
            by_rate[v.simulated_per_s] = v
        ordered = [by_rate[rate] for rate in sorted(by_rate)]
        values = np.maximum.accumulate([v.value_s(slo) for v in ordered])
        stable = np.logical_and.accumulate([v.stable for v in ordered])
        rates = tuple(v.simulated_per_s for v in ordered)
        waiting = np.maximum.accumulate([v.waiting_share(slo) for v in ordered])
        return cls(rates, tuple(map(float, values)), tuple(map(bool, stable)), tuple(map(float, waiting)))

    def through(self, verdict: Verdict, slo: Slo) -> LatencyCurve:
        """Return the curve scaled to the verdict's value at its rate, and its waiting share moved to the verdict's.

        This turns a curve of one replica into that of the whole cluster.
        """
        factor = verdict.value_s(slo) / self.value_s(verdict.simulated_per_s)
        here = np.array([verdict.simulated_per_s])
        more = verdict.waiting_share(slo) - float(self.waiting_at(here)[0])
        waiting = tuple(min(max(share + more, 0.0), 1.0) for share in self.waiting)
        return replace(self, values_s=tuple(v * factor for v in self.values_s), waiting=waiting)

    def value_s(self, rate_per_s: float) -> float:
        """Return the value at a rate, seconds: log-linear between the simulated rates, constant outside them."""
        return float(self.values_at(np.array(rate_per_s)))

    def values_at(self, rates_per_s: FloatArray) -> FloatArray:
        """Return `value_s` of every rate. Shape (n,), as `rates_per_s`."""
        found: FloatArray = np.exp(np.interp(rates_per_s, self.rates_per_s, np.log(self.values_s)))
        return found

    def waiting_at(self, rates_per_s: FloatArray) -> FloatArray:
        """Return the share that is waiting at every rate, interpolated. Shape (n,), as `rates_per_s`."""
        if not self.waiting:
            return np.full(rates_per_s.shape, ALL_WAITING)
        found: FloatArray = np.interp(rates_per_s, self.rates_per_s, self.waiting)
        return found

    def is_stable(self, rate_per_s: float) -> bool:
        """Return whether a rate is stable: up to the highest rate that was simulated as stable."""
        stable_rates = [r for r, s in zip(self.rates_per_s, self.stable, strict=True) if s]
        return bool(stable_rates) and (rate_per_s <= stable_rates[-1] or all(self.stable))


#: A limit that is at least this many times the latency at the capacity is not what limits it. A judgement: the queue
#: then grows without limit a few per cent above this rate.
_LIMIT_TO_LATENCY: Final = 4.0


@dataclass(frozen=True, slots=True)
class Confidence:
    """A value with its two-sided interval, and the probability that the true value meets the limit.

    Attributes:
        value_s: The simulated value, seconds.
        low_s: Lower end of the interval, seconds.
        high_s: Upper end, seconds; infinite if slower steps would let the queue grow without limit.
        probability_met: Probability that the true value meets the limit.
        level: Level of the interval.
        at_confidence_s: The value that the true value does not exceed with the answer's confidence, seconds; None:
            unknown.
    """

    value_s: float
    low_s: float
    high_s: float
    probability_met: float
    level: float = LEVEL
    at_confidence_s: float | None = None

    def is_far_from(self, limit_s: float) -> bool:
        """Return whether a latency at the capacity is so far below its limit that it is not what limits the capacity.

        It can only rise to its limit just above this rate because the queue grows without limit there.
        """
        return self.at_confidence_s is not None and self.at_confidence_s * _LIMIT_TO_LATENCY <= limit_s


@dataclass(frozen=True, slots=True)
class Factors:
    """Ratios of true to simulated values at some probability levels, each of shape (levels,).

    Attributes:
        speed: Ratio of the time of every step.
        latency: Ratio of the latency.
        by_waiting: Returns the ratio of the latency from the share of it that is waiting at each level, of shape
            (levels,); None if `latency` holds for every share.
    """

    speed: FloatArray
    latency: FloatArray
    by_waiting: Callable[[FloatArray], FloatArray] | None = None

    @classmethod
    def at(cls, levels: FloatArray, slo: Slo, error: StatedError, waiting: float | FloatArray = ALL_WAITING) -> Factors:
        """Return the ratios at these probability levels, of shape (levels,), for the statistic of an objective.

        `waiting` is the share of the statistic that is waiting, one or of shape (levels,).
        """
        metric = slo.latency.stated_error
        by_waiting = partial(error.factors, metric, levels) if error.waits(metric) else None
        return cls(error.factors(SPEED, levels), error.factors(metric, levels, waiting), by_waiting)

    def latency_at(self, waiting: FloatArray) -> FloatArray:
        """Return the ratios of a latency of which these shares are waiting, both of shape (levels,)."""
        return self.latency if self.by_waiting is None else self.by_waiting(waiting)


@dataclass(frozen=True, slots=True)
class Spread:
    """The uncertainty of a statistic, from the stated error and from the sampling noise.

    Attributes:
        factors: Equally likely ratios of true to simulated values, ascending.
        noise: Standard error of the statistic's logarithm.
        seeds: Independent seeds behind the noise.
    """

    factors: Factors
    noise: float
    seeds: int

    @classmethod
    def of(cls, observations: Sequence[Observation], slo: Slo, error: StatedError) -> Spread:
        """Return the uncertainty of an objective's statistic over independent seeds."""
        return cls(
            Factors.at(_EQUALLY_LIKELY, slo, error), log_noise(seed_values(observations, slo)), len(observations)
        )


def seed_values(observations: Sequence[Observation], slo: Slo) -> FloatArray:
    """Return the statistic of an objective for each independent seed, seconds. Shape (seeds,)."""
    return np.array([slo.value_s(o.samples_s[slo.metric]) for o in observations])


def log_noise(values_s: FloatArray) -> float:
    """Return the standard error of the logarithm of a statistic over independent seeds; 0 if it is not known.

    `values_s` has shape (seeds,).
    """
    known = len(values_s) > 1 and bool(np.all(np.isfinite(values_s)) and np.all(values_s > 0))
    return float(np.std(np.log(values_s), ddof=1) / math.sqrt(len(values_s))) if known else 0.0


def allowance_for(confidence: float, error: StatedError) -> ErrorAllowance:
    """Return the allowance for the stated error at a confidence: the errors at that probability level.

    Where measured runs were mostly faster than simulated ones, the simulated steps themselves must still be fast
    enough, so the factor on their time is not below 1.
    """
    speed = max(float(error.factors(SPEED, np.array([confidence]))[0]), 1.0)
    return ErrorAllowance(speed, confidence, error)


def interval_level(confidence: float) -> float:
    """Return the level of the interval around a value whose upper end is the value at the answer's confidence.

    The interval of an objective that is met therefore ends below its limit. The level is at least LEAST_LEVEL: the
    default confidence of 90 % gives an interval from the 10 % to the 90 % level. A confidence of 70 % would give an
    interval of level 40 %, which contains fewer than half of all true values, and one of 50 % none at all. So for
    confidences below 90 % the interval may end beyond a limit that is met, and the verdict then states the value at the
    confidence (`planner.sections.section.verdict_words`).
    """
    return max(LEAST_LEVEL, 2 * confidence - 1)


def confidence(
    verdict: Verdict, curve: LatencyCurve, slo: Slo, error: StatedError, required: float = LEVEL
) -> Confidence:
    """Return the error bars of a verdict.

    `curve` is the latency curve around its rate, and `required` the confidence of the answer.

    An objective on a metric that no request has, such as the time per token of one-token outputs, is met for certain.
    """
    value_s, level = verdict.value_s(slo), interval_level(required)
    if not math.isfinite(value_s):  # no sample has the metric, or a request was never answered
        return Confidence(value_s, value_s, value_s, float(math.isnan(value_s)), level, value_s)
    spread = Spread.of(verdict.observations, slo, error)
    at_rate = curve.through(verdict, slo)
    values = PossibleValues.of(at_rate, verdict.simulated_per_s, spread, stable=verdict.stable)
    found = replace(values, simulated_s=value_s).confidence(slo, required, level)
    return found if verdict.stable else replace(found, probability_met=0.0, at_confidence_s=math.inf)


def error_levels(required: float) -> tuple[float, ...]:
    """Return the levels of the stated error at which runs are repeated for an answer of this confidence, ascending.

    They are LEVELS, and where the interval of the confidence is wider, both of its ends: values beyond the levels are
    taken as constant, so a higher confidence could not fail.
    """
    return tuple(sorted({*LEVELS, max(required, LEVELS[-1]), min(1 - required, LEVELS[0])}))


def confidence_at_levels(
    value_s: float, values_s: FloatArray, noise: float, slo: Slo, required: float, levels: Sequence[float] = LEVELS
) -> Confidence:
    """Return the error bars of a value that was simulated at some levels of the stated error as well.

    The level of the interval is that of `interval_level`, as for a value with a latency curve (`confidence`).

    Args:
        value_s: The simulated value, seconds.
        values_s: The values at the levels, seconds. Shape (levels,).
        noise: Standard error of the value's logarithm over SEEDS seeds.
        slo: The objective.
        required: The confidence of the answer.
        levels: The levels, ascending. Beyond them the values are taken as constant.
    """
    level = interval_level(required)
    if not math.isfinite(value_s):
        return Confidence(value_s, value_s, value_s, float(math.isnan(value_s)), level, value_s)
    return PossibleValues.at_levels(value_s, values_s, noise, levels).confidence(slo, required, level)


@dataclass(frozen=True, slots=True)
class PossibleValues:
    """The distribution of the true value of a statistic: a mixture over the equally likely errors of the simulator.

    The interval, the value at the confidence and the probability of an objective are all taken from it, so they cannot
    contradict each other. Nor can they contradict the simulated value, which the interval always contains: where
    measured runs were mostly slower, its lower end is the simulated value, and where they were mostly faster, or the
    noise is skewed, the values at probabilities of one half and more are not below the simulated value. An objective
    whose simulated value misses the limit is therefore met with a probability below one half.

    Attributes:
        log_values: Logarithm of the value with each error, seconds; infinite where the queue grows. Shape (errors,).
        noise: Standard error of the logarithm of the simulated statistic, from `seeds` independent seeds.
        seeds: Number of seeds; the noise has Student's t distribution with one degree of freedom less.
        simulated_s: The simulated value, seconds.
    """

    log_values: FloatArray
    noise: float
    seeds: int
    simulated_s: float = 0.0

    @classmethod
    def of(cls, curve: LatencyCurve, rate_per_s: float, spread: Spread, stable: bool = True) -> PossibleValues:
        """Return the distribution at a rate. An unstable run has finite values: those of its length."""
        rates = rate_per_s * spread.factors.speed
        logs = np.log(spread.factors.latency_at(curve.waiting_at(rates))) + np.log(curve.values_at(rates))
        if stable:
            logs = np.where([curve.is_stable(rate) for rate in rates.tolist()], logs, np.inf)
        return cls(logs, spread.noise, spread.seeds, curve.value_s(rate_per_s))

    @classmethod
    def at_levels(
        cls, simulated_s: float, values_s: FloatArray, noise: float, levels: Sequence[float] = LEVELS
    ) -> PossibleValues:
        """Return the distribution through values at levels of the stated error, seconds; constant beyond the levels.

        `values_s` has shape (levels,), and `noise` is that of SEEDS seeds.
        """
        logs = np.log(np.minimum(np.maximum.accumulate(values_s), _ENDLESS_S))
        between = np.interp(_EQUALLY_LIKELY, levels, logs)
        return cls(np.where(between < math.log(_ENDLESS_S), between, np.inf), noise, SEEDS, simulated_s)

    def confidence(self, slo: Slo, required: float, level: float) -> Confidence:
        """Return the error bars of an objective: an interval of a level, and the value at a confidence."""
        low_s = min(self.quantile_s((1 - level) / 2), self.simulated_s)
        high_s = self.quantile_s((1 + level) / 2)
        met = self.share_within(slo.limit_s)
        return Confidence(self.simulated_s, low_s, high_s, met, level, self.quantile_s(required))

    def share_within(self, limit_s: float) -> float:
        """Return the probability that the true value is at most a limit in seconds."""
        share = self._share(math.log(limit_s))
        return share if limit_s >= self.simulated_s else min(share, _BELOW_HALF)

    def quantile_s(self, share: float) -> float:
        """Return the value in seconds that the true value exceeds with probability 1 - `share`; it may be infinite."""
        return max(self._quantile_s(share), self.simulated_s) if share > _BELOW_HALF else self._quantile_s(share)

    def _quantile_s(self, share: float) -> float:
        finite = self.log_values[np.isfinite(self.log_values)]
        if not len(finite) or share * len(self.log_values) > len(finite):
            return math.inf
        low, high = float(finite.min()), float(finite.max())
        if self.noise > 0:
            low, high = low - _WIDEST_NOISE * self.noise, high + _WIDEST_NOISE * self.noise
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._share(middle) >= share else (middle, high)
        return math.exp(high) if high < math.log(_LONGEST_S) else math.inf

    def _share(self, log_limit: float) -> float:
        margins = log_limit - self.log_values
        if self.noise <= 0:
            return float(np.mean(margins >= 0))
        with np.errstate(over="ignore"):  # A margin divided by hardly any noise is infinite: its share is 0 or 1.
            return float(np.mean(student_t_cdf(self.seeds - 1, margins / self.noise)))


def probability_met(curve: LatencyCurve, slo: Slo, rate_per_s: float, spread: Spread) -> float:
    """Return the probability that the statistic at this rate meets the limit, averaged over equally likely errors."""
    return PossibleValues.of(curve, rate_per_s, spread).share_within(slo.limit_s)


def confident_rate_per_s(
    curve: LatencyCurve, slo: Slo, highest_per_s: float, spread: Spread, confidence: float
) -> float | None:
    """Return the highest rate up to `highest_per_s` that meets the limit with this confidence; None if none does."""
    rates = np.linspace(highest_per_s, 0.2 * highest_per_s, 81)
    return next((float(r) for r in rates if probability_met(curve, slo, float(r), spread) >= confidence), None)


def interval(value: float, moved: FloatArray, noise: float, levels: Sequence[float] = LEVELS) -> tuple[float, float]:
    """Return the interval, from the lowest to the highest level, of a figure that is compared with no limit.

    `moved` holds the values at levels of the stated error that are symmetric about 0.5; shape (levels,). LEVELS give an
    interval of level LEVEL. `noise` is the standard error of the value's logarithm over SEEDS seeds. Ends may be
    infinite; both are nan where the value itself is not a positive number.
    """
    if not 0 < value < math.inf:
        return math.nan, math.nan
    logs = np.log(moved / value)
    middle = float(np.interp(0.5, levels, logs)) if np.isfinite(logs).all() else float(logs.min())
    if noise > 0:
        noise *= student_t_quantile(SEEDS - 1, levels[-1])
    low, high = (math.hypot(float(end) - middle, noise) for end in (logs.min(), logs.max()))
    return value * math.exp(middle - low), value * math.exp(middle + high)
