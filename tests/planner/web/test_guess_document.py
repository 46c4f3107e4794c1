"""The document of a guess states the figures of the planner's guess, as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.answer.guess import guess_plan
from planner.problem.scenario import request_of_keys
from planner.web.documents.guess import guess_document

QUESTION: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100x8", "slo": ["ttft.p99=2s"], "rate": 40}


def test_the_document_states_the_figures_of_the_guess() -> None:
    request = request_of_keys(QUESTION)
    found, shown = guess_plan(request), guess_document(request)
    assert found.sized is not None
    assert found.range is not None
    assert shown["uncertainty"] is not None
    assert (shown["gpus"], shown["usd_per_hour"]) == (found.sized.gpus, found.sized.usd_per_hour)
    assert shown["uncertainty"]["gpus"] == list(found.range.gpus)
    assert "not simulated" in shown["uncertainty"]["words"]
    assert shown["deployment"] == f"{found.sized.replicas} x TP1"


@pytest.mark.parametrize("rate", [1, 40, 100])
def test_the_words_name_a_range_only_where_there_is_one(rate: int) -> None:
    """The page shows no range whose two ends are equal."""
    shown = guess_document(request_of_keys(QUESTION | {"rate": rate}))["uncertainty"]
    assert shown is not None
    low, high = shown["gpus"]
    assert ("the range is" in shown["words"]) is (low != high)
    assert ("the number of accelerators is the same" in shown["words"]) is (low == high)


@pytest.mark.parametrize("keys", [{}, {"slo": ["ttft.p99=1ms"]}, {"model": "llama3.1-405b", "hardware": "l40sx8"}])
def test_every_document_is_json_with_the_same_keys(keys: dict[str, Any]) -> None:
    found = guess_document(request_of_keys(QUESTION | keys))
    json.dumps(found, allow_nan=False)
    assert found.keys() == guess_document(request_of_keys(QUESTION)).keys()
    assert found["fits"] == ("model" not in keys)
