"""The choice of the recommended plan: the simplest of those that tie with the best with all seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.answer.candidate_search import distance_of
from planner.answer.confirmed_rates import BEST
from planner.answer.evaluated_plan import EvaluatedPlan, load_at_equal_value, objective_value
from planner.answer.plan_evaluator import PlanEvaluator
from planner.problem.request import PlanRequest
from planner.search.candidate_tester import TIE


@dataclass(frozen=True, slots=True)
class _Merit:
    """What ranks a plan.

    Attributes:
        value: The quantity that the objective minimises.
        load: The capacity, requests per second, where plans of equal value are compared by it: if a rate is required,
            the price alone is the cost of a plan. 0 where it does not decide.
        distance: How far the plan is from the defaults: the smaller, the simpler.
    """

    value: float
    load: float
    distance: tuple[int, ...]

    def beats(self, other: _Merit) -> bool:
        """Return whether the value is better by more than a tie."""
        return self.value < _worse_by(-TIE, other.value)

    def equals(self, other: _Merit) -> bool:
        """Return whether neither the value nor the load is worse by more than a tie."""
        return self.value < _worse_by(TIE, other.value) and self.load >= (1 - TIE) * other.load

    def ties(self, other: _Merit) -> bool:
        """Return whether two plans are equal, whichever comes first."""
        return math.isfinite(other.value) and self.equals(other) and other.equals(self)


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The merits of the plans of a request."""

    request: PlanRequest
    plan_evaluator: PlanEvaluator

    def merit(self, entry: EvaluatedPlan) -> _Merit:
        """Return what ranks a plan."""
        return _Merit(
            objective_value(self.request.objective, self.request.given, entry),
            load_at_equal_value(self.request.objective, self.request.given, entry),
            distance_of(entry.candidate, self.plan_evaluator.evaluator),
        )

    def simplest_of_best(self, entries: Sequence[EvaluatedPlan]) -> EvaluatedPlan:
        """Return the simplest of the plans that tie with the best; of several, the first."""
        merits = [(self.merit(entry), entry) for entry in entries]
        least = min(merit.value for merit, _ in merits)
        best = [(merit, entry) for merit, entry in merits if merit.value <= _worse_by(TIE, least)]
        most = max(merit.load for merit, _ in best)
        tied = [(merit, entry) for merit, entry in best if merit.load >= (1 - TIE) * most]
        return min(tied, key=lambda pair: pair[0].distance)[1]


def simplest_of_best_first(
    request: PlanRequest, plan_evaluator: PlanEvaluator, entries: Sequence[EvaluatedPlan]
) -> list[EvaluatedPlan]:
    """Return the plans with the recommended one first: the simplest of those that tie with the best with all seeds.

    The search uses one seed, and alternatives are evaluated with few. One that seems better than the first plan by more
    than a tie, or that seems to tie with it and is simpler, is evaluated with as many seeds. Its figures are then
    theirs, and it is left out if it no longer meets the request.

    Args:
        request: The request.
        plan_evaluator: Evaluates plans, and knows how simple they are.
        entries: The winner of the search, evaluated with all seeds, and its alternatives.
    """
    first, *others = entries
    ranking = _Ranking(request, plan_evaluator)
    kept, sure = [first], [first]
    for other in sorted(others, key=lambda entry: ranking.merit(entry).value):
        ours, theirs = ranking.merit(first), ranking.merit(other)
        if not (theirs.beats(ours) or (theirs.distance < ours.distance and theirs.equals(ours))):
            kept.append(other)
            continue
        start = other.capacity_requests_per_s or other.requests_per_s
        again = plan_evaluator.entry(other.candidate, start, BEST)
        if again.holds:
            kept.append(again)
            sure.append(again)
            first = ranking.simplest_of_best(sure)
    rank = {entry.candidate: i for i, entry in enumerate(entries)}
    return sorted(kept, key=lambda entry: (entry is not first, rank[entry.candidate]))


def with_ties(
    request: PlanRequest, plan_evaluator: PlanEvaluator, entries: Sequence[EvaluatedPlan]
) -> list[EvaluatedPlan]:
    """Return the plans of an answer, with the alternatives marked that tie with the first plan and are less simple."""
    if not entries:
        return []
    ranking = _Ranking(request, plan_evaluator)
    ours = ranking.merit(entries[0])

    def marked(entry: EvaluatedPlan) -> EvaluatedPlan:
        theirs = ranking.merit(entry)
        ties = theirs.ties(ours) and ours.distance < theirs.distance
        return replace(entry, plan=entry.plan.model_copy(update={"ties": ties}))

    return [entries[0], *map(marked, entries[1:])]


def _worse_by(share: float, value: float) -> float:
    """Return the value of an objective that is worse by a share, or better if the share is negative."""
    return value + share * abs(value) if math.isfinite(value) else value
