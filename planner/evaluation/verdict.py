"""The comparison of observed runs with the objectives of a request, with an allowance for the simulator's error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from calibration.accuracy.stated_error import ALL_WAITING, WAITING_METRICS, StatedError, waiting_share
from catalogs.ui.words import percent
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.observation import Load, Observation
from planner.evaluation.stability import CLEAR_OVERLOAD_GROWTH
from planner.problem.candidate import Candidate
from planner.problem.slo import Slo

#: A short run rules out a candidate only if it misses an objective by more than its noise could explain.
SHORT_RUN_MARGIN: Final = 1.3


@dataclass(frozen=True, slots=True)
class ErrorAllowance:
    """Factors on simulated times that allow for the error of the simulator at one confidence.

    An objective is met with confidence c if it is met when every step takes as long, and every latency is as far off,
    as at probability level c of the stated error. Steps that take `speed` times as long are simulated as a higher
    rate: see `planner.evaluation.confidence`.

    Attributes:
        speed: Factor on the time of every step, and so on the rate of a run.
        confidence: The probability level of the error.
        error: The stated error; None takes simulated values as they are.
    """

    speed: float = 1.0
    confidence: float = 0.5
    error: StatedError | None = None

    def latency(self, slo: Slo, waiting: float = ALL_WAITING) -> float:
        """Return the factor on the statistic of an objective of which the share `waiting` is waiting.

        Where measured runs were mostly faster than simulated ones, the simulated value itself must still meet the
        limit, so no factor is below 1.
        """
        if self.error is None:
            return 1.0
        factors = self.error.factors(slo.latency.stated_error, np.array([self.confidence]), waiting)
        return max(float(factors[0]), 1.0)


#: The allowance that takes simulated values as they are.
NO_ALLOWANCE: Final = ErrorAllowance()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Comparison of the objectives of a request with one or more observations of the same load (seeds pooled).

    Attributes:
        requests_per_s: The rate that the verdict is about; with an allowance, the simulated load is another one.
        observations: One observation per seed.
        value_ratio: The largest value / limit, with the allowance for the error.
        worst: The objective with this ratio.
        stable: Whether the system kept up with every seed.
    """

    requests_per_s: float
    observations: tuple[Observation, ...]
    value_ratio: float
    worst: Slo
    stable: bool

    @property
    def ratio(self) -> float:
        """Return `value_ratio`, or infinity if the system does not keep up: a short run may hide that."""
        return self.value_ratio if self.stable else float("inf")

    @property
    def met(self) -> bool:
        """Return whether every objective is met."""
        return self.ratio <= 1

    @property
    def clearly_missed(self) -> bool:
        """Return whether a short run, which may not be steady yet, misses beyond its noise or is far overloaded."""
        return self.value_ratio > SHORT_RUN_MARGIN or self.far_behind

    @property
    def far_behind(self) -> bool:
        """Return whether the system is far overloaded in any run."""
        return any(o.growth_fraction > CLEAR_OVERLOAD_GROWTH for o in self.observations)

    @property
    def joules_per_output_token(self) -> float:
        """Return the mean energy of an output token over all seeds."""
        return float(np.mean([o.joules_per_output_token for o in self.observations]))

    @property
    def rejection(self) -> str:
        """Return which requests are rejected because of their size, in words; empty if they are not the problem.

        They are the problem if the system does not keep up and they are most of what it does not serve, or if an
        objective is infinite and it keeps up.
        """
        share = float(np.mean([o.rejected_fraction for o in self.observations]))
        growth = float(np.mean([o.growth_fraction for o in self.observations]))
        if not share or (share < growth / 2 if not self.stable else math.isfinite(self.value_ratio)):
            return ""
        because = max(self.observations, key=lambda o: o.rejected_fraction).rejected_because
        return f"{percent(share)} of requests are {because}"

    def mean_s(self, metric: str) -> float:
        """Return the mean of a metric over all seeds pooled, seconds."""
        return float(np.mean(np.concatenate([o.samples_s[metric] for o in self.observations])))

    @property
    def simulated_per_s(self) -> float:
        """Return the rate of the simulated load, requests per second."""
        return self.observations[0].load.requests_per_s

    def value_s(self, slo: Slo) -> float:
        """Return the simulated statistic of the objective over all seeds pooled, seconds."""
        return pooled_value_s(self.observations, slo)

    def waiting_share(self, slo: Slo) -> float:
        """Return the share of the objective's statistic that is waiting, over all seeds pooled."""
        return pooled_waiting_share(self.observations, slo)


def pooled_waiting_share(observations: Sequence[Observation], slo: Slo) -> float:
    """Return the share of the statistic of an objective that is waiting for the first step.

    The result is ALL_WAITING where that is not known, and for metrics whose error does not depend on it.
    """
    queues = [queue_s for queue_s in (o.queue_of(slo) for o in observations) if queue_s is not None]
    if slo.latency.stated_error not in WAITING_METRICS or len(queues) < len(observations):
        return ALL_WAITING
    first_s = np.concatenate([o.samples_s[slo.metric] for o in observations])
    return waiting_share(first_s, np.concatenate(queues), slo.value_s)


def pooled_value_s(observations: Sequence[Observation], slo: Slo) -> float:
    """Return the statistic of an objective over the pooled samples of all observations, seconds."""
    return slo.value_s(np.concatenate([o.samples_s[slo.metric] for o in observations]))


def judge(observations: Iterable[Observation], slos: Sequence[Slo], allowance: ErrorAllowance | None = None) -> Verdict:
    """Compare pooled statistics with the limits; without samples (one-token outputs have no tpot) a limit is met.

    With an allowance, the verdict is about the rate whose load was simulated with slower steps.
    """
    seen = tuple(observations)
    allowed = allowance or NO_ALLOWANCE
    stable = all(o.stable for o in seen)
    factors = [allowed.latency(slo, pooled_waiting_share(seen, slo)) if allowed.error else 1.0 for slo in slos]
    values_s = [pooled_value_s(seen, slo) * factor for slo, factor in zip(slos, factors, strict=True)]
    ratios = [0.0 if np.isnan(v) else v / slo.limit_s for v, slo in zip(values_s, slos, strict=True)]
    worst = int(np.argmax(ratios))
    return Verdict(seen[0].load.requests_per_s / allowed.speed, seen, ratios[worst], slos[worst], stable)


def verdict_of(
    evaluator: Evaluator,
    candidate: Candidate,
    loads: Sequence[Load],
    slos: Sequence[Slo],
    allowance: ErrorAllowance | None = None,
    each: Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]] = map,
    seen: Callable[[Observation], None] | None = None,
) -> Verdict:
    """Return the verdict of one run for each load, with longer runs where it is undecided whether the system keeps up.

    Only runs that together meet the objectives are extended, because a longer run has other requests: the objectives
    must not be met by these at one rate after they were missed at a lower rate by the requests of all other runs.

    Args:
        evaluator: Simulates the candidate.
        candidate: The candidate.
        loads: The loads, of one rate.
        slos: The objectives.
        allowance: The allowance for the error with which the objectives are judged.
        each: Applies a function to each of several loads, in this process or in others.
        seen: Called with the observation of every run.
    """
    observe = partial(evaluator.observe, candidate)
    found: list[Observation] = list(each(observe, [replace(load, patient=False) for load in loads]))
    for observation in found:
        if seen is not None:
            seen(observation)
    verdict = judge(found, slos, allowance)
    longer = [i for i, load in enumerate(loads) if load.patient and found[i].undecided]
    if not longer or verdict.value_ratio > 1:
        return verdict
    for i, observation in zip(longer, each(observe, [loads[i] for i in longer]), strict=True):
        found[i] = observation
        if seen is not None:
            seen(observation)
    return judge(found, slos, allowance)
