"""A refusal for want of confidence: the confidence that it names is one that a plan has, with runs of full length."""

from __future__ import annotations

import pytest

from planner.answer.schema import Answer
from planner.evaluation.multi_hardware import open_evaluator
from planner.pipeline import make_plan
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slos


def answer_at(confidence: float, trials: int) -> Answer:
    request = PlanRequest(
        model="llama3.1-8b",
        hardware="l40sx2",
        slos=parse_slos(["ttft.p99=700ms"]),
        workload="azure-conv",
        requests_per_s=12.0,
        precisions=("fp8",),
        confidence=confidence,
        search=SearchOptions(trials=trials),
    )
    world = open_evaluator(request)
    return make_plan(request, world, world.elsewhere)


@pytest.mark.slow
def test_a_refusal_at_one_confidence_names_the_confidence_that_the_plan_has() -> None:
    refused = answer_at(0.9, trials=4).infeasible
    assert refused is not None
    (sure,) = (way.value for way in refused.what_would_meet_it if way.kind == "confidence")
    assert isinstance(sure, float)
    assert 0.5 <= sure < 0.9
    assert answer_at(sure, trials=40).feasible
