"""A budget that pays for nothing that works: the reason names it, and the budget that would do is simulated."""

from __future__ import annotations

from functools import cache

from planner.answer.answer_schema import Answer
from planner.evaluation.multi_hardware import open_evaluator
from planner.pipeline import make_plan
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slos
from tests.planner.short_runs import shortened

BUDGET = PlanRequest(
    model="llama3.1-405b",
    hardware="h100x8,h200x8",
    slos=parse_slos(["p99=2s"]),
    search=SearchOptions(trials=3),
    max_usd_per_hour=5.0,
)


@cache
def no() -> Answer:
    world = open_evaluator(BUDGET)
    with shortened(400):  # runs half as long try more hardware
        return make_plan(BUDGET, world, world.elsewhere)


def test_the_reason_names_the_budget() -> None:
    assert not no().feasible
    refusal = no().infeasible
    assert refusal is not None
    assert "GB" in refusal.binding_constraint
    assert refusal.binding_constraint.endswith("on hardware within the budget of $5 per hour")


def test_the_budget_that_would_do_is_more_and_holds() -> None:
    refusal = no().infeasible
    assert refusal is not None
    budgets = [c for c in refusal.what_would_meet_it if c.kind == "budget"]
    assert budgets
    for change in budgets:
        value = change.value
        assert isinstance(value, float)
        assert value > 5.0
        assert f"${value:.2f}" in change.change
    cheapest = min(budgets, key=lambda c: float(str(c.value)))
    enough = PlanRequest(
        model="llama3.1-405b",
        hardware=cheapest.change.split(": ")[1],
        slos=BUDGET.slos,
        search=SearchOptions(trials=1),
        max_usd_per_hour=float(str(cheapest.value)),
    )
    world = open_evaluator(enough)
    with shortened(400):
        assert make_plan(enough, world, world.elsewhere).feasible
