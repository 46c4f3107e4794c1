"""Plans for agents: small sessions on one GPU, so that a plan takes a second."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from calibration.bundles.bundle import load_bundle
from catalogs.deployments.schema import load_deployment
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.ui.html_page import render as page_text
from catalogs.ui.words import digits
from catalogs.workloads.workload import load_workload
from planner.agents.answer import AgentsAnswer, parse_agents_answer
from planner.agents.capacity import TOLERANCE, capacity
from planner.agents.choices import priced_choices
from planner.agents.load import measured, requests_of
from planner.agents.page import agents_page
from planner.agents.plan import _estimate_notice, plan_agents
from planner.agents.rating import Judge, Runs
from planner.agents.screen import compared_note, render
from planner.cli.main import app
from planner.pipeline import plan as plan_deployment
from planner.problem.candidate import deployment_words
from planner.problem.interactivity import interactivity, tpot_limit_s
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slo, parse_slos
from planner.search.workers import ProcessPool
from planner.sections.full_answer import parse_answer
from simulator.cluster.simulate import run_rules
from tests.planner.agents.small_runs import SESSIONS, short_runs
from tests.simulator.worlds import Linear, rules

__all__ = ["short_runs"]

SCHEMA: Final = Path(__file__).parents[3] / "planner/schemas/agents_answer.schema.json"

KEYS: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100", "workload": SESSIONS, "agents": 2}

ONE: Final = ProcessPool(1)


def request(slo: str = "interactivity.p90=20,ttft.p95=2s", **changes: object) -> PlanRequest:
    """Return a request for small sessions on one GPU."""
    return PlanRequest(**(KEYS | {"slos": parse_slos([slo])} | changes))


def answer_to(slo: str = "interactivity.p90=20,ttft.p95=2s", **changes: object) -> AgentsAnswer:
    """Return the answer to a request for small sessions on one GPU."""
    return plan_agents(request(slo, **changes), workers=ONE)


def test_interactivity_is_the_inverse_of_the_time_per_output_token() -> None:
    assert parse_slo("interactivity.p90=40") == parse_slo("tpot.p90=25ms")
    assert parse_slo("interactivity.mean=50 tok/s").limit_s == pytest.approx(0.02)
    assert interactivity(np.array([0.01, 0.02, 0.05]), 0.5) == pytest.approx(50)
    assert interactivity(np.array([]), 0.5) is None
    for wrong in ("0", "-3", "30ms", "many", ""):
        with pytest.raises(InputError, match="output tokens per second"):
            tpot_limit_s(wrong)


def test_the_command_names_sessions_tier_hits_and_capacity(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    slo = "interactivity.p90=20,ttft.p95=2s"
    scenario = tmp_path / "s.yaml"
    keys = {"model": "llama3.1-8b", "hardware": "h100", "workload": yaml.safe_load(SESSIONS)}
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(keys.pop("workload")))
    scenario.write_text(yaml.safe_dump(keys | {"workload": str(tmp_path / "w.yaml"), "agents": 3, "slo": [slo]}))
    page, file = tmp_path / "p.html", tmp_path / "d.yaml"
    outputs = ["--json", str(out), "--deployment-out", str(file), "--html", str(page)]
    done = CliRunner().invoke(app, [str(scenario), *outputs])
    assert done.exit_code == 0, done.output
    for part in ("3 agents", "KV tier", "HBM", "tokens/s", "Capacity", "Cache", "Per task", "Compared"):
        assert part in done.output
    answer = parse_agents_answer(json.loads(out.read_text()))
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(json.loads(out.read_text()))
    assert answer.command.startswith("plan --model llama3.1-8b")
    assert "--agents 3" in answer.command
    assert answer.best.words in page.read_text()
    assert answer.feasible
    assert answer.capacity_agents >= 3
    best = answer.best
    assert best.hit_rate is not None
    assert best.theoretical_hit_rate is not None
    assert 0.5 < best.hit_rate <= best.theoretical_hit_rate < 1
    assert {other.tier for other in answer.others} | {best.tier} == {"HBM", "HBM + DRAM", "HBM + DRAM + SSD"}
    assert best.session_s.p50 is not None
    assert best.task_s.p50 is not None
    assert best.task_s.p50 < best.session_s.p50
    assert best.usd_per_task == pytest.approx((best.usd_per_hour or 0.0) / best.tasks_per_hour)
    assert best.tier == "HBM"  # nothing is gained by further tiers: 3 agents fit
    assert len({other.words.rsplit(", ", 1)[-1] for other in answer.others}) > 1  # other token budgets
    assert load_deployment(tmp_path / "d.yaml").model == "llama3.1-8b"


@pytest.mark.parametrize(
    ("changes", "field"), [({"objective": "energy"}, "objective"), ({"search": SearchOptions(trials=3)}, "search")]
)
def test_a_field_that_a_plan_for_agents_does_not_read_is_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=f"does not read `{field}`"):
        answer_to(**changes)


def test_agents_are_refused_for_a_network() -> None:
    done = CliRunner().invoke(app, ["--model", "bert-base", "--hw", "l4", "--slo", "e2e.p99=1s", "--agents", "2"])
    assert isinstance(done.exception, InputError)
    assert "language model" in str(done.exception)


def test_an_objective_that_nothing_meets_has_no_capacity() -> None:
    answer = answer_to("interactivity.p90=5000")
    assert not answer.feasible
    assert answer.capacity_agents == 0
    assert "not even one agent" in render(answer)


def test_a_refusal_states_what_binds_and_changes_that_meet_the_request() -> None:
    answer = answer_to("ttft.p95=15ms", agents=3)
    assert not answer.feasible
    refusal = answer.infeasible
    assert refusal is not None
    assert re.match(r"ttft.p95 .* above the limit of 15 ms.* with 3 agents", refusal.binding_constraint)
    assert any("tokens; device memory holds" in why for why in refusal.why)
    assert any("would be in one without limits" in why for why in refusal.why)
    changes = {change.kind: change.value for change in refusal.what_would_meet_it}
    assert "slo" in changes
    screen = render(answer, 300)
    for part in ("NO ", "Closest", "Why", "Would meet", "(checked by simulation)"):
        assert part in screen
    assert agents_page(answer).sections[0].title == "Result"
    met = answer_to(str(changes["slo"]), agents=3)
    assert met.feasible


def test_objectives_on_sessions_and_tasks_need_agents_and_are_judged() -> None:
    with pytest.raises(InputError, match="needs agents"):
        request("session.p90=20min", agents=None)
    met, missed = answer_to("session.p90=20min,task.mean=10min"), answer_to("task.p90=1s")
    assert met.feasible
    assert {row.name for row in met.best.objectives} == {"session.p90", "task.mean"}
    assert met.best.objectives[0].value_s == pytest.approx(met.best.session_s.p90)
    assert not missed.feasible
    assert missed.infeasible is not None
    assert missed.infeasible.binding_constraint.startswith("task.p90 is")


def test_placements_without_a_known_price_come_last() -> None:
    question = request(hardware="l20,h100")
    words = [group.price for group in priced_choices(question, question.read_workload(), 2)]
    assert words[0].startswith("$")
    assert words[-1] == "an unknown price, on 1 accelerator"


def test_several_replicas_have_private_and_shared_tiers_and_separate_ones_find_outputs_in_shared_ones() -> None:
    question = request(hardware="h100x2", precisions=("native",), fixed={"kv_dtype": "bf16"})
    (group,) = [g for g in priced_choices(question, question.read_workload(), 4) if len(g.choices) > 1][-1:]
    together = next(choice for choice in group.choices if choice.candidate.replicas == 2)
    separate = next(choice for choice in group.choices if choice.candidate.split)
    names = ["HBM", "HBM + DRAM", "HBM + shared DRAM", "HBM + DRAM + SSD", "HBM + shared DRAM + SSD"]
    assert [choice.tier.name for choice in together.tiers()] == names
    assert [choice.router for choice in together.routers()] == ["session_affinity", "round_robin"]
    assert [choice.tier.name for choice in separate.tiers()] == names
    seen = Judge(question, Runs(ONE)).rate([(choice, 0) for choice in separate.tiers()[1:3]], 4, 10)
    private, shared = (rated.seen.hits for rated in seen)
    assert private.rate < shared.rate <= shared.theoretical_rate
    assert "prefill" in deployment_words(separate.deployment)


@pytest.mark.parametrize("changes", [{"agents": 0}, {"requests_per_s": 1.0}, {"users": 4}])
def test_agents_are_a_load_of_their_own(changes: dict[str, object]) -> None:
    with pytest.raises(InputError, match="agents"):
        request(**changes)


def test_a_plan_of_another_kind_refuses_agents() -> None:
    with pytest.raises(InputError, match="a request for agents has an answer of its own"):
        plan_deployment(request())


def test_the_share_of_rejected_requests_is_stated_with_the_limit() -> None:
    answer = answer_to("interactivity.p90=20", fixed={"max_model_len": 1500})
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


def test_another_share_of_rejected_requests_in_the_compared_run_is_explained() -> None:
    answer = answer_to()
    best, compared = (plan.model_copy(update={"rejected_share": 0.32}) for plan in (answer.best, answer.compared))
    same = answer.model_copy(update={"best": best, "compared": compared})
    assert compared_note(same).startswith("values from one run each, with steps as slow as 90 % confidence requires")
    assert compared_note(same).endswith(
        "they leave out how much runs differ, which the 3 runs that judge the first include"
    )
    other = same.model_copy(update={"compared": compared.model_copy(update={"rejected_share": 0.42})})
    words = "in its one run 42 % of the requests of the deployment above are rejected, in the 3 runs that"
    assert f"{words} judge it 32 %" in render(other, 400)
    assert f"{words} judge it 32 %" in page_text(agents_page(other))


def test_a_capacity_at_the_end_of_the_search_is_a_lower_bound() -> None:
    answer = answer_to("interactivity.p90=20", agents=1)
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
def test_a_capacity_is_judged_as_the_answer_is(most: int, found: int, quick: float) -> None:
    judged: dict[int, bool] = {}

    class Judging:
        """Full runs that meet the objectives for at most `most` agents; short runs err by the factor `quick`."""

        def full(self, _choice: object, n: int) -> SimpleNamespace:
            judged[n] = n <= most
            return SimpleNamespace(met=judged[n])

        def rate(self, _choices: object, n: int, _turns: int) -> list[SimpleNamespace]:
            return [SimpleNamespace(meets=n <= max(most * quick, 0.1))]

    low = capacity(Judging(), None, 4, most >= 4)  # type: ignore[arg-type]
    assert low in (0, 4) or judged[low]
    assert low <= found <= max(low + 1, low * TOLERANCE)
    assert len(judged) <= 10


def test_commands_that_read_answers_refuse_one_for_agents() -> None:
    data = {"kind": "agents", "schema_version": 2, "request": {}, "feasible": True}
    with pytest.raises(InputError, match="does not take an answer for agents"):
        parse_answer(data, "ag.json")


@pytest.mark.parametrize(
    "workload", ["azure-conv", "{arrivals: {poisson: {}}, input_tokens: 9, output_tokens: 9, turns: 3}"]
)
def test_agents_need_sessions_that_wait(workload: str) -> None:
    with pytest.raises(InputError, match="sessions whose turns wait"):
        answer_to(workload=workload)


def test_only_requests_after_the_first_of_every_agent_are_measured() -> None:

    work = requests_of(load_workload(SESSIONS), 4, 80, 0)
    run = run_rules(rules(max_model_len=100_000, kv_blocks=100_000), Linear(base_s=0.125), work)
    counted = measured(run, 4)
    assert 20 <= counted.sum() < 80
    _, first = np.unique(work.sessions, return_index=True)
    assert not counted[np.sort(first)[:4]].any()


def test_a_plan_compares_what_the_engine_keeps_where_contexts_do_not_fit() -> None:
    """A hundredth of the free memory holds about three of the contexts of six agents."""
    few = {"gpu_memory_utilization": 0.01, "kv_dtype": "bf16", "max_model_len": 4000}
    answer = answer_to("ttft.p50=2s", engine="trtllm-max-utilization", agents=6, fixed=few, precisions=("native",))
    kept = [plan for plan in (answer.compared, *answer.others) if "of prompts kept" in plan.tier]
    assert kept
    assert all(plan.hit_rate is not None and plan.hit_rate > 0 for plan in kept)
    (group,) = priced_choices(request(), load_workload(SESSIONS), 2)
    assert group.choices[0].retentions(2) == []  # vLLM evicts what was used first


@pytest.mark.parametrize(("name", "said"), [("h100", ""), ("h100-nvl", "borrowed from h100"), ("l4", "is a roofline")])
def test_a_plan_on_hardware_that_was_not_measured_says_so(name: str, said: str) -> None:
    found = _estimate_notice(load_bundle(parse_hardware(name).accelerator))
    assert bool(found) == bool(said)
    assert said in " ".join(found)
