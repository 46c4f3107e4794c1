"""The highest rate at which a plan meets its objectives with the required confidence, found with several seeds.

The rates around a rate form the latency curve, which tells what slower and faster steps would do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from calibration.accuracy.stated_error import StatedError
from planner.answer.plan_schema import QUEUE
from planner.evaluation.capacity import TOLERANCE, WIDEN, find_capacity
from planner.evaluation.confidence import Confidence, LatencyCurve, Spread, allowance_for, confidence, sure_rate_per_s
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
from planner.search.candidate_tester import CandidateTester

#: Rates relative to the operating point, at which the slope of the latency is determined (for the error bars).
CURVE_STEPS: Final = (0.3, 0.7, 0.88, 1.08)

#: The same rates if only the effect of slower steps is needed.
SLOWER_STEPS: Final = (1.08,)

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
class SureRates:
    """Simulates rates of candidates with several seeds, and finds the highest that is sure.

    `each` applies a function to each of several runs, in this process or in others, and returns the results in order.
    """

    evaluator: Evaluator
    tester: CandidateTester
    each: Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]] = map

    def point_and_around(
        self, candidate: Candidate, rate: float, effort: SeedBudget
    ) -> tuple[PlanPoint, list[Verdict]]:
        """Return the figures of a plan at a rate and the verdicts around it, with all runs shared out together."""
        figures = self._figures(candidate, rate, effort)
        results = self.shared_out([*figures, *self.around(candidate, (rate,), effort.curve)])
        return self._point_of(rate, results[: len(figures)]), results[len(figures) :]

    def around(
        self, candidate: Candidate, rates: Iterable[float], n_seeds: int, curve_steps: Sequence[float] = CURVE_STEPS
    ) -> list[Callable[[], Verdict]]:
        """Return tasks for verdicts at rates between which the effect of slower and faster steps is interpolated."""
        allowance = self.tester.allowance(candidate)
        slowest = 1.0 if allowance.error is None else allowance_for(_TAIL_LEVEL, allowance.error).speed
        alone = replace(self, each=map)  # the rates are shared out, not the few seeds of each
        around = sorted({rate * step for rate in rates for step in (*curve_steps, 1.0, allowance.speed, slowest)})
        return [partial(alone.verdict, candidate, rate, n_seeds) for rate in around]

    def shared_out(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results of tasks; a worker inherits the tasks, and only the number of its task is sent to it."""
        return list(self.each(lambda number: tasks[number](), range(len(tasks))))

    def _figures(self, candidate: Candidate, rate: float, effort: SeedBudget) -> list[Callable[[], RunDetail]]:
        """Return the tasks whose results are the runs behind the figures of a plan, one for each seed.

        The best plan is simulated as a whole cluster, which needs fewer seeds because it has many replicas.
        """
        whole = effort.whole_cluster and 1 < candidate.replicas <= MOST_REPLICAS
        n_seeds = max(LEAST_SEEDS, effort.figures // 2) if whole else effort.figures
        loads = [Load(rate, self.tester.sizes.full, self.tester.seed + i, whole) for i in range(n_seeds)]
        return [partial(self.evaluator.detail, candidate, load) for load in loads]

    def point(self, candidate: Candidate, rate: float, effort: SeedBudget) -> PlanPoint:
        """Return the figures of a plan at a rate, with all seeds."""
        return self._point_of(rate, self.shared_out(self._figures(candidate, rate, effort)))

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
        sure = self.tester.confidence
        return [confidence(verdict, LatencyCurve.of(seen, slo), slo, error, sure) for slo in self.tester.slos]

    def sure(self, verdict: Verdict, bars: Iterable[Confidence]) -> bool:
        """Return whether every objective is met, in the simulation and with the required confidence."""
        return verdict.met and all(bar.probability_met >= self.tester.confidence for bar in bars)

    def is_sure(self, at: PlanPoint, seen: list[Verdict]) -> bool:
        """Return whether a plan is sure at a rate, by the curve that the verdicts form."""
        return self.sure(at.verdict, self.bars(at.verdict, seen, at.error))

    def missed(self, verdict: Verdict, bars: Sequence[Confidence]) -> str:
        """Return what limits a plan that is not sure at a rate: its least certain objective, or QUEUE."""
        if not verdict.stable:
            return QUEUE
        least = min(range(len(bars)), key=lambda i: bars[i].probability_met)
        return self.tester.slos[least].name

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
        step = WIDEN if guess_per_s is None else _CLOSE_STEP
        found = find_capacity(probe, guess, floor, hopeless=hopeless, first_step=step)
        if found.at_capacity is short and not probe(light_per_s).met:
            return None
        return found.requests_per_s

    def capacity_beside(
        self,
        candidate: Candidate,
        start: float | None,
        at_required: tuple[PlanPoint, list[Verdict]],
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
            near, seen = self.point_and_around(candidate, begin, effort)
        near, limit, curve = self.surest(candidate, near, list(seen), seen, effort, is_capacity)
        capacity = near.requests_per_s if self.is_sure(near, curve) else None
        if met:
            capacity = max(capacity or rate, rate)
        elif capacity is not None and capacity >= rate:
            capacity = self._sure_rate(rate / (1 + TOLERANCE), at, around)[0]
        return capacity, limit, seen

    def surest(
        self,
        candidate: Candidate,
        start: PlanPoint,
        around: list[Verdict],
        seen: list[Verdict],
        effort: SeedBudget,
        is_capacity: bool,
    ) -> tuple[PlanPoint, str | None, list[Verdict]]:
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
            around = self.shared_out(self.around(candidate, (at.requests_per_s,), effort.curve))
            seen += around
            bars = self.bars(at.verdict, around, at.error)
            if self.sure(at.verdict, bars):
                break
            limit = self.missed(at.verdict, bars)
            lower_per_s = at.requests_per_s / (1 + TOLERANCE)
            surest, _ = self._sure_rate(lower_per_s, at, around)
            at = self.point(candidate, surest or lower_per_s, effort)
        return at, limit, around

    def _highest(
        self, candidate: Candidate, at: PlanPoint, seen: list[Verdict], effort: SeedBudget, is_capacity: bool
    ) -> tuple[PlanPoint, str | None]:
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
        speed, reached = self.tester.allowance(candidate).speed, [at]
        for _ in range(effort.most_raises):
            highest = reached[-1].requests_per_s * _RAISE
            seen.append(self.verdict(candidate, highest * speed, effort.curve))
            surest, limit = self._sure_rate(highest, reached[-1], seen)
            least_per_s = reached[-1].requests_per_s * (1 + TOLERANCE)
            if surest is None or surest <= least_per_s:
                break
            higher, missed = self._lowered(candidate, self.point(candidate, surest, effort), seen, effort, least_per_s)
            limit = missed or limit
            if higher.requests_per_s > least_per_s and self.is_sure(higher, seen):
                reached.append(higher)
            if missed:
                break
        return reached[-1], limit

    def _raised_once(
        self, candidate: Candidate, at: PlanPoint, seen: list[Verdict], effort: SeedBudget
    ) -> tuple[PlanPoint, str | None]:
        """Return the highest rate up to `_RAISE` above a point at which a plan is sure, and what limits it.

        One seed, from whose capacity the point comes, may meet less than several, with which the winner is raised.
        """
        surest, limit = self._sure_rate(at.requests_per_s * _RAISE, at, seen)
        least_per_s = at.requests_per_s * (1 + TOLERANCE)
        if surest is None or surest <= least_per_s:
            return at, limit
        higher = self.point(candidate, surest, effort)
        if self.is_sure(higher, seen):
            return higher, limit
        limit = self.missed(higher.verdict, self.bars(higher.verdict, seen, higher.error))
        return self._raised_between(candidate, at, surest, seen, effort), limit

    def _lowered(
        self, candidate: Candidate, at: PlanPoint, seen: list[Verdict], effort: SeedBudget, least_per_s: float = 0.0
    ) -> tuple[PlanPoint, str | None]:
        """Return the first rate from a start downwards at which a plan is sure, and what limits it.

        What limits it is None if the plan is sure at the start. If no rate above `least_per_s` is sure, the result is
        the last rate tried.
        """
        limit, unsure_per_s = None, at.requests_per_s
        for _ in range(_SURE_STEPS):
            bars = self.bars(at.verdict, seen, at.error)
            if self.sure(at.verdict, bars):
                return self._raised_between(candidate, at, unsure_per_s, seen, effort), limit
            limit, unsure_per_s = self.missed(at.verdict, bars), at.requests_per_s
            surest, _ = self._sure_rate(at.requests_per_s, at, seen)
            rate = min(at.requests_per_s / (1 + TOLERANCE), surest or at.requests_per_s)
            if rate <= least_per_s:
                break
            at = self.point(candidate, rate, effort)
        return at, limit

    def _raised_between(
        self, candidate: Candidate, at: PlanPoint, unsure_per_s: float, seen: list[Verdict], effort: SeedBudget
    ) -> PlanPoint:
        """Return a point at which a plan is sure, at most a factor of `_BETWEEN` below a rate at which it is not.

        A latency curve that rises late may lead from an unsure rate to one that is far too low.
        """
        while unsure_per_s > at.requests_per_s * _BETWEEN:
            middle = self.point(candidate, math.sqrt(at.requests_per_s * unsure_per_s), effort)
            if self.is_sure(middle, seen):
                at = middle
            else:
                unsure_per_s = middle.requests_per_s
        return at

    def _sure_rate(
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
            found = sure_rate_per_s(curve, slo, highest_per_s, spread, self.tester.confidence)
            if found is None:
                return None, slo.name
            rates[slo.name] = found
        if not rates:
            return None, None
        least = min(rates, key=rates.__getitem__)
        return rates[least], least if rates[least] < highest_per_s else None
