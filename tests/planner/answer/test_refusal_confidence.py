"""A refusal for want of confidence: the confidence that it names is one that a plan has, with runs of full length."""

from __future__ import annotations

import pytest

from planner.answer.answer_schema import Answer
from planner.evaluation.multi_hardware import open_evaluator
from planner.pipeline import make_plan
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slos

SLOS = "ttft.p99=700ms"


def answer_at(confidence: float, trials: int, requests_per_s: float) -> Answer:
    request = PlanRequest(
        model="llama3.1-8b",
        hardware="l40sx2",
        slos=parse_slos([SLOS]),
        workload="azure-conv",
        requests_per_s=requests_per_s,
        precisions=("fp8",),
        confidence=confidence,
        search=SearchOptions(trials=trials),
    )
    world = open_evaluator(request)
    return make_plan(request, world, world.elsewhere)


@pytest.mark.slow
def test_a_refusal_at_one_confidence_names_the_confidence_that_the_plan_has() -> None:
    """The load grows until the plan has less than the confidence; no refusal before suggests what was requested."""
    for requests_per_s in (11.0, 12.0, 13.0, 14.0, 15.0):
        refused = answer_at(0.9, 4, requests_per_s).infeasible
        ways = {} if refused is None else {way.kind: way.value for way in refused.what_would_meet_it}
        assert ways.get("slo") != SLOS
        sure = ways.get("confidence")
        if sure is not None:
            break
    assert isinstance(sure, float)
    assert 0.5 <= sure < 0.9
    assert answer_at(sure, 40, requests_per_s).feasible
