"""What the plan page shows of an answer: the words of the screen, valid figures, and ways out that hold."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import plotly.graph_objects as go
import pytest

from planner.agents import refusal as agents_refusal
from planner.answer import refusal
from planner.answer.answer_schema import Answer, Suggestion
from planner.cli.screens.plan import render
from planner.evaluation.closed_forms.bounds import REQUEST_LENGTH
from planner.networks import refusal as network_refusal
from planner.pipeline import plan
from planner.problem.scenario import request_of_keys, scenario_keys
from planner.sections.full_answer import parse_answer
from planner.web.documents import agents_answer, network_answer
from planner.web.documents.answers import answer_document, changed_keys
from tests.planner.web.running_server import SMALL

REFUSED = SMALL | {"slo": ["ttft.p50=10us"]}
#: A value of each kind of suggestion.
VALUES: dict[str, Any] = {
    "hardware": "h100x2", "budget": 12.5, "confidence": 0.7, "rate": 0.5, "slo": "ttft.p50=9s", "precision": "fp8",
    REQUEST_LENGTH: 4096, "users": 3.0, "input_tokens": 300.0, "output_tokens": 30.0,
}  # fmt: skip


@cache
def answer(refused: bool) -> Answer:
    found = plan(request_of_keys(scenario_keys(REFUSED if refused else SMALL, "the question")))
    return parse_answer(json.loads(json.dumps(found.document())))


def test_the_document_has_the_words_of_the_screen() -> None:
    found, screen = answer_document(answer(refused=False)), " ".join(render(answer(refused=False)).split())
    assert found["feasible"]
    assert found["headline"] in screen
    for _, value, _ in found["cards"]:
        assert value in screen
    for label, text in found["sections"]:
        assert f"{label} {' '.join(text.split())}".strip() in screen
    json.dumps(found, allow_nan=False)  # refuses what JSON cannot hold


def test_plotly_accepts_every_figure_and_the_first_is_of_an_objective() -> None:
    figures = answer_document(answer(refused=False))["figures"]
    assert {"curve", "distribution", "memory", "time", "evidence"} <= {figure["name"] for figure in figures}
    assert figures[0]["title"].startswith("Time to first token")
    for figure in figures:
        go.Figure(figure["data"], figure["layout"])  # refuses unknown keys and values


def test_a_refusal_states_its_reason_and_the_closest_plan() -> None:
    found = answer_document(answer(refused=True))
    no, screen = found["refusal"], " ".join(render(answer(refused=True)).split())
    assert not found["feasible"]
    assert no["reason"][1:] in screen
    assert no["closest"]["words"] in screen
    assert sum(n for _, n in no["reasons"]) == answer(refused=True).search.n_space


def test_every_kind_of_suggestion_has_a_value_here() -> None:
    assert suggested(refusal) | {REQUEST_LENGTH, "input_tokens", "output_tokens"} == set(VALUES)


def test_every_kind_of_suggestion_for_networks_and_agents_changes_a_key_of_the_question() -> None:
    assert suggested(network_refusal) == set(network_answer.CHANGED_KEY)
    assert suggested(agents_refusal) - {"slo"} == set(agents_answer.CHANGED_KEY)


def suggested(module: ModuleType) -> set[str]:
    """Return the kinds of suggestions that a module makes."""
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    return set(re.findall(r'Suggestion\.simulated\(\s*"(\w+)"', source))


@pytest.mark.parametrize("kind", VALUES)
def test_a_way_out_changes_the_question_into_a_valid_one(kind: str) -> None:
    request = answer(refused=True).request
    change = Suggestion(kind=kind, change="a change", value=VALUES[kind], verified_by="simulation")
    changes = changed_keys(request, change)
    refused = {k: v for k, v in REFUSED.items() if k != "rate" or kind != "users"}  # a load is a rate or users
    changed = request_of_keys(scenario_keys(refused | changes, "the changed question"))
    assert changed != request
