"""Latency by the length of requests in an answer: objectives with conditions, the section, and two answers compared."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from catalogs.errors import InputError
from planner.answer.answer_schema import Answer
from planner.cli.screens.plan import render
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator, open_evaluator
from planner.evaluation.observation import Load
from planner.evaluation.run_sizes import RunSizes, condition_shares
from planner.evaluation.verdict import judge, pooled_waiting_share
from planner.pipeline import make_plan
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slos
from planner.sections.complexity import LatencyByLength
from planner.sections.full_answer import parse_answer
from planner.sections.registry import section_pages
from planner.studies.comparison import compare_answers

pytestmark = pytest.mark.runs_of(500)

#: The sizes of runs that are not shortened.
sizes = RunSizes.for_slos

SLO = "e2e[in>=1k,out<400].p90=40s,normalized.p90=200ms"


def asked(hardware: str = "rtx4090", slo: str = SLO, **keys: object) -> PlanRequest:
    return PlanRequest(
        model="llama3.1-8b",
        hardware=hardware,
        slos=parse_slos([slo]),
        workload="azure-conv",
        search=SearchOptions(trials=3),
        **keys,  # type: ignore[arg-type]
    )


@cache
def opened() -> HardwareChoiceEvaluator:
    return open_evaluator(asked())


@cache
def answer() -> Answer:
    return make_plan(asked(), opened(), opened().elsewhere)


def block() -> LatencyByLength:
    found = answer().complexity  # type: ignore[attr-defined]
    assert isinstance(found, LatencyByLength)
    return found


def test_an_objective_is_judged_by_the_requests_that_fulfil_its_condition() -> None:
    evaluator, (slo, _) = opened(), asked().slos
    candidate = evaluator.space()[0]
    load = Load(0.5 * evaluator.fluid_requests_per_s(candidate), 400, 0)
    seen = evaluator.observe(candidate, load)
    one = evaluator.of(candidate)
    run = one.runs.cache.run(candidate, load, one.runs._settle)
    held = (run.requests.input_tokens >= 1000) & (run.requests.output_tokens < 400)
    assert 0 < len(seen.samples_s[slo.metric]) < seen.n_measured
    assert set(seen.samples_s[slo.metric].tolist()) <= set(run.e2e_s[held].tolist())
    assert judge([seen], [slo]).value_s(slo) == np.quantile(seen.samples_s[slo.metric], 0.9)
    assert len(seen.samples_s["normalized"]) == seen.n_measured


def test_the_waiting_share_of_a_condition_is_that_of_its_requests() -> None:
    slos = parse_slos(["ttft[in<200].mean=9s,ttft.mean=9s"])
    evaluator = open_evaluator(asked(slo="ttft[in<200].mean=9s,ttft.mean=9s"))
    candidate = evaluator.space()[0]
    seen = evaluator.observe(candidate, Load(0.8 * evaluator.fluid_requests_per_s(candidate), 400, 0))
    shares = [pooled_waiting_share([seen], slo) for slo in slos]
    short_s, queue_s = seen.samples_s[slos[0].metric], seen.conditioned_queue_s[slos[0].metric]
    assert len(short_s) == len(queue_s) < seen.n_measured
    assert shares[0] == pytest.approx(queue_s.mean() / short_s.mean())
    assert shares[0] > shares[1]  # a short prompt computes less, and waits as long


def test_a_condition_that_no_request_fulfils_is_refused_with_the_lengths_of_the_workload() -> None:
    with pytest.raises(InputError, match=r"no request of workload azure-conv has at least 1,000,000 input"):
        open_evaluator(asked(slo="e2e[in>=1m].p99=5s"))


def test_runs_are_longer_for_conditions_that_few_requests_fulfil() -> None:
    rare = parse_slos(["e2e[in<64].p90=5s"])
    shares = condition_shares(asked(), rare)
    assert 0 < shares[rare[0].metric] < 0.2
    assert condition_shares(asked(slo="ttft.p99=2s")) == {}
    assert sizes(rare, {rare[0].metric: 0.01}).full == 16_000
    assert sizes(rare, {}).full == sizes(parse_slos(["e2e.p90=5s"]), {}).full == 1000


def test_the_answer_states_the_requests_of_a_condition_and_says_if_they_are_few() -> None:
    plan = answer().best
    assert plan is not None
    conditioned, normalised = plan.slo
    assert conditioned.name == "e2e[in>=1k,out<400].p90"
    assert conditioned.n_requests is not None
    assert normalised.n_requests is None
    assert any("rests on" in notice for notice in plan.notices) == (conditioned.n_requests * 0.1 < 12)
    assert plan.latency_s(conditioned.metric, "p90") == conditioned.value_s
    points = [point.of(conditioned.metric).p90 for point in plan.curve]
    assert all(p is not None for p in points)
    assert points == sorted(points)  # type: ignore[type-var]
    assert parse_answer(answer().document()).document() == answer().document()


def test_the_section_adds_up() -> None:
    found = block()
    assert sum(each.requests for each in found.by_bin) == found.requests > 50
    assert len(found.by_bin) == 16
    assert sum(part.share for part in found.parts.values()) == pytest.approx(1.0)
    assert found.fit is not None
    assert found.fit.mean.output_token_s is not None
    assert found.fit.mean.output_token_s > 0
    assert found.error_low < found.error_high
    screen = render(answer())
    assert "By length" in screen
    assert "per input and output token" in screen
    page = str(
        next(page for page in section_pages(answer()) if page.title == "Latency by the length of requests").parts
    )
    assert "detokenise" in page
    assert "output tokens" in page


def test_an_answer_compared_with_itself_is_equal_at_equal_lengths() -> None:
    figures = {f.name: f for f in compare_answers(answer(), answer()).figures}
    same = figures["end-to-end time at equal lengths"]
    assert same.change == 0.0
    assert same.better == "same"


def test_every_metric_of_requests_has_an_objective_that_a_plan_judges() -> None:
    names = [name for name, metric in LATENCY_METRICS.items() if metric.is_per_request]
    evaluator = opened()
    candidate = evaluator.space()[0]
    seen = evaluator.observe(candidate, Load(0.5 * evaluator.fluid_requests_per_s(candidate), 400, 0))
    assert set(names) <= set(seen.samples_s)
