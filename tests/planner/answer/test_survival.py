"""A loss that must be survived counts for every plan of an answer, and for the changes that `plan explain` names."""

from __future__ import annotations

from functools import cache

import pytest

from planner.answer.answer_schema import Answer
from planner.pipeline import plan
from planner.problem.demand import FailureTolerance
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.studies.capacity_growth import CAPACITY_GOAL, growth
from planner.studies.rerun import Rerun

#: Two L40S carry the load and cost less, but one of them does not.
ASKED = PlanRequest(
    model="llama3.1-8b",
    hardware="l40sx3,h100x2",
    slos=parse_slos(["ttft.p99=1s,tpot.p95=40ms"]),
    requests_per_s=8.0,
)

#: A load that one of two H100 carries, but not 1.2 times as much.
LOAD = 15.0


@cache
def surviving() -> Answer:
    return plan(ASKED.replace(spare=FailureTolerance(replicas=1)))


def test_without_a_loss_a_cheaper_plan_carries_the_load() -> None:
    """Otherwise the next test says nothing."""
    best, lost = plan(ASKED).best, surviving().best
    assert best is not None
    assert lost is not None
    assert (best.usd_per_hour or 0.0) < (lost.usd_per_hour or 0.0)


def test_every_plan_and_every_row_of_hardware_survives_the_loss() -> None:
    answer = surviving()
    assert answer.plans
    assert all(each.survival is not None and each.survival.met for each in answer.plans)
    best = answer.best
    assert best is not None
    for row in answer.hardware:
        if row.state == "holds":
            assert (row.usd_per_hour or 0.0) >= (best.usd_per_hour or 0.0)


def test_more_capacity_is_more_of_the_load_that_survives() -> None:
    answer = surviving()
    assert answer.best is not None
    found = growth(Rerun.of(answer), answer.best)
    assert found.goal_per_s == pytest.approx(CAPACITY_GOAL * 8.0)
    assert "with 1 replica lost, instead of 8 requests/s" in found.words


def test_a_plan_that_carries_more_only_with_every_replica_is_not_enough() -> None:
    """Two H100 carry 1.2 times the load together; one of them does not."""
    answer = plan(ASKED.replace(hardware="h100x2", requests_per_s=LOAD, spare=FailureTolerance(replicas=1)))
    best = answer.best
    assert best is not None
    assert (best.capacity_requests_per_s or 0.0) > CAPACITY_GOAL * LOAD
    found = growth(Rerun.of(answer), best)
    assert not any(step.holds and "the plan itself" in step.words for step in found.changes)
