"""The choice of the recommended plan: the simplest of those that tie with the best with all seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from planner.answer.candidate_search import distance_of
from planner.answer.confirmed_rates import BEST
from planner.answer.evaluated_plan import EvaluatedPlan, objective_value
from planner.answer.plan_evaluator import PlanEvaluator
from planner.problem.request import PlanRequest
from planner.search.candidate_tester import TIE


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
    value = partial(objective_value, request.objective, request.given)
    distance = partial(_distance, plan_evaluator)
    kept, sure = [first], [first]
    for other in sorted(others, key=value):
        simpler = distance(other) < distance(first)
        if not value(other) < _worse_by(TIE if simpler else -TIE, value(first)):
            kept.append(other)
            continue
        again = plan_evaluator.entry(other.candidate, other.requests_per_s, BEST)
        if again.holds:
            kept.append(again)
            sure.append(again)
            first = _simplest_of_best(sure, value, distance)
    rank = {entry.candidate: i for i, entry in enumerate(entries)}
    return sorted(kept, key=lambda entry: (entry is not first, rank[entry.candidate]))


def with_ties(
    request: PlanRequest, plan_evaluator: PlanEvaluator, entries: Sequence[EvaluatedPlan]
) -> list[EvaluatedPlan]:
    """Return the plans of an answer, with the alternatives marked that tie with the first plan and are less simple."""
    if not entries:
        return []
    value, first = partial(objective_value, request.objective, request.given), entries[0]
    best, distance = value(first), partial(_distance, plan_evaluator)

    def marked(entry: EvaluatedPlan) -> EvaluatedPlan:
        ties = math.isfinite(best) and _worse_by(-TIE, best) <= value(entry) <= _worse_by(TIE, best)
        is_simpler = distance(first) < distance(entry)
        return replace(entry, plan=entry.plan.model_copy(update={"ties": ties and is_simpler}))

    return [first, *map(marked, entries[1:])]


def _simplest_of_best(
    entries: Sequence[EvaluatedPlan],
    value: Callable[[EvaluatedPlan], float],
    distance: Callable[[EvaluatedPlan], tuple[int, ...]],
) -> EvaluatedPlan:
    """Return the simplest of the plans that tie with the best; of several, the first."""
    most = _worse_by(TIE, min(map(value, entries)))
    return min((entry for entry in entries if value(entry) <= most), key=distance)


def _distance(plan_evaluator: PlanEvaluator, entry: EvaluatedPlan) -> tuple[int, ...]:
    """Return the distance of a plan from the defaults: the smaller, the simpler."""
    return distance_of(entry.candidate, plan_evaluator.evaluator)


def _worse_by(share: float, value: float) -> float:
    """Return the value of an objective that is worse by a share, or better if the share is negative."""
    return value + share * abs(value) if math.isfinite(value) else value
