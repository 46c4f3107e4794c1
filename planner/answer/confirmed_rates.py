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
from planner.evaluation.observation import Load, RunDetail
from planner.evaluation.verdict import NO_ALLOWANCE, SHORT_RUN_MARGIN, Verdict, judge, verdict_of
from planner.problem.candidate import Candidate
from planner.search.candidate_tester import CandidateTester
from planner.search.workers import run_tasks

#: Rates relative to the operating point, at which the slope of the latency is determined for the error bars. A
#: judgement: close to the point where the curve is steep, and two far below.
FASTER_STEPS: Final = (0.3, 0.7, 0.88)

#: The rate above the operating point, which shows the effect of slower steps.
SLOWER_STEPS: Final = (1.08,)

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

OTHER: Final = SeedBudget(capacity=1, curve=1, figures=3, whole_cluster=False, confirms=False, most_raises=1)


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

    def point_and_around(
        self, candidate: Candidate, rate: float, budget: SeedBudget
    ) -> tuple[PlanPoint, list[Verdict]]:
        """Return the figures of a plan at a rate and the verdicts around it, with all runs shared out together."""
        figures = self._figures(candidate, rate, budget)
        results = self.shared_out([*figures, *self.around(candidate, rate, budget.curve)])
        return self._point_of(rate, results[: len(figures)]), results[len(figures) :]

    def around(self, candidate: Candidate, rate: float, n_seeds: int) -> list[Callable[[], Verdict]]:
        """Return tasks for verdicts at and around a rate.

        The effect of slower and faster steps is interpolated between them.
        """
        return [*self.faster(candidate, rate, n_seeds), *self.slower(candidate, rate, n_seeds)]

    def slower(self, candidate: Candidate, rate: float, n_seeds: int) -> list[Callable[[], Verdict]]:
        """Return tasks for verdicts at a rate and above it, which show the effect of slower steps."""
        allowance = self.tester.allowance(candidate)
        slowest = 1.0 if allowance.error is None else allowance_for(_TAIL_LEVEL, allowance.error).speed
        return self._verdicts(candidate, rate, (*SLOWER_STEPS, 1.0, allowance.speed, slowest), n_seeds)

    def faster(self, candidate: Candidate, rate: float, n_seeds: int) -> list[Callable[[], Verdict]]:
        """Return tasks for verdicts below a rate, which show the effect of faster steps."""
        return self._verdicts(candidate, rate, FASTER_STEPS, n_seeds)

    def _verdicts(
        self, candidate: Candidate, rate: float, steps: Sequence[float], n_seeds: int
    ) -> list[Callable[[], Verdict]]:
        alone = replace(self, each=map)  # the rates are shared out, not the few seeds of each
        rates = sorted({rate * step for step in steps})
        return [partial(alone.verdict, candidate, each, n_seeds) for each in rates]

    def shared_out(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results of tasks that the workers share."""
        return run_tasks(self.each, tasks)

    def _figures(self, candidate: Candidate, rate: float, budget: SeedBudget) -> list[Callable[[], RunDetail]]:
        """Return the tasks whose results are the runs behind the figures of a plan, one for each seed.

        The best plan is simulated as a whole cluster, which needs fewer seeds because it has many replicas.
        """
        whole = budget.whole_cluster and 1 < candidate.replicas <= MOST_REPLICAS
        n_seeds = max(LEAST_SEEDS, budget.figures // 2) if whole else budget.figures
        loads = [Load(rate, self.tester.sizes.full, self.tester.seed + i, whole) for i in range(n_seeds)]
        return [partial(self.evaluator.detail, candidate, load) for load in loads]

    def point(self, candidate: Candidate, rate: float, budget: SeedBudget) -> PlanPoint:
        """Return the figures of a plan at a rate, with all seeds."""
        return self._point_of(rate, self.shared_out(self._figures(candidate, rate, budget)))

    def _point_of(self, rate: float, details: list[RunDetail]) -> PlanPoint:
        return PlanPoint(rate, details, judge([d.observation for d in details], self.tester.slos))

    def verdict(self, candidate: Candidate, rate: float, n_seeds: int, *, allow: bool = False) -> Verdict:
        """Return the verdict at a rate as simulated; with `allow`, with the allowance for the required confidence."""
        allowance = self.tester.allowance(candidate) if allow else NO_ALLOWANCE
        rate *= allowance.speed
        loads = [Load(rate, self.tester.sizes.full, self.tester.seed + i) for i in range(n_seeds)]
        return verdict_of(self.evaluator, candidate, loads, self.tester.slos, allowance, self.each)

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

    def start(self, candidate: Candidate, guess_per_s: float | None, seen: list[Verdict]) -> float | None:
        """Return the highest rate that meets the objectives with the required confidence and one seed.

        The result is None if a light load does not meet them. A short run shows that a light load does if it meets them
        by a wide margin and a full run meets them at a higher rate.
        """

        def probe(rate: float) -> Verdict:
            seen.append(self.verdict(candidate, rate, 1, allow=True))
            return seen[-1]

        light_per_s = self.evaluator.light_requests_per_s(candidate)
        short = self.tester.probe(candidate, light_per_s, self.tester.sizes.quick)
        clear = short.met and short.value_ratio * SHORT_RUN_MARGIN <= 1
        floor = short if clear else probe(light_per_s)
        if not floor.met:
            return None
        guess, hopeless = guess_per_s or self.tester.start_per_s(candidate), partial(self.tester.hopeless, candidate)
        step = WIDEN if guess_per_s is None else _STEP_FROM_MISSED
        found = find_capacity(probe, guess, floor, hopeless=hopeless, first_step=step)
        if found.at_capacity is short and not probe(light_per_s).met:
            return None
        return found.requests_per_s

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
