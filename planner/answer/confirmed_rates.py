"""Confirmed rates: runs with several seeds show that a plan meets its objectives with the required confidence.

Verdicts at neighbouring rates form the latency curve, which shows the effect of slower and faster steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from calibration.accuracy.stated_error import StatedError
from planner.answer.curve_rates import higher_rates, lower_rates
from planner.answer.plan_schema import QUEUE
from planner.evaluation.capacity import WIDEN, find_capacity
from planner.evaluation.confidence import (
    Confidence,
    LatencyCurve,
    Spread,
    allowance_for,
    confidence,
    confident_rate_per_s,
)
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.observation import Load, Observation, RunDetail
from planner.evaluation.verdict import NO_ALLOWANCE, SHORT_RUN_MARGIN, Verdict, judge, verdict_of
from planner.problem.candidate import Candidate
from planner.search.candidate_tester import CandidateTester
from planner.search.workers import run_tasks

#: Probability level of the slowest steps whose rate is simulated. A judgement: slower steps count like these, so that a
#: printed probability is too high by 2 % at most.
_TAIL_LEVEL: Final = 0.98

#: Most replicas that are simulated together; of larger deployments one replica under its share is simulated. A
#: judgement of cost: the time of a run grows with the replicas.
MOST_REPLICAS: Final = 64

#: Factor between the first two rates of a search for a capacity that begins at a rate that was just missed. A
#: judgement: the capacity is mostly a few per cent below, and the factor of each further step is squared.
_STEP_FROM_MISSED: Final = 1.05

#: Least seeds of figures with error bars. A judgement: the fewest that show a spread with more than one difference.
LEAST_SEEDS: Final = 3


@dataclass(frozen=True, slots=True)
class SeedBudget:
    """Independent seeds for the capacity, for the latency curve around it, and for the figures of the plan.

    Attributes:
        capacity: Seeds for the capacity.
        curve: Seeds for each rate of the latency curve.
        figures: Seeds for the figures.
        whole_cluster: Whether the figures come from all replicas together.
        confirms: Whether a rate is confirmed only by the runs at and around it alone, as in a request for that rate.
        most_raises: How often a capacity is raised at most while it is confirmed.
    """

    capacity: int
    curve: int
    figures: int
    whole_cluster: bool
    confirms: bool
    most_raises: int


BEST: Final = SeedBudget(capacity=4, curve=2, figures=4, whole_cluster=True, confirms=True, most_raises=3)

OTHER: Final = SeedBudget(capacity=1, curve=1, figures=3, whole_cluster=False, confirms=False, most_raises=10)


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """The figures of a plan at one rate, with their verdict."""

    requests_per_s: float
    details: list[RunDetail]
    verdict: Verdict

    @property
    def error(self) -> StatedError:
        """Return the stated error of the figures."""
        return self.details[0].error


@dataclass(frozen=True, slots=True)
class ConfirmedRates:
    """Simulates candidates at rates with several seeds, and decides whether these confirm the rates.

    `each` applies a function to each of several runs, in this process or in others, and returns the results in order.
    """

    evaluator: Evaluator
    tester: CandidateTester
    each: Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]] = map

    # ---- the figures and verdicts of one candidate

    def point(self, candidate: Candidate, rate: float, budget: SeedBudget) -> PlanPoint:
        """Return the figures of a plan at a rate, with all seeds."""
        return self._point_of(rate, self._simulated(candidate, self._figures(candidate, rate, budget), ()))

    def point_and_slower(
        self, candidate: Candidate, rate: float, budget: SeedBudget
    ) -> tuple[PlanPoint, list[Verdict]]:
        """Return the figures of a plan at a rate and the verdicts of `slower`, with all runs shared out together."""
        figures, rates = self._figures(candidate, rate, budget), self._slower_rates(candidate, rate)
        details = self._simulated(candidate, figures, self._loads(rates, budget.curve))
        return self._point_of(rate, details), self.slower(candidate, rate, budget.curve)

    def around(self, candidate: Candidate, rate: float, n_seeds: int) -> list[Verdict]:
        """Return the verdicts at and around a rate, which show the effect of slower and of faster steps."""
        return self.verdicts(candidate, (*lower_rates(rate), *self._slower_rates(candidate, rate)), n_seeds)

    def slower(self, candidate: Candidate, rate: float, n_seeds: int) -> list[Verdict]:
        """Return the verdicts at a rate and above it, which show the effect of slower steps."""
        return self.verdicts(candidate, self._slower_rates(candidate, rate), n_seeds)

    def faster(self, candidate: Candidate, rate: float, n_seeds: int) -> list[Verdict]:
        """Return the verdicts below a rate, which show the effect of faster steps."""
        return self.verdicts(candidate, lower_rates(rate), n_seeds)

    def verdicts(self, candidate: Candidate, rates: Sequence[float], n_seeds: int) -> list[Verdict]:
        """Return the verdicts at several rates as simulated, with all runs shared out together."""
        self._simulated(candidate, (), self._loads(rates, n_seeds))
        return [self.verdict(candidate, rate, n_seeds) for rate in rates]

    def verdict(self, candidate: Candidate, rate: float, n_seeds: int, *, allow: bool = False) -> Verdict:
        """Return the verdict at a rate as simulated; with `allow`, with the allowance for the required confidence."""
        allowance = self.tester.allowance(candidate) if allow else NO_ALLOWANCE
        loads = [replace(load, patient=True) for load in self._loads([rate * allowance.speed], n_seeds)]
        each = partial(self._observed, candidate)
        return verdict_of(self.evaluator, candidate, loads, self.tester.slos, allowance, each)

    def _slower_rates(self, candidate: Candidate, rate: float) -> tuple[float, ...]:
        """Return a rate and the higher rates at which the effect of slower steps is simulated."""
        allowance = self.tester.allowance(candidate)
        slowest = 1.0 if allowance.error is None else allowance_for(_TAIL_LEVEL, allowance.error).speed
        return (rate, *higher_rates(rate, allowance.speed, max(slowest, allowance.speed)))

    def _figures(self, candidate: Candidate, rate: float, budget: SeedBudget) -> list[Load]:
        """Return the loads of the runs behind the figures of a plan, one for each seed.

        The best plan is simulated as a whole cluster, which needs fewer seeds because it has many replicas.
        """
        whole = budget.whole_cluster and 1 < candidate.replicas <= MOST_REPLICAS
        n_seeds = max(LEAST_SEEDS, budget.figures // 2) if whole else budget.figures
        return [replace(load, whole_cluster=whole, patient=True) for load in self._loads([rate], n_seeds)]

    def _loads(self, rates: Iterable[float], n_seeds: int) -> list[Load]:
        """Return the loads of the runs with which a verdict at each rate begins, one for each seed."""
        n, seed = self.tester.sizes.full, self.tester.seed
        return [Load(rate, n, seed + i, patient=False) for rate in rates for i in range(n_seeds)]

    def _point_of(self, rate: float, details: list[RunDetail]) -> PlanPoint:
        return PlanPoint(rate, details, judge([d.observation for d in details], self.tester.slos))

    # ---- runs, which the workers share

    def _simulated(self, candidate: Candidate, figures: Sequence[Load], others: Sequence[Load]) -> list[RunDetail]:
        """Return the results of the runs of some loads, and observe other loads, with all runs shared out together."""
        alone = {_first_run(load) for load in figures if not load.whole_cluster}
        unknown = [load for load in dict.fromkeys(others) if load not in alone]
        unknown = [load for load in unknown if not self.evaluator.knows(candidate, load)]
        results = run_tasks(
            self.each,
            [
                *(partial(self._detail, candidate, load) for load in figures),
                *(partial(self._observation, candidate, load) for load in unknown),
            ],
        )
        for _, seen in results:
            for observation in seen:
                self.evaluator.keep(candidate, observation)
        return [detail for detail, _ in results if detail is not None]

    def _detail(self, candidate: Candidate, load: Load) -> tuple[RunDetail | None, list[Observation]]:
        """Return the results of a run, and what was observed for them: for a whole cluster, one replica as well."""
        found, alone = self.evaluator.detail(candidate, load), replace(load, whole_cluster=False)
        known = [each for each in (_first_run(alone), alone) if self.evaluator.knows(candidate, each)]
        return found, [found.observation, *(self.evaluator.observe(candidate, each) for each in known)]

    def _observation(self, candidate: Candidate, load: Load) -> tuple[RunDetail | None, list[Observation]]:
        return None, [self.evaluator.observe(candidate, load)]

    def _observed(
        self, candidate: Candidate, observe: Callable[[Load], Observation], loads: Sequence[Load]
    ) -> list[Observation]:
        """Return the observations of loads; the workers share those that are not known."""
        unknown = [load for load in loads if not self.evaluator.knows(candidate, load)]
        found = dict(zip(unknown, self.each(observe, unknown), strict=True))
        for seen in found.values():
            self.evaluator.keep(candidate, seen)
        return [found[load] if load in found else observe(load) for load in loads]

    # ---- what they confirm

    def bars(self, verdict: Verdict, seen: Sequence[Verdict], error: StatedError) -> list[Confidence]:
        """Return the error bars of every objective."""
        required = self.tester.confidence
        return [confidence(verdict, LatencyCurve.of(seen, slo), slo, error, required) for slo in self.tester.slos]

    def meets_confidence(self, verdict: Verdict, bars: Iterable[Confidence], margin: float = 0.0) -> bool:
        """Return whether every objective is met, in the simulation and with the required confidence less `margin`."""
        return verdict.met and all(bar.probability_met >= self.tester.confidence - margin for bar in bars)

    def is_confirmed(self, at: PlanPoint, seen: list[Verdict], margin: float = 0.0) -> bool:
        """Return whether the rate of a point is confirmed, by the curve that the verdicts form.

        Args:
            at: The figures at the rate.
            seen: The verdicts that form the latency curve.
            margin: By how much the probability of an objective may be below the required confidence.
        """
        return self.meets_confidence(at.verdict, self.bars(at.verdict, seen, at.error), margin)

    def missed(self, verdict: Verdict, bars: Sequence[Confidence]) -> str:
        """Return what limits a plan whose rate is not confirmed: its least certain objective, or QUEUE."""
        if not verdict.stable:
            return QUEUE
        least = min(range(len(bars)), key=lambda i: bars[i].probability_met)
        return self.tester.slos[least].name

    def limit_above(self, limit: str | None, bars: Sequence[Confidence]) -> str | None:
        """Return what limits a confirmed capacity: QUEUE in place of an objective that is far from its limit there.

        A rate just above the capacity is not confirmed. Where the latency at the required confidence is still far below
        its limit at the capacity, it can only rise so fast because the queue grows with slower steps.

        Args:
            limit: The least certain objective above the capacity, QUEUE, or None.
            bars: The error bars of the objectives at the capacity.
        """
        for slo, bar in zip(self.tester.slos, bars, strict=True):
            if slo.name == limit and bar.is_far_from(slo.limit_s):
                return QUEUE
        return limit

    def confirms(self, candidate: Candidate, rate: float, budget: SeedBudget) -> bool:
        """Simulate a candidate at and above a rate, and return whether the seeds of a budget confirm the rate.

        Only steps slower than simulated are evaluated: faster ones hardly raise the confidence.
        """
        return self.is_confirmed(*self.point_and_slower(candidate, rate, budget))

    def start(
        self, candidate: Candidate, guess_per_s: float | None, budget: SeedBudget, seen: list[Verdict]
    ) -> float | None:
        """Return the highest rate that meets the objectives with the required confidence and one seed.

        The result is None if a light load does not meet them (`light_load`), or if only a short run at it does.
        """

        def probe(rate: float) -> Verdict:
            seen.append(self.verdict(candidate, rate, 1, allow=True))
            return seen[-1]

        floor = self.light_load(candidate, budget, seen)
        if floor is None:
            return None
        guess, hopeless = guess_per_s or self.tester.start_per_s(candidate), partial(self.tester.hopeless, candidate)
        step = WIDEN if guess_per_s is None else _STEP_FROM_MISSED
        found = find_capacity(probe, guess, floor, hopeless=hopeless, first_step=step)
        if found.at_capacity is floor and floor not in seen and not probe(floor.requests_per_s).met:
            return None  # only a short run has met it
        return found.requests_per_s

    def light_load(self, candidate: Candidate, budget: SeedBudget, seen: list[Verdict]) -> Verdict | None:
        """Return the verdict at a light load, or None if a light load does not meet the objectives.

        A short run decides if it meets them by a wide margin. Otherwise a full run, which is added to `seen`, and all
        seeds of the budget must confirm the rate.
        """
        light_per_s = self.evaluator.light_requests_per_s(candidate)
        short = self.tester.probe(candidate, light_per_s, self.tester.sizes.quick)
        if short.met and short.value_ratio * SHORT_RUN_MARGIN <= 1:
            return short
        seen.append(self.verdict(candidate, light_per_s, 1, allow=True))
        return seen[-1] if seen[-1].met and self.confirms(candidate, light_per_s, budget) else None

    def confident_rate(
        self, highest_per_s: float, at: PlanPoint, seen: Sequence[Verdict]
    ) -> tuple[float | None, str | None]:
        """Return the highest rate up to `highest_per_s` that meets every objective with the required confidence.

        It uses the same curves as the rows of the objectives, so that the two never contradict each other. The rate is
        None if none meets them. The second value is what limits the rate, or None if nothing does.
        """
        rates: dict[str, float] = {}
        for slo in self.tester.slos:
            if not math.isfinite(at.verdict.value_s(slo)):
                continue
            curve = LatencyCurve.of(seen, slo).through(at.verdict, slo)
            spread = Spread.of(at.verdict.observations, slo, at.error)
            found = confident_rate_per_s(curve, slo, highest_per_s, spread, self.tester.confidence)
            if found is None:
                return None, slo.name
            rates[slo.name] = found
        if not rates:
            return None, None
        least = min(rates, key=rates.__getitem__)
        return rates[least], least if rates[least] < highest_per_s else None


def _first_run(load: Load) -> Load:
    """Return the load of the run with which a verdict begins, before it is extended."""
    return replace(load, patient=False)
