"""What became of each candidate: the numbers of an answer add up, whatever the question."""

from __future__ import annotations

import re
from typing import Any

import pytest

from planner.networks.plan import plan_network
from planner.networks.report.tables import reproduction
from planner.networks.request import network_request
from planner.networks.schema import NetworkAnswer
from planner.networks.screen import render
from simulator.networks.job import price_job

pytestmark = pytest.mark.runs_of(200)

KEYS = {"model": "resnet50", "hardware": "l4", "slo": "e2e.p90=50ms", "modes": "compiled", "max_batch": 4}

QUESTIONS: dict[str, dict[str, Any]] = {
    "met": {"rate": 100},
    "no rate": {"max_batch": 1},
    "two kinds": {"rate": 100, "hardware": "l4x2,l40sx1"},
    "few trials": {"rate": 100, "modes": "eager,compiled", "search.trials": 1},
    "users": {"users": 4},
    "overloaded": {"rate": 20_000},
    "one job alone": {"rate": 10, "slo": "e2e.p90=0.5ms"},
    "waits": {"rate": 250, "slo": "e2e.p99=2ms"},
    "waits, few trials": {"rate": 250, "slo": "e2e.p99=2ms", "search.trials": 1},
    "beyond the budget": {"rate": 2_000, "hardware": "l4x2", "max_usd_per_hour": 0.9},
    "too many users": {"users": 200, "slo": "e2e.p99=20ms"},
}


@pytest.fixture(params=QUESTIONS.values(), ids=QUESTIONS.keys())
def answer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> NetworkAnswer:
    """Return an answer without what would meet it, whose searches have candidates of their own."""
    monkeypatch.setattr("planner.networks.refusal._execution", lambda *_: ())
    monkeypatch.setattr("planner.networks.refusal._hardware", lambda *_: ())
    return plan_network(network_request(KEYS | request.param))


def test_each_candidate_counts_once_and_has_one_reason(answer: NetworkAnswer) -> None:
    search = answer.search
    assert search.n_space > 0
    assert search.n_bounded_out == sum(search.bounded_out.values())
    assert min(search.n_bounded_out, search.n_simulated, search.n_not_simulated) >= 0
    words = " ".join(render(answer).partition("Search")[2].split())
    line = re.match(r"(\d+) candidates?: (\d+) ruled out by bounds, (\d+) not simulated, (\d+) simulated", words)
    assert line is not None
    n, *parts = map(int, line.groups())
    assert n == search.n_space == sum(parts)
    if (refusal := answer.infeasible) is None:
        return
    assert sum(refusal.reasons.values()) == search.n_space
    starts = ("ruled out: ", "simulated", "not simulated: ")
    found = [sum(n for why, n in refusal.reasons.items() if why.startswith(start)) for start in starts]
    assert found == [search.n_bounded_out, search.n_simulated, search.n_not_simulated]
    lines = re.findall(rf"(\d+) of {search.n_space} ", render(answer))
    assert sum(map(int, lines)) == search.n_space


def test_an_answer_that_counts_candidates_twice_has_no_negative_count(answer: NetworkAnswer) -> None:
    """Earlier versions counted a candidate that a bound ruled out, and that was simulated later, in both numbers."""
    search = answer.search.model_copy(update={"n_bounded_out": answer.search.n_space, "n_simulated": 3})
    old = answer.model_copy(update={"search": search})
    words = " ".join(render(old).partition("Search")[2].split())
    assert f"{search.n_space} ruled out by bounds, 3 simulated" in words
    assert "-3" not in words
    assert "not simulated" not in [row[0] for row in reproduction(old).rows]


def test_what_would_meet_a_refused_request_prices_no_job_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    priced: list[object] = []

    def price(network: Any, bundle: Any, hardware: Any, execution: Any, sizes: Any) -> Any:
        priced.append((hardware.text, execution, tuple(sorted(sizes.items()))))
        return price_job(network, bundle, hardware, execution, sizes)

    monkeypatch.setattr("planner.networks.job_service.price_job", price)
    answer = plan_network(network_request(KEYS | {"slo": "e2e.p99=1us", "rate": 5}))
    assert answer.infeasible is not None
    assert answer.infeasible.n_searches > 3
    assert len(set(priced)) == len(priced)
