"""Closed forms that other processes computed are those that this process would compute, and save it the work."""

from __future__ import annotations

import pickle
from functools import partial

import pytest

from catalogs.hardware.catalog import parse_hardware
from planner.answer import candidate_search
from planner.answer.candidate_search import estimates_ahead
from planner.evaluation.evaluator import apply_bounds
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator, open_evaluator
from planner.problem.candidate import Candidate
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.search.workers import ProcessPool

#: One plan on the smaller hardware is ruled out by memory, and others by the limit.
REQUEST = PlanRequest(model="llama3.1-8b", hardware="l4x2,l40sx1", slos=parse_slos(["e2e.p90=9s"]))


def figures(evaluator: HardwareChoiceEvaluator) -> tuple[object, ...]:
    """Everything that the order of a search depends on."""
    left, discards = apply_bounds(REQUEST, evaluator)
    tester = candidate_search.tester_of(REQUEST, evaluator, left)

    def of(c: Candidate) -> tuple[object, ...]:
        rates = evaluator.fluid_requests_per_s(c), evaluator.light_requests_per_s(c)
        return c, *rates, evaluator.stated_error(c), tester.guessed_capacity_per_s(c)

    return [of(c) for c in left], discards


@pytest.mark.parametrize("n_workers", [1, 2])
def test_estimates_of_other_processes_are_those_of_this_one(n_workers: int) -> None:
    here = open_evaluator(REQUEST)
    ahead = open_evaluator(REQUEST, partial(estimates_ahead, REQUEST, ProcessPool(n_workers)))
    assert figures(here) == figures(ahead)
    compiled = [len(e.deployments._compiled) for e in ahead.evaluators.values()]
    assert compiled == [0, 0]  # nothing was computed again
    assert all(e.deployments._compiled for e in here.evaluators.values())


def test_estimates_survive_being_sent_and_are_not_those_of_slower_steps() -> None:
    ahead = partial(estimates_ahead, REQUEST, ProcessPool(1))
    (found,) = ahead([parse_hardware("l40sx1")])
    assert found is not None
    assert pickle.loads(pickle.dumps(found)) == found
    opened = open_evaluator(REQUEST, ahead)
    slower = opened.with_(step_factor=2.0)
    for candidate in opened.space():
        if opened.discard(candidate) is None:
            assert slower.fluid_requests_per_s(candidate) == opened.fluid_requests_per_s(candidate) / 2


def test_nothing_is_computed_ahead_where_it_would_not_be_enough_or_not_be_possible() -> None:
    kinds = [parse_hardware("l4x1"), parse_hardware("tpu-v6ex1")]
    energy = REQUEST.replace(objective="energy")
    assert estimates_ahead(energy, ProcessPool(1), kinds) == [None, None]
    unknown = REQUEST.replace(workload="no-such-workload")
    assert estimates_ahead(unknown, ProcessPool(1), kinds) == [None, None]
    sglang = REQUEST.replace(engine="sglang")
    assert [found is None for found in estimates_ahead(sglang, ProcessPool(1), kinds)] == [False, True]


def test_the_estimate_of_a_capacity_is_made_once_for_each_candidate_and_its_limits() -> None:
    evaluator = open_evaluator(REQUEST)
    c = apply_bounds(REQUEST, evaluator)[0][0]
    found = candidate_search.tester_of(REQUEST, evaluator, [c]).guessed_capacity_per_s(c)
    known = evaluator.of(c).estimates.capacity_per_s
    (key,) = known
    known[key] = found / 2
    strict = REQUEST.replace(slos=parse_slos(["e2e.p90=8s"]))
    assert candidate_search.tester_of(REQUEST, evaluator, [c]).guessed_capacity_per_s(c) == found / 2
    assert candidate_search.tester_of(strict, evaluator, [c]).guessed_capacity_per_s(c) != found / 2
