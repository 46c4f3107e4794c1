"""At equal cost the plan with the highest capacity is recommended; the simpler one only if capacities tie as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from catalogs.hardware.catalog import parse_hardware
from planner.networks.merit import Merit, preferred
from planner.networks.plan import NetworkPlanner
from planner.networks.plan_builder import PlanBuilder
from planner.networks.search import KindSearch
from tests.planner.networks.known_jobs import one, world

KEYS = {"modes": "compiled", "precisions": "bf16", "max_instances": 1, "confidence": 0.5, "max_batch": 8}


def searched(seconds_of: Callable[[int], float], hardware: str = "h100x8", **keys: Any) -> KindSearch:
    """Return the search over batches of up to eight jobs, of which one of n jobs takes `seconds_of(n)` seconds."""
    assessor = world(seconds_of, hardware=hardware, **KEYS, **keys)
    planner = NetworkPlanner(assessor.request, assessor.evaluator.service.mix, PlanBuilder(assessor))
    return planner.search(parse_hardware(hardware))


@pytest.mark.parametrize("load", [{"rate": 4.0}, {"users": 3}])
def test_at_equal_cost_the_largest_capacity_wins(load: dict[str, float]) -> None:
    """A batch takes as long as one job, so that eight jobs at a time have eight times the capacity of one."""
    best = searched(lambda _: 0.1, "h100x1", slo="e2e.p90=1s", **load).search.best
    assert best is not None
    assert best.candidate.max_batch == 8
    assert best.candidate.queue_delay_s == 0.0


def test_at_equal_cost_and_capacity_the_simplest_wins() -> None:
    """No second job waits at a rate that holds, so that larger batches change nothing."""
    best = searched(lambda n: 0.8 + 0.2 * n, "h100x1", slo="e2e.p90=1.05s", rate=0.01).search.best
    assert best is not None
    assert best.candidate.max_batch == 1


def test_no_plan_competes_with_the_simplest_that_holds_the_most_users_that_are_simulated() -> None:
    """They send few jobs: every candidate holds them, and 40 of 134 candidates took two minutes."""
    found = searched(lambda _: 0.001, "h100x1", slo="e2e.p90=1s", users=50, think_s=100.0)
    best = found.search.best
    assert best is not None
    assert best.candidate.max_batch == 1
    assert len(found.search.outcomes) == 1
    assert found.search.complete


def test_a_cheaper_plan_wins_over_a_larger_capacity() -> None:
    """One replica with batches of three serves nine jobs a second; two would hold more, for twice the price."""
    best = searched(lambda n: 0.15 + 0.05 * n, slo="e2e.p90=5s", rate=9.0).search.best
    assert best is not None
    assert best.candidate.replicas == 1
    assert best.candidate.max_batch == 8


def test_replicas_fill_the_instances_that_are_paid_for() -> None:
    """Lambda rents eight H100 at once: all of them serve."""
    assessor = world(lambda _: 0.1, rate=5.0, slo="e2e.p90=1s", **{"tariff.cloud": "lambda"})
    found = assessor(one(replicas=8))
    assert found.score is not None
    assert found.candidate.replicas == 8
    assert assessor(one(replicas=8)).score == assessor.usd_per_hour(one())


def test_the_preferred_plan_has_the_lowest_score_then_the_highest_load_then_the_simplest_candidate() -> None:
    plans = {
        "cheap": Merit(1.0, 10.0, (3.0,)),
        "simple": Merit(1.005, 9.95, (2.0,)),
        "slow": Merit(1.0, 5.0, (1.0,)),
        "dear": Merit(2.0, 99.0, (0.0,)),
    }
    assert preferred(list(plans), plans.__getitem__) == "simple"
    assert not plans["slow"].may_win(plans["cheap"])
    assert not plans["dear"].may_win(plans["cheap"])
    assert plans["simple"].may_win(plans["cheap"])
    assert not plans["cheap"].may_win(plans["simple"])
    assert replace(plans["cheap"], load=10.2).may_win(plans["simple"])
    assert plans["simple"].ties(plans["cheap"])
    assert not plans["slow"].ties(plans["cheap"])


def test_scores_alone_decide_where_no_load_is_compared() -> None:
    fast, simple = Merit(-10.0, 0.0, (2.0,)), Merit(-9.95, 0.0, (1.0,))
    assert preferred([fast, simple], lambda merit: merit) is simple
    assert simple.may_win(fast)
    assert not fast.may_win(simple)
    assert Merit(-10.2, 0.0, (2.0,)).may_win(simple)
