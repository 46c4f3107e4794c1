"""Simulate the figures of a plan with independent seeds, all replicas together and error bars.

Besides the objectives, a plan has latency curves over the rate and latency distributions at its rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
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
    QUEUE,
    CalibrationBlock,
    CheckpointBlock,
    Memory,
    Plan,
    SloResult,
    SloValue,
    Survival,
)
from planner.economics.money import Rates, energy, money
from planner.evaluation.capacity import TOLERANCE, WIDEN, find_capacity
from planner.evaluation.confidence import (
    Confidence,
    LatencyCurve,
    Spread,
    allowance_for,
    confidence,
    sure_rate_per_s,
)
from planner.evaluation.evaluator import (
    NO_ALLOWANCE,
    SHORT_RUN_MARGIN,
    Evaluator,
    Load,
    RunDetail,
    Verdict,
    judge,
    verdict_of,
)
from planner.problem.candidate import Candidate
from planner.problem.price_list import PriceList
from planner.search.candidate_tester import CandidateTester

#: Rates relative to the operating point, at which the slope of the latency is determined (for the error bars).
_CURVE_STEPS: Final = (0.3, 0.7, 0.88, 1.08)

#: The same rates if only the effect of slower steps is needed.
_SLOWER_STEPS: Final = (1.08,)

#: Probability level of the slowest steps whose rate is simulated. Slower ones count like these, so that a printed
#: probability is too high by 2 % at most.
_TAIL_LEVEL: Final = 0.98

#: Most reductions of the rate if the whole cluster, or the noise between seeds, makes it less sure than one replica.
_SURE_STEPS: Final = 8

#: Largest factor between a capacity and a higher rate that is not sure, once there is one.
_BETWEEN: Final = 1.05

#: Largest factor by which a rate that is sure is raised at a time.
_RAISE: Final = 1.15

#: Most replicas that are simulated together; of larger deployments one replica under its share is simulated.
MOST_REPLICAS: Final = 64

#: Factor between the first two rates of a search for a capacity that begins at a rate that was just missed.
_CLOSE_STEP: Final = 1.05

#: Least seeds of figures with error bars.
LEAST_SEEDS: Final = 3


@dataclass(frozen=True, slots=True)
class SeedBudget:
    """Independent seeds for the capacity, for the latency curve around it, and for the figures of the plan.

    `whole_cluster` tells whether the figures come from all replicas together, and `most_raises` how often a capacity
    is raised at most while the plan is sure at it.
    """

    capacity: int
    curve: int
    figures: int
    whole_cluster: bool
    most_raises: int


BEST: Final = SeedBudget(capacity=4, curve=2, figures=4, whole_cluster=True, most_raises=3)

OTHER: Final = SeedBudget(capacity=1, curve=1, figures=3, whole_cluster=False, most_raises=1)


@dataclass(frozen=True, slots=True)
class _Point:
    """The figures of a plan at one rate, with their verdict."""

    requests_per_s: float
    details: list[RunDetail]
    verdict: Verdict

    @property
    def error(self) -> StatedError:
        """Return the stated error of the figures."""
        return self.details[0].error


@dataclass(frozen=True, slots=True)
class PlanEvaluator:
    """Simulates the plans of one request in detail.

    `each` applies a function to each of several runs, in this process or in others, and returns the results in order.
    """

    evaluator: Evaluator
    tester: CandidateTester
    prices: PriceList
    each: Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]] = map

    def entry(
        self,
        candidate: Candidate,
        start_per_s: float | None,
        effort: SeedBudget,
        guess_per_s: float | None = None,
        *,
        start_is_capacity: bool = False,
    ) -> EvaluatedPlan:
        """Return the plan at the required rate, or at its capacity: the highest rate with the required confidence.

        Without a required rate, all seeds tell whether the plan is sure at the start. From there the latency curve
        leads to a lower rate, or, if the start is not yet the capacity with one seed, to a higher one. The verdict at a
        required rate comes from the runs at and around that rate alone, as in a plan that has found the rate itself.

        Args:
            candidate: The candidate.
            start_per_s: A rate near the capacity that one seed meets, if known.
            effort: The numbers of seeds.
            guess_per_s: Without a start, the rate at which its search begins; by default that of a full batch.
            start_is_capacity: Whether the start is the highest rate that one seed meets, and not only near it.
        """
        required = self._at_required(candidate, effort)
        return self._entry(candidate, start_per_s, effort, guess_per_s, required, start_is_capacity)

    def entry_that_holds(
        self, candidate: Candidate, start_per_s: float | None, effort: SeedBudget, *, start_is_capacity: bool = False
    ) -> EvaluatedPlan | None:
        """Return the plan as `entry` does, or None if it does not meet the request.

        The capacity of a plan that misses the objectives at the required rate is not determined.
        """
        required = self._at_required(candidate, effort)
        if required is not None and not self._is_sure(*required):
            return None
        found = self._entry(candidate, start_per_s, effort, None, required, start_is_capacity)
        return found if found.holds else None

    def _at_required(self, candidate: Candidate, effort: SeedBudget) -> tuple[_Point, list[Verdict]] | None:
        """Return the figures at the required rate and the verdicts around it; None if no rate is required."""
        required = self.tester.nominal_per_s(candidate)
        return None if required is None else self._point_and_around(candidate, required, effort)

    def _entry(
        self,
        candidate: Candidate,
        start_per_s: float | None,
        effort: SeedBudget,
        guess_per_s: float | None,
        at_required: tuple[_Point, list[Verdict]] | None,
        start_is_capacity: bool,
    ) -> EvaluatedPlan:
        """Return the plan (see `entry`), given what is simulated at and around the required rate."""
        probes: list[Verdict] = []
        start = start_per_s or self._start(candidate, guess_per_s, probes)
        is_capacity = start_per_s is None or start_is_capacity
        if at_required is None:
            at, curve = self._point_and_around(candidate, start or self.tester.floor_per_s(candidate), effort)
            seen, limit = [*probes, *curve], None
            if start is not None:
                at, limit, curve = self._surest(candidate, at, curve, seen, effort, is_capacity)
            bars = self._bars(at.verdict, curve, at.error)
            met = self._sure(at.verdict, bars)
            capacity = at.requests_per_s if met else None
        else:  # a required rate gets one verdict, whatever its capacity is
            at, around = at_required
            bars = self._bars(at.verdict, around, at.error)
            met = self._sure(at.verdict, bars)
            capacity, limit, further = self._capacity(candidate, start, at_required, met, effort, is_capacity)
            seen = [*probes, *around, *further]
            if not met:
                probes, limit = [], self._missed(at.verdict, bars)
            elif capacity is not None and capacity <= at.requests_per_s:
                probes = []  # all replicas carry a rate that one under its share missed: what it missed tells nothing
        rate, details, verdict = at.requests_per_s, at.details, at.verdict
        plan = self._plan(candidate, capacity, verdict, bars, details, seen)
        if capacity is not None:
            missed, missed_per_s = missed_above(capacity, probes) or (limit, None if met else rate)
            plan = plan.model_copy(update={"limited_by": missed, "missed_requests_per_s": missed_per_s})
        survival = self._survival(candidate, rate, effort.capacity)
        if survival is not None:
            plan = plan.model_copy(update={"survival": survival})
        return EvaluatedPlan(candidate, rate, capacity, verdict, plan, met, survival is None or survival.met)

    def _capacity(
        self,
        candidate: Candidate,
        start: float | None,
        at_required: tuple[_Point, list[Verdict]],
        met: bool,
        effort: SeedBudget,
        is_capacity: bool,
    ) -> tuple[float | None, str | None, list[Verdict]]:
        """Return the capacity beside a required rate, what limits it, and the verdicts that were simulated for it.

        It is found as without a required rate, but not on the other side of that rate: it is at least the rate if
        the plan meets it, and below it otherwise. It is None if no rate is sure.
        """
        at, around = at_required
        rate = at.requests_per_s
        if start is None and not met:
            return None, None, []
        start = start or rate
        begin = max(start, rate) if met else min(start, rate / (1 + TOLERANCE))
        if begin == rate:
            near, seen = at, list(around)
        else:
            near, seen = self._point_and_around(candidate, begin, effort)
        near, limit, curve = self._surest(candidate, near, list(seen), seen, effort, is_capacity)
        capacity = near.requests_per_s if self._is_sure(near, curve) else None
        if met:
            capacity = max(capacity or rate, rate)
        elif capacity is not None and capacity >= rate:
            capacity = self._sure_rate(rate / (1 + TOLERANCE), at, around)[0]
        return capacity, limit, seen

    def is_sure(self, candidate: Candidate, rate_per_s: float) -> bool:
        """Return whether every objective is met at a rate with the required confidence and all seeds of a best plan.

        Only steps slower than simulated are evaluated: faster ones could only raise the confidence.
        """
        at = self._point(candidate, rate_per_s, BEST)
        slower = self.shared_out(self._around(candidate, (rate_per_s,), BEST.curve, _SLOWER_STEPS))
        return self._is_sure(at, slower)

    def _around(
        self, candidate: Candidate, rates: Iterable[float], n_seeds: int, curve_steps: Sequence[float] = _CURVE_STEPS
    ) -> list[Callable[[], Verdict]]:
        """Return tasks for verdicts at rates between which the effect of slower and faster steps is interpolated."""
        allowance = self.tester.allowance(candidate)
        slowest = 1.0 if allowance.error is None else allowance_for(_TAIL_LEVEL, allowance.error).speed
        alone = replace(self, each=map)  # the rates are shared out, not the few seeds of each
        around = sorted({rate * step for rate in rates for step in (*curve_steps, 1.0, allowance.speed, slowest)})
        return [partial(alone._verdict, candidate, rate, n_seeds) for rate in around]

    def shared_out(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results of tasks; a worker inherits the tasks, and only the number of its task is sent to it."""
        return list(self.each(lambda number: tasks[number](), range(len(tasks))))

    def _point_and_around(self, candidate: Candidate, rate: float, effort: SeedBudget) -> tuple[_Point, list[Verdict]]:
        """Return the figures of a plan at a rate and the verdicts around it, with all runs shared out together."""
        figures = self._figures(candidate, rate, effort)
        results = self.shared_out([*figures, *self._around(candidate, (rate,), effort.curve)])
        return self._point_of(rate, results[: len(figures)]), results[len(figures) :]

    def _bars(self, verdict: Verdict, seen: Sequence[Verdict], error: StatedError) -> list[Confidence]:
        """Return the error bars of every objective."""
        sure = self.tester.confidence
        return [confidence(verdict, LatencyCurve.of(seen, slo), slo, error, sure) for slo in self.tester.slos]

    def _sure(self, verdict: Verdict, bars: Iterable[Confidence]) -> bool:
        """Return whether every objective is met, in the simulation and with the required confidence."""
        return verdict.met and all(bar.probability_met >= self.tester.confidence for bar in bars)

    def _survival(self, candidate: Candidate, rate: float, n_seeds: int) -> Survival | None:
        """Return the objectives under the same load after the loss that the request names; None if it names none."""
        held = self.tester.held_per_s(candidate)
        if held is None or held <= rate * (1 + 1e-9):
            return None
        left = round(candidate.replicas * rate / held)
        verdict = self._verdict(candidate, held, n_seeds) if left else None
        return Survival(
            replicas_left=left,
            requests_per_s=rate if left else None,
            met=bool(left) and self._verdict(candidate, held, n_seeds, allow=True).met,
            stable=verdict is not None and verdict.stable,
            slo=[SloValue.of(slo, verdict.value_s(slo) if verdict else None) for slo in self.tester.slos],
        )

    def _figures(self, candidate: Candidate, rate: float, effort: SeedBudget) -> list[Callable[[], RunDetail]]:
        """Return the tasks whose results are the runs behind the figures of a plan, one for each seed.

        The best plan is simulated as a whole cluster, which needs fewer seeds because it has many replicas.
        """
        whole = effort.whole_cluster and 1 < candidate.replicas <= MOST_REPLICAS
        n_seeds = max(LEAST_SEEDS, effort.figures // 2) if whole else effort.figures
        loads = [Load(rate, self.tester.sizes.full, self.tester.seed + i, whole) for i in range(n_seeds)]
        return [partial(self.evaluator.detail, candidate, load) for load in loads]

    def holds(self, candidate: Candidate, rate_per_s: float) -> bool:
        """Return whether the objectives are met with the required confidence, with independent seeds pooled."""
        few, many = (partial(self._verdict, candidate, rate_per_s, n, allow=True) for n in (1, BEST.capacity))
        return few().met and many().met

    def light_load(self, candidate: Candidate) -> Load:
        """Return a short load under which requests rarely overlap."""
        return Load(self.evaluator.light_requests_per_s(candidate), self.tester.sizes.quick, self.tester.seed)

    def _verdict(self, candidate: Candidate, rate: float, n_seeds: int, *, allow: bool = False) -> Verdict:
        """Return the verdict at a rate as simulated; with `allow`, with the allowance for the required confidence."""
        allowance = self.tester.allowance(candidate) if allow else NO_ALLOWANCE
        rate *= allowance.speed
        loads = [Load(rate, self.tester.sizes.full, self.tester.seed + i) for i in range(n_seeds)]
        return verdict_of(self.evaluator, candidate, loads, self.tester.slos, allowance, self.each)

    def _point(self, candidate: Candidate, rate: float, effort: SeedBudget) -> _Point:
        """Return the figures of a plan at a rate, with all seeds."""
        return self._point_of(rate, self.shared_out(self._figures(candidate, rate, effort)))

    def _point_of(self, rate: float, details: list[RunDetail]) -> _Point:
        return _Point(rate, details, judge([d.observation for d in details], self.tester.slos))

    def _surest(
        self,
        candidate: Candidate,
        start: _Point,
        around: list[Verdict],
        seen: list[Verdict],
        effort: SeedBudget,
        is_capacity: bool,
    ) -> tuple[_Point, str | None, list[Verdict]]:
        """Return the highest rate at which a plan is sure, what limits it, and the verdicts that tell so.

        With several raises, these are the verdicts around that rate alone, as in a request for that rate. The rate is
        the last one tried if none is sure.

        Args:
            candidate: The candidate.
            start: The figures at the start.
            around: The verdicts around the start.
            seen: These and other verdicts, which form the curve; those at the rates that are tried are added.
            effort: The numbers of seeds and of raises.
            is_capacity: Whether the start is the capacity of one seed (see `_highest`).
        """
        at, limit = self._highest(candidate, start, seen, effort, is_capacity)
        if effort.most_raises == 1:
            return at, limit, seen
        if at is start:
            return at, limit, around
        for _ in range(_SURE_STEPS):
            around = self.shared_out(self._around(candidate, (at.requests_per_s,), effort.curve))
            seen += around
            bars = self._bars(at.verdict, around, at.error)
            if self._sure(at.verdict, bars):
                break
            limit = self._missed(at.verdict, bars)
            lower_per_s = at.requests_per_s / (1 + TOLERANCE)
            surest, _ = self._sure_rate(lower_per_s, at, around)
            at = self._point(candidate, surest or lower_per_s, effort)
        return at, limit, around

    def _highest(
        self, candidate: Candidate, at: _Point, seen: list[Verdict], effort: SeedBudget, is_capacity: bool
    ) -> tuple[_Point, str | None]:
        """Return the highest rate at which a plan is sure, and what limits it; the last rate tried if there is none.

        Rates come from the latency curve, and each is simulated with all seeds before it counts. A start that is sure
        is raised as often as `effort` tells.

        Args:
            candidate: The candidate.
            at: The figures at the start.
            seen: The verdicts that form the curve; those at higher rates are added.
            effort: The numbers of seeds and of raises.
            is_capacity: Whether the start is the capacity of one seed. With several raises, it is then raised only if
                all seeds together are sure at a rate that is higher by `_RAISE`.
        """
        at, limit = self._lowered(candidate, at, seen, effort)
        if limit is None and effort.most_raises == 1:
            return self._raised_once(candidate, at, seen, effort)
        if limit is None and is_capacity:
            _, limit = self._sure_rate(at.requests_per_s * _RAISE, at, seen)  # one seed may meet less than the others
        if limit is not None:
            return at, limit
        speed, reached, n_seen = self.tester.allowance(candidate).speed, [at], len(seen)
        for _ in range(effort.most_raises):
            highest = reached[-1].requests_per_s * _RAISE
            seen.append(self._verdict(candidate, highest * speed, effort.curve))
            surest, limit = self._sure_rate(highest, reached[-1], seen)
            least_per_s = reached[-1].requests_per_s * (1 + TOLERANCE)
            if surest is None or surest <= least_per_s:
                break
            higher, missed = self._lowered(candidate, self._point(candidate, surest, effort), seen, effort, least_per_s)
            limit = missed or limit
            if higher.requests_per_s > least_per_s and self._is_sure(higher, seen):
                reached.append(higher)
            if missed:
                break
        # The last rates extend the curve, which may show that a rate is not sure after all.
        while len(reached) > 1 and not self._is_sure(reached[-1], seen):
            last = reached.pop()
            limit = self._missed(last.verdict, self._bars(last.verdict, seen, last.error))
        if len(reached) == 1:
            del seen[n_seen:]  # the verdict at the start is that of a request for this rate, which tries no others
        return reached[-1], limit

    def _raised_once(
        self, candidate: Candidate, at: _Point, seen: list[Verdict], effort: SeedBudget
    ) -> tuple[_Point, str | None]:
        """Return the highest rate up to `_RAISE` above a point at which a plan is sure, and what limits it.

        One seed, from whose capacity the point comes, may meet less than several, with which the winner is raised.
        """
        surest, limit = self._sure_rate(at.requests_per_s * _RAISE, at, seen)
        least_per_s = at.requests_per_s * (1 + TOLERANCE)
        if surest is None or surest <= least_per_s:
            return at, limit
        higher = self._point(candidate, surest, effort)
        if self._is_sure(higher, seen):
            return higher, limit
        limit = self._missed(higher.verdict, self._bars(higher.verdict, seen, higher.error))
        return self._raised_between(candidate, at, surest, seen, effort), limit

    def _lowered(
        self, candidate: Candidate, at: _Point, seen: list[Verdict], effort: SeedBudget, least_per_s: float = 0.0
    ) -> tuple[_Point, str | None]:
        """Return the first rate from a start downwards at which a plan is sure, and what limits it.

        What limits it is None if the plan is sure at the start. If no rate above `least_per_s` is sure, the result is
        the last rate tried.
        """
        limit, unsure_per_s = None, at.requests_per_s
        for _ in range(_SURE_STEPS):
            bars = self._bars(at.verdict, seen, at.error)
            if self._sure(at.verdict, bars):
                return self._raised_between(candidate, at, unsure_per_s, seen, effort), limit
            limit, unsure_per_s = self._missed(at.verdict, bars), at.requests_per_s
            surest, _ = self._sure_rate(at.requests_per_s, at, seen)
            rate = min(at.requests_per_s / (1 + TOLERANCE), surest or at.requests_per_s)
            if rate <= least_per_s:
                break
            at = self._point(candidate, rate, effort)
        return at, limit

    def _raised_between(
        self, candidate: Candidate, at: _Point, unsure_per_s: float, seen: list[Verdict], effort: SeedBudget
    ) -> _Point:
        """Return a point at which a plan is sure, at most a factor of `_BETWEEN` below a rate at which it is not.

        A latency curve that rises late may lead from an unsure rate to one that is far too low.
        """
        while unsure_per_s > at.requests_per_s * _BETWEEN:
            middle = self._point(candidate, math.sqrt(at.requests_per_s * unsure_per_s), effort)
            if self._is_sure(middle, seen):
                at = middle
            else:
                unsure_per_s = middle.requests_per_s
        return at

    def _is_sure(self, at: _Point, seen: list[Verdict]) -> bool:
        """Return whether a plan is sure at a rate, by the curve that the verdicts form."""
        return self._sure(at.verdict, self._bars(at.verdict, seen, at.error))

    def _start(self, candidate: Candidate, guess_per_s: float | None, seen: list[Verdict]) -> float | None:
        """Return the highest rate that meets the objectives with the required confidence and one seed.

        The result is None if a light load does not meet them. A short run shows that a light load does if it meets them
        by a wide margin and a full run meets them at a higher rate.
        """

        def probe(rate: float) -> Verdict:
            seen.append(self._verdict(candidate, rate, 1, allow=True))
            return seen[-1]

        light_per_s = self.evaluator.light_requests_per_s(candidate)
        short = self.tester.probe(candidate, light_per_s, self.tester.sizes.quick)
        clear = short.met and short.value_ratio * SHORT_RUN_MARGIN <= 1
        floor = short if clear else probe(light_per_s)
        if not floor.met:
            return None
        guess, hopeless = guess_per_s or self.tester.start_per_s(candidate), partial(self.tester.hopeless, candidate)
        step = WIDEN if guess_per_s is None else _CLOSE_STEP
        found = find_capacity(probe, guess, floor, hopeless=hopeless, first_step=step)
        if found.at_capacity is short and not probe(light_per_s).met:
            return None
        return found.requests_per_s

    def _missed(self, verdict: Verdict, bars: Sequence[Confidence]) -> str:
        """Return what limits a plan that is not sure at a rate: its least certain objective, or QUEUE."""
        if not verdict.stable:
            return QUEUE
        least = min(range(len(bars)), key=lambda i: bars[i].probability_met)
        return self.tester.slos[least].name

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
        sure = self.tester.confidence
        rows = [
            SloResult.of(
                slo, bar.value_s, bar, sure, verdict.stable, ci_level=bar.level, n_requests=n_conditioned(slo, verdict)
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

    def _sure_rate(self, highest_per_s: float, at: _Point, seen: Sequence[Verdict]) -> tuple[float | None, str | None]:
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
            found = sure_rate_per_s(curve, slo, highest_per_s, spread, self.tester.confidence)
            if found is None:
                return None, slo.name
            rates[slo.name] = found
        if not rates:
            return None, None
        least = min(rates, key=rates.__getitem__)
        return rates[least], least if rates[least] < highest_per_s else None
