"""The guess agrees with the closed forms of a plan, moves as objectives and rates do, and states a range."""

from __future__ import annotations

import math
from typing import Any

import pytest

from calibration.bundles.bundle import load_bundle
from catalogs.hardware.catalog import parse_hardware
from catalogs.models.catalog import list_models
from planner.answer import guess as guesses
from planner.answer.guess import Guess, guess_plan
from planner.answer.replica_counts import SizedReplicas
from planner.evaluation.confidence import allowance_for
from planner.evaluation.multi_hardware import open_evaluator
from planner.problem.scenario import request_of_keys
from planner.problem.slo import Slo

QUESTION: dict[str, Any] = {
    "model": "llama3.1-8b",
    "hardware": "h100x8",
    "slo": ["ttft.p99=2s", "tpot.p99=50ms"],
    "rate": 40,
}


def guess(**keys: Any) -> Guess:
    """Return the guess for the question with other keys."""
    return guess_plan(request_of_keys(QUESTION | keys))


def sized(**keys: Any) -> SizedReplicas:
    """Return the replicas of the guess for the question with other keys."""
    found = guess(**keys).sized
    assert found is not None
    return found


def or_endless(n: float | None) -> float:
    """Return a number; infinity stands for a load that no number of accelerators carries."""
    return math.inf if n is None else n


def test_a_higher_rate_never_needs_fewer_accelerators() -> None:
    found = [sized(rate=rate).gpus for rate in (1, 10, 40, 160, 640)]
    assert found == sorted(found, key=or_endless)
    assert found[0] == 1
    assert or_endless(found[-1]) > 4


def test_a_tighter_objective_never_needs_fewer_accelerators() -> None:
    found = [sized(slo=[f"ttft.p99={limit}ms"]).gpus for limit in (5000, 500, 200, 100, 1)]
    assert found == sorted(found, key=or_endless)
    assert found[-1] is None


def test_the_capacity_is_that_of_the_closed_forms_of_a_plan() -> None:
    """At the guessed capacity the estimates that order a search meet each objective, above it they do not."""
    request = request_of_keys(QUESTION | {"confidence": 0.5, "hardware": "h100"})
    found = guess(confidence=0.5, hardware="h100", rate=1e-3)
    assert found.candidate is not None
    assert found.sized is not None
    evaluator = open_evaluator(request)
    (candidate,) = (c for c in evaluator.space() if c == found.candidate)
    assert found.single_ttft_s == pytest.approx(evaluator.guess_s(candidate, 1e-6, "ttft"), rel=1e-3)
    allowed = allowance_for(0.5, evaluator.stated_error(candidate))

    def ratio(slo: Slo, rate: float) -> float:
        value_s, single_s = (
            evaluator.guess_s(candidate, at, slo.latency.name, slo.quantile) for at in (rate * allowed.speed, 1e-6)
        )
        return value_s * allowed.latency(slo, 1 - single_s / value_s) / slo.limit_s

    def worst(rate: float) -> float:
        return max(ratio(slo, rate) for slo in request.slos)

    assert found.sized.requests_per_s is not None
    assert worst(found.sized.requests_per_s * 0.999) <= 1
    assert worst(found.sized.requests_per_s * 1.01) > 1


def test_the_range_holds_the_guess() -> None:
    for keys in ({}, {"rate": 300}, {"model": "llama3.1-70b", "rate": 8}, {"rate": None}, {"rate": None, "users": 500}):
        found = guess(**keys)
        assert found.range is not None
        assert found.sized is not None
        low, high = (or_endless(n) for n in found.range.gpus)
        assert low <= or_endless(found.sized.gpus) <= high
        slow, fast = found.range.requests_per_s
        assert or_endless(slow) <= or_endless(found.sized.requests_per_s) <= or_endless(fast)


def test_what_does_not_fit_says_so_with_numbers() -> None:
    found = guess(model="llama3.1-405b", hardware="l40sx8")
    assert not found.fits
    assert found.binds == "memory"
    assert found.candidate is not None
    assert found.candidate.layout.accelerators == 8
    assert "GB" in found.notes[0]


def test_more_than_the_hardware_of_the_question_is_named_as_such() -> None:
    found = guess(rate=2000)
    assert found.sized is not None
    assert not found.sized.enough
    assert f"needs about {found.sized.gpus} accelerators, more than the 8 of h100x8" in found.notes


def test_users_wait_between_requests() -> None:
    quick, slow = (sized(rate=None, users=2000, think_s=think_s).gpus for think_s in (1, 60))
    assert or_endless(slow) < or_endless(quick)


def test_of_many_kinds_of_hardware_a_few_are_compared_and_named() -> None:
    found = guess(model="llama3.1-70b", hardware="any", rate=2)
    assert found.sized is not None
    assert found.sized.gpus is not None
    assert any(note.startswith("compares ") for note in found.notes)


def test_later_guesses_share_what_objectives_and_rates_do_not_change() -> None:
    first = sized(model="qwen3-32b", hardware="h100x2").choice.forms
    assert sized(model="qwen3-32b", hardware="h100x2", rate=7, slo=["tpot.p50=1s"]).choice.forms is first
    longer = sized(model="qwen3-32b", hardware="h100x2", input_tokens=900).choice.forms
    assert longer is not first
    assert longer.deployments is first.deployments


def test_a_new_calibration_is_not_answered_from_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed forms are kept for the tables from which they were made."""
    first = sized(model="qwen3-32b", hardware="h100x2")
    other = load_bundle(parse_hardware("h200").accelerator)
    monkeypatch.setattr(guesses, "load_bundle", lambda *_, **__: other)
    assert sized(model="qwen3-32b", hardware="h100x2").choice.forms is not first.choice.forms


@pytest.mark.parametrize("model", list_models()[::7])
def test_every_model_has_a_guess_or_a_reason(model: str) -> None:
    found = guess(model=model, hardware="h200x8", rate=2)
    assert found.fits or found.notes
