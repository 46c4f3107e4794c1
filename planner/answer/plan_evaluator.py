"""Simulate the figures of a plan with independent seeds, all replicas together and error bars.

Besides the objectives, a plan has latency curves over the rate and latency distributions at its rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from planner.answer.capacity_noise import capacity_notices, piece_notices
from planner.answer.confirmed_capacity import ConfirmedCapacity
from planner.answer.confirmed_rates import BEST, ConfirmedRates, PlanPoint, SeedBudget
from planner.answer.evaluated_plan import EvaluatedPlan
from planner.answer.plan_figures import (
    cdf_of,
    curve_of,
    few_requests,
    mean_of,
    missed_above,
    n_conditioned,
    steady_metrics,
)
from planner.answer.plan_schema import (
    CalibrationBlock,
    CheckpointBlock,
    Memory,
    Plan,
    SloResult,
    SloValue,
    Survival,
)
from planner.economics.money import Rates, energy, money
from planner.evaluation.confidence import (
    Confidence,
)
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.observation import Load, RunDetail
from planner.evaluation.verdict import Verdict
from planner.problem.candidate import Candidate
from planner.problem.price_list import PriceList
from planner.search.candidate_tester import CandidateTester

#: Largest increase of the probability of an objective by the effect of faster steps. A judgement: with 15 % noise
#: between seeds and an error that is as often below as above, it is half of this.
_BY_FASTER_STEPS: Final = 0.01


@dataclass(frozen=True, slots=True)
class CapacityHint:
    """What is known of the capacity of a candidate before it is simulated with several seeds.

    Attributes:
        missed_per_s: A rate that one seed has missed, requests per second; None: none is known.
        like: A plan whose capacity is confirmed. The estimate of the candidate is taken to be as far off as that of
            this plan.
    """

    missed_per_s: float | None = None
    like: EvaluatedPlan | None = None


NO_HINT: Final = CapacityHint()


@dataclass(frozen=True, slots=True)
class PlanEvaluator:
    """Simulates the plans of one request in detail.

    `each` applies a function to each of several runs, in this process or in others, and returns the results in order.
    """

    evaluator: Evaluator
    tester: CandidateTester
    prices: PriceList
    each: Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]] = map

    @property
    def rates(self) -> ConfirmedRates:
        """Return what simulates and finds the rates of candidates."""
        return ConfirmedRates(self.evaluator, self.tester, self.each)

    def entry(
        self,
        candidate: Candidate,
        start_per_s: float | None,
        budget: SeedBudget,
        *,
        start_is_capacity: bool = False,
        hint: CapacityHint = NO_HINT,
    ) -> EvaluatedPlan:
        """Return the plan at the required rate, or at its capacity: the highest rate with the required confidence.

        Without a required rate, all seeds decide whether the start is confirmed. From there the latency curve
        leads to a lower rate, or, if the start is not yet the capacity with one seed, to a higher one. The verdict at a
        required rate comes from the runs at and around that rate alone, as in a plan that has found the rate itself.

        Args:
            candidate: The candidate.
            start_per_s: A rate near the capacity that one seed meets, if known.
            budget: The numbers of seeds.
            start_is_capacity: Whether the start is the highest rate that one seed meets, and not only near it.
            hint: What is known of the capacity without a start.
        """
        required = self._at_required(candidate, budget)
        return self._entry(candidate, start_per_s, budget, required, start_is_capacity, hint)

    def entry_that_holds(
        self, candidate: Candidate, start_per_s: float | None, budget: SeedBudget, *, start_is_capacity: bool = False
    ) -> EvaluatedPlan | None:
        """Return the plan as `entry` does, or None if it does not meet the request.

        The capacity of a plan that misses the objectives at the required rate is not determined.
        """
        rate = self.tester.nominal_per_s(candidate)
        required = None if rate is None else self._confirmed(candidate, rate, budget)
        if rate is not None and required is None:
            return None
        found = self._entry(candidate, start_per_s, budget, required, start_is_capacity)
        return found if found.holds else None

    def meets_request(self, candidate: Candidate) -> bool:
        """Return whether a candidate meets the request with all seeds, without determining its capacity.

        At a required rate the verdict is that of `entry_that_holds`. Without one, a light load decides: a candidate
        that is confirmed there has some capacity.
        """
        rate = self.tester.nominal_per_s(candidate)
        if rate is None:
            return self.is_confirmed(candidate, self.tester.floor_per_s(candidate))
        if self._confirmed(candidate, rate, BEST) is None:
            return False
        survival = self._survival(candidate, rate, BEST.capacity)
        return survival is None or survival.met

    def _at_required(self, candidate: Candidate, budget: SeedBudget) -> tuple[PlanPoint, list[Verdict]] | None:
        """Return the figures at the required rate and the verdicts around it; None if no rate is required."""
        required = self.tester.nominal_per_s(candidate)
        if required is None:
            return None
        at, slower = self.rates.point_and_slower(candidate, required, budget)
        return at, [*self.rates.faster(candidate, required, budget.curve), *slower]

    def _confirmed(
        self, candidate: Candidate, rate: float, budget: SeedBudget
    ) -> tuple[PlanPoint, list[Verdict]] | None:
        """Return the figures at a rate and the verdicts around it, or None as soon as the rate is not confirmed.

        Slower steps only lower the confidence, and faster ones raise it by less than `_BY_FASTER_STEPS`.
        """
        at = self.rates.point(candidate, rate, budget)
        if not self.rates.is_confirmed(at, [at.verdict], _BY_FASTER_STEPS):
            return None
        slower = self.rates.slower(candidate, rate, budget.curve)
        if not self.rates.is_confirmed(at, slower, _BY_FASTER_STEPS):
            return None
        around = [*self.rates.faster(candidate, rate, budget.curve), *slower]
        return (at, around) if self.rates.is_confirmed(at, around) else None

    def _entry(
        self,
        candidate: Candidate,
        start_per_s: float | None,
        budget: SeedBudget,
        at_required: tuple[PlanPoint, list[Verdict]] | None,
        start_is_capacity: bool,
        hint: CapacityHint = NO_HINT,
    ) -> EvaluatedPlan:
        """Return the plan (see `entry`), given what is simulated at and around the required rate."""
        probes: list[Verdict] = []
        start = start_per_s or self._start(candidate, budget, hint, probes)
        # What one seed meets is its capacity; an estimate that another plan corrects is only near it.
        is_capacity = start_is_capacity or (start_per_s is None and hint.like is None)
        if at_required is None:
            rate = start or self.tester.floor_per_s(candidate)
            at, curve = self.rates.point_and_slower(candidate, rate, budget)
            seen, limit = [*probes, *curve], None
            if start is not None:
                capacity_search = ConfirmedCapacity(self.rates, candidate, budget, is_capacity, seen)
                at, limit, curve = capacity_search.highest(at)
            else:
                curve = self.rates.around(candidate, rate, budget.curve)
                seen += curve
            bars = self.rates.bars(at.verdict, curve, at.error)
            met = self.rates.meets_confidence(at.verdict, bars)
            capacity = at.requests_per_s if met else None
            limit = self.rates.limit_above(limit, bars) if met else limit
        else:  # a required rate gets one verdict, whatever its capacity is
            at, around = at_required
            bars = self.rates.bars(at.verdict, around, at.error)
            met = self.rates.meets_confidence(at.verdict, bars)
            capacity_search = ConfirmedCapacity(self.rates, candidate, budget, is_capacity)
            capacity, limit = capacity_search.beside(start, at_required, met)
            seen = [*probes, *around, *capacity_search.seen]
            if not met:
                probes, limit = [], self.rates.missed(at.verdict, bars)
            elif capacity is not None and capacity <= at.requests_per_s:
                probes = []  # all replicas carry a rate that one under its share missed, so that miss is no evidence
        rate, details, verdict = at.requests_per_s, at.details, at.verdict
        plan = self._plan(candidate, capacity, verdict, bars, details, seen)
        if capacity is not None:
            missed, missed_per_s = missed_above(capacity, probes) or (limit, None if met else rate)
            notices = plan.notices
            limiting = next((slo for slo in self.tester.slos if slo.name == missed), None)
            if budget.confirms and at_required is None and limiting is not None:
                notices = [*notices, *capacity_notices(limiting, verdict, seen)]
            if budget.confirms:
                notices = [*notices, *piece_notices(limiting or verdict.worst, details)]
            plan = plan.model_copy(
                update={"limited_by": missed, "missed_requests_per_s": missed_per_s, "notices": notices}
            )
        survival = self._survival(candidate, rate, budget.capacity)
        if survival is not None:
            plan = plan.model_copy(update={"survival": survival})
        return EvaluatedPlan(candidate, rate, capacity, verdict, plan, met, survival is None or survival.met)

    def _start(
        self, candidate: Candidate, budget: SeedBudget, hint: CapacityHint, probes: list[Verdict]
    ) -> float | None:
        """Return the rate at which the search for a confirmed capacity begins; None if a light load is not confirmed.

        It is the estimate that a plan with a known capacity corrects, or else the highest rate that one seed meets.
        """
        like, missed_per_s, guess = hint.like, hint.missed_per_s, 0.0
        if like is not None and like.capacity_requests_per_s is not None:
            guess = self.tester.guess_like_per_s(candidate, like.candidate, like.capacity_requests_per_s)
        if not guess:
            return self.rates.start(candidate, missed_per_s, budget, probes)
        light = self.rates.light_load(candidate, budget, probes)
        if light is None:
            return None
        most_per_s = min(missed_per_s or math.inf, self.evaluator.fluid_requests_per_s(candidate))
        return max(min(guess, most_per_s), light.requests_per_s)

    def is_confirmed(self, candidate: Candidate, rate_per_s: float) -> bool:
        """Return whether every objective is met at a rate with the required confidence, by the seeds of a best plan."""
        return self.rates.confirms(candidate, rate_per_s, BEST)

    def _survival(self, candidate: Candidate, rate: float, n_seeds: int) -> Survival | None:
        """Return the objectives under the same load after the loss that the request names; None if it names none."""
        held = self.tester.held_per_s(candidate)
        if held is None or held <= rate * (1 + 1e-9):
            return None
        left = round(candidate.replicas * rate / held)
        verdict = self.rates.verdict(candidate, held, n_seeds) if left else None
        return Survival(
            replicas_left=left,
            requests_per_s=rate if left else None,
            met=bool(left) and self.rates.verdict(candidate, held, n_seeds, allow=True).met,
            stable=verdict is not None and verdict.stable,
            slo=[SloValue.of(slo, verdict.value_s(slo) if verdict else None) for slo in self.tester.slos],
        )

    def holds(self, candidate: Candidate, rate_per_s: float) -> bool:
        """Return whether the objectives are met with the required confidence, with independent seeds pooled."""
        few, many = (partial(self.rates.verdict, candidate, rate_per_s, n, allow=True) for n in (1, BEST.capacity))
        return few().met and many().met

    def light_load(self, candidate: Candidate) -> Load:
        """Return a short load under which requests rarely overlap."""
        return Load(self.evaluator.light_requests_per_s(candidate), self.tester.sizes.quick, self.tester.seed)

    def _plan(
        self,
        candidate: Candidate,
        capacity: float | None,
        verdict: Verdict,
        bars: Sequence[Confidence],
        details: Sequence[RunDetail],
        seen: list[Verdict],
    ) -> Plan:
        facts = self.evaluator.facts(candidate)
        required = self.tester.confidence
        rows = [
            SloResult.of(
                slo,
                bar.value_s,
                bar,
                required,
                verdict.stable,
                ci_level=bar.level,
                n_requests=n_conditioned(slo, verdict),
            )
            for slo, bar in zip(self.tester.slos, bars, strict=True)
        ]
        output, total, power = (mean_of(details, f) for f in ("output_tokens_per_s", "total_tokens_per_s", "power_w"))
        rates = Rates(output, total, power, verdict.requests_per_s if verdict.stable else None)
        price, grid = self.prices.price(candidate), self.prices.grid(candidate)
        few = few_requests(self.tester.slos, verdict)
        return Plan(
            deployment=facts.deployment,
            requests_per_s=verdict.requests_per_s,
            metrics=steady_metrics(details, verdict),
            slo=rows,
            curve=curve_of([*seen, verdict], capacity, self.tester.slos),
            latency_cdf=cdf_of(verdict, self.tester.slos),
            capacity_requests_per_s=capacity,
            cost=money(rates, price),
            energy=energy(rates, grid, self.prices.pue),
            memory=Memory.model_validate(facts.memory),
            time_breakdown={
                name: float(np.mean([d.time_breakdown.get(name, 0.0) for d in details]))
                for name in details[0].time_breakdown
            },
            calibration=CalibrationBlock.model_validate(details[0].calibration),
            command=facts.command,
            command_notes=list(facts.command_notes),
            notices=list(dict.fromkeys((*details[0].notices, *facts.notices, *few))),
            checkpoint=None if facts.checkpoint is None else CheckpointBlock.model_validate(facts.checkpoint),
            versions=facts.versions,
        )
