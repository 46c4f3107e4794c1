"""An answer states the lengths of its requests, also those that the request fixes, and why long ones are refused."""

from __future__ import annotations

from functools import cache

import pytest

from catalogs.workloads.workload import load_workload
from planner.answer.answer_schema import Answer
from planner.cli.screens.plan import render
from planner.evaluation.multi_hardware import open_evaluator
from planner.pipeline import make_plan
from planner.problem.overrides import Overrides
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slos
from planner.sections.full_answer import parse_answer


def answer_to(**asked: object) -> Answer:
    request = PlanRequest(
        model="llama3.2-1b",
        hardware="l4",
        slos=parse_slos(["ttft.p90=5s"]),
        requests_per_s=0.5,
        search=SearchOptions(trials=1),
        **asked,  # type: ignore[arg-type]
    )
    evaluator = open_evaluator(request)
    return parse_answer(make_plan(request, evaluator, evaluator.elsewhere).document())


@cache
def fixed_lengths() -> Answer:
    return answer_to(input_tokens=800, output_tokens=20)


def request_line(answer: Answer) -> str:
    return " ".join(render(answer).split("\n\n")[0].split())


def test_constant_lengths_are_simulated_and_stated() -> None:
    answer = fixed_lengths()
    assert answer.best is not None
    assert "workload azure-conv (constant: 800 in, 20 out), 0.5 requests/s" in request_line(answer)
    block = answer.document()["workload"]
    assert block["input_tokens"] == dict.fromkeys(("mean", "p50", "p95", "p99", "max"), 800.0)
    assert (answer.document()["request"]["input_tokens"], answer.document()["request"]["output_tokens"]) == (800, 20)
    assert "--input-tokens 800 --output-tokens 20" in answer.reproduce.command
    assert any("exactly 800 input tokens and 20 output tokens" in notice for notice in answer.best.notices)


def test_an_answer_of_an_earlier_version_has_the_name_only() -> None:
    earlier = {key: value for key, value in fixed_lengths().document().items() if key != "workload"}
    assert "workload azure-conv, 0.5 requests/s" in request_line(parse_answer(earlier))


def test_requests_beyond_max_model_len_are_the_binding_constraint_with_a_way_out() -> None:
    answer = answer_to(fixed=Overrides.of({"max_model_len": 2048, "tensor_parallel": 1}))
    assert answer.infeasible is not None
    assert "of requests are rejected because they exceed max_model_len 2048" in answer.infeasible.binding_constraint
    (change,) = answer.infeasible.what_would_meet_it
    assert (change.kind, change.value) == ("max_model_len", 16384)
    assert answer.search.n_simulated == 0
    line = request_line(answer)
    assert load_workload("azure-conv").lengths().words in line
    assert "queue grows" not in render(answer)


@pytest.mark.parametrize(("side", "most"), [("input_tokens", 130_872), ("output_tokens", 130_272)])
def test_a_refusal_by_the_positions_of_the_model_states_the_length_that_fits(side: str, most: int) -> None:
    lengths = {"input_tokens": 800, "output_tokens": 200} | {side: 140_000}
    answer = answer_to(**lengths, fixed=Overrides.of({"tensor_parallel": 1}))
    assert answer.infeasible is not None
    assert f"{most:,} fit with " in answer.infeasible.binding_constraint  # llama3.2-1b has 131,072 positions
    found = [(change.kind, change.value) for change in answer.infeasible.what_would_meet_it]
    assert not found  # an L4 reads no such prompt within 5 s, and no such output 0.5 times a second
    assert "more of this hardware" not in " ".join(render(answer).split())


@pytest.mark.parametrize("side", ["input_tokens", "output_tokens"])
def test_a_length_below_one_token_is_refused(side: str) -> None:
    with pytest.raises(ValueError, match=f"{side} must be a whole number of at least 1"):
        answer_to(**{side: 0})


def test_the_longest_length_that_meets_the_objectives_is_suggested() -> None:
    """llama3.2-1b has 131,072 positions; the output of 200 leaves 130,872 of them."""
    request = PlanRequest(
        model="llama3.2-1b",
        hardware="h100",
        slos=parse_slos(["ttft.p90=60s"]),
        search=SearchOptions(trials=1),
        input_tokens=140_000,
        output_tokens=200,
    )
    evaluator = open_evaluator(request)
    answer = parse_answer(make_plan(request, evaluator, evaluator.elsewhere).document())
    assert answer.infeasible is not None
    found = {change.kind: change for change in answer.infeasible.what_would_meet_it}
    assert found["input_tokens"].value == 130_872
    assert "prompts of 130,872 tokens (--input-tokens 130872): " in render(answer)
    shorter = request.replace(input_tokens=130_872)
    evaluator = open_evaluator(shorter)
    assert make_plan(shorter, evaluator, evaluator.elsewhere).feasible
