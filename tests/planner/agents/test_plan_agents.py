"""Plans for agents: small sessions on one GPU, so that a plan takes a second."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from catalogs.deployments.schema import load_deployment
from catalogs.errors import InputError
from catalogs.ui.words import digits
from catalogs.workloads.workload import load_workload
from planner.agents.answer import AgentsAnswer
from planner.agents.plan import TOLERANCE, _capacity, plan_agents
from planner.agents.screen import render
from planner.agents.serving import measured, requests_of
from planner.cli.main import app
from planner.problem.interactivity import interactivity, tpot_limit_s
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slo, parse_slos
from planner.sections.full_answer import parse_answer
from simulator.cluster.simulate import run_rules
from tests.simulator.worlds import Linear, rules

SESSIONS = (
    "{arrivals: {closed_loop: 4}, input_tokens: 200, output_tokens: 30, "
    "turns: {per_session: {uniform: {low: 4, high: 9}}, "
    "gap_s: {tool: 1.0, human: 5.0, human_share: 0.2}, first_input_tokens: 900}}"
)


def request(slo: str = "interactivity.p90=20,ttft.p95=2s", **changes: object) -> PlanRequest:
    """Return a request for small sessions on one GPU."""
    keys = {"model": "llama3.1-8b", "hardware": "h100", "workload": SESSIONS, "slos": parse_slos([slo])} | changes
    return PlanRequest(**keys)  # type: ignore[arg-type]


def test_interactivity_is_the_inverse_of_the_time_per_output_token() -> None:
    assert parse_slo("interactivity.p90=40") == parse_slo("tpot.p90=25ms")
    assert parse_slo("interactivity.mean=50 tok/s").limit_s == pytest.approx(0.02)
    assert interactivity(np.array([0.01, 0.02, 0.05]), 0.5) == pytest.approx(50)
    assert interactivity(np.array([]), 0.5) is None
    for wrong in ("0", "-3", "30ms", "many", ""):
        with pytest.raises(InputError, match="output tokens per second"):
            tpot_limit_s(wrong)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate few requests in each run."""
    monkeypatch.setattr("planner.agents.serving.FEWEST_REQUESTS", 60)


def test_the_command_names_sessions_tier_hits_and_capacity(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    slo = "interactivity.p90=20,ttft.p95=2s"
    keys = ["--model", "llama3.1-8b", "--hw", "h100", "--workload", SESSIONS, "--slo", slo, "--agents", "3"]
    done = CliRunner().invoke(app, [*keys, "--json", str(out), "--deployment-out", str(tmp_path / "d.yaml")])
    assert done.exit_code == 0, done.output
    for part in ("3 agents", "KV tier", "HBM", "tokens/s", "Capacity", "Cache", "Compared"):
        assert part in done.output
    answer = AgentsAnswer.model_validate(json.loads(out.read_text()))
    assert answer.feasible
    assert answer.capacity_agents >= 3
    best = answer.best
    assert best.hit_rate is not None
    assert best.theoretical_hit_rate is not None
    assert 0.5 < best.hit_rate <= best.theoretical_hit_rate < 1
    assert {other.tier for other in answer.others} | {best.tier} == {"HBM", "HBM + DRAM", "HBM + DRAM + SSD"}
    assert best.tier == "HBM"  # nothing is gained by further tiers: 3 agents fit
    assert len({other.words.rsplit(", ", 1)[-1] for other in answer.others}) > 1  # other token budgets
    assert load_deployment(tmp_path / "d.yaml").model == "llama3.1-8b"


@pytest.mark.parametrize(
    ("changes", "field"), [({"objective": "energy"}, "objective"), ({"search": SearchOptions(trials=3)}, "search")]
)
def test_a_field_that_a_plan_for_agents_does_not_read_is_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=f"does not read `{field}`"):
        plan_agents(request(**changes), 2)


def test_agents_are_refused_for_a_network() -> None:
    done = CliRunner().invoke(app, ["--model", "bert-base", "--hw", "l4", "--slo", "e2e.p99=1s", "--agents", "2"])
    assert isinstance(done.exception, InputError)
    assert "language model" in str(done.exception)


def test_an_objective_that_nothing_meets_has_no_capacity() -> None:
    answer = plan_agents(request("interactivity.p90=5000"), 2)
    assert not answer.feasible
    assert answer.capacity_agents == 0
    assert "not even one agent" in render(answer)


def test_the_share_of_rejected_requests_is_stated_with_the_limit() -> None:
    answer = plan_agents(request("interactivity.p90=20", fixed={"max_model_len": 1500}), 2)
    assert not answer.feasible
    assert 0.1 < answer.best.rejected_share < 1
    assert answer.best.interactivity_p90 is None
    (notice,) = answer.notices
    assert re.search(r"^\d+ % of the requests are rejected: longer than max_model_len, which is 1,500 tokens", notice)
    screen = render(answer, 300)
    assert notice in screen
    assert re.search(r"interactivity.p90 is missed because \d+ % of the requests are rejected", screen)
    assert re.search(r"interactivity.p90 missed \(\d+ % rejected\)", screen)
    assert "requests are rejected however few agents are at work" in screen
    assert "unbounded" not in screen
    assert " 0 tokens/s" not in screen


def test_a_capacity_at_the_end_of_the_search_is_a_lower_bound() -> None:
    answer = plan_agents(request("interactivity.p90=20"), 1)
    assert answer.capacity_is_least
    assert answer.capacity_agents == 8
    screen = render(answer, 300)
    assert "at least 8 agents (the search ends there)" in screen
    best = answer.best.interactivity_p90
    assert best is not None
    assert f"interactivity.p90 = {digits(best)} tokens/s" in screen
    assert f"90 % of the requests reach {digits(best)} tokens/s" in screen
    assert "limit 20 tokens/s: met" in screen
    assert "(within 10 %)" in render(answer.model_copy(update={"capacity_is_least": False}), 300)


@pytest.mark.parametrize(("most", "found"), [(0, 0), (3, 3), (5, 5), (9, 9), (16, 16), (22, 22), (31, 30), (99, 32)])
@pytest.mark.parametrize("quick", [0.3, 1.0, 3.0])
def test_a_capacity_is_judged_as_the_answer_is(
    most: int, found: int, quick: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: dict[int, bool] = {}

    class Runs:
        """Full runs that meet the objectives for at most `most` agents; short runs err by the factor `quick`."""

        def __init__(self, n: int) -> None:
            self.met = judged[n] = n <= most

        @classmethod
        def of(cls, _choice: object, _request: object, n: int) -> Runs:
            return cls(n)

    choice = SimpleNamespace(rate=lambda n, *_: (n / max(most * quick, 0.1), None))
    monkeypatch.setattr("planner.agents.plan.FullRuns", Runs)
    low = _capacity(choice, request(), 4, most >= 4)  # type: ignore[arg-type]
    assert low in (0, 4) or judged[low]
    assert low <= found <= max(low + 1, low * TOLERANCE)
    assert len(judged) <= 10


def test_commands_that_read_answers_refuse_one_for_agents() -> None:
    data = {"schema_version": 1, "request": {}, "agents": 2, "feasible": True, "capacity_agents": 2}
    with pytest.raises(InputError, match="does not take an answer for agents"):
        parse_answer(data, "ag.json")


@pytest.mark.parametrize(
    "workload", ["azure-conv", "{arrivals: {poisson: {}}, input_tokens: 9, output_tokens: 9, turns: 3}"]
)
def test_agents_need_sessions_that_wait(workload: str) -> None:
    with pytest.raises(InputError, match="sessions whose turns wait"):
        plan_agents(request(workload=workload), 2)


def test_only_requests_after_the_first_of_every_agent_are_measured() -> None:

    work = requests_of(load_workload(SESSIONS), 4, 80, 0)
    run = run_rules(rules(max_model_len=100_000, kv_blocks=100_000), Linear(base_s=0.125), work)
    counted = measured(run, 4)
    assert 20 <= counted.sum() < 80
    _, first = np.unique(work.sessions, return_index=True)
    assert not counted[np.sort(first)[:4]].any()
