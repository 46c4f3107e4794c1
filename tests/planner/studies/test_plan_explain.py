"""Why this plan: the binding resource follows the plan, and the change that buys more capacity is simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from catalogs.ui.entry_point import run_command
from catalogs.ui.terminal import PIPED
from catalogs.ui.words import rate
from planner.answer.answer_schema import main_reasons, reason_sentence, refused_sentence
from planner.cli.main import app
from planner.evaluation.deployments import slower_host
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.varied_workload import VariedWorkload
from planner.pipeline import make_plan
from planner.problem.request import OBJECTIVES
from planner.sections.full_answer import parse_answer
from planner.studies.bottleneck import resource_uses
from planner.studies.capacity_growth import CAPACITY_GOAL, Growth, GrowthStep, growth
from planner.studies.capacity_inputs import KV_CACHE
from planner.studies.explain import _why, binding_words, explain, why_not
from planner.studies.rerun import Rerun
from tests.planner.report.test_plan_report import REQUEST, answer, data, material, told


def test_the_utilisation_of_a_run_does_not_show_what_binds() -> None:
    """Without counterfactuals no resource binds, however full it is; preemptions are named with the cache."""
    s, plan = material().simulated, answer().plans[0]
    assert s is not None
    assert not any(use.binds for use in resource_uses(plan, s.parts))
    peaked = plan.model_copy(update={"metrics": (plan.metrics or {}) | {"kv_peak_fraction": 1.0, "n_preemptions": 40}})
    cache = next(use for use in resource_uses(peaked, s.parts) if use.resource == KV_CACHE)
    assert (cache.share, cache.words) == (1.0, "40 preemptions")
    assert "not known" in binding_words(plan, None)


def test_why_not_speaks_in_the_answers_numbers() -> None:
    best = answer().plans[0]
    worse = best.model_copy(update={"capacity_requests_per_s": 0.5 * (best.capacity_requests_per_s or 0.0)})
    assert "−50 %" in why_not(best, worse)
    assert "tie" not in why_not(best, best)  # the answer marks what ties by its objective
    assert "a tie: the simpler deployment" in why_not(best, best.model_copy(update={"ties": True}))


def test_the_cheapest_change_holds_and_keeps_the_objectives() -> None:
    changes = [
        GrowthStep("objective", "accept more", 3.0, 0.0, True),
        GrowthStep("hardware", "two", 6.0, 3.0, True),
        GrowthStep("hardware", "three", 9.0, 6.0, True),
        GrowthStep("hardware", "cheap", 1.0, -2.0, False),
        GrowthStep("hardware", "unpriced", None, None, True),
    ]
    cheapest = Growth(1.0, changes).cheapest
    assert cheapest is not None
    assert cheapest.words == "two"
    only = Growth(1.0, changes[:1]).cheapest
    assert only is not None
    assert only.kind == "objective"
    assert Growth(1.0, []).cheapest is None


def test_more_capacity_is_simulated_at_the_goal() -> None:
    s = material().simulated
    assert s is not None
    assert s.growth is not None
    capacity = data()["best"]["capacity_requests_per_s"]
    assert s.growth.goal_per_s == pytest.approx(CAPACITY_GOAL * capacity)
    cheapest = s.growth.cheapest
    assert cheapest is not None
    tried = [
        c.extra_usd_per_hour for c in s.growth.changes if c.kind == "hardware" and c.extra_usd_per_hour is not None
    ]
    assert tried == sorted(tried)
    more = [c for c in s.growth.changes if c.kind == "hardware" and c.holds]
    assert more


@pytest.mark.runs_of(600)
def test_a_plan_for_a_load_may_be_extended_on_its_own_hardware() -> None:
    """The cheapest plan for a small load has the model's own precision; fp8 carries more at the same cost."""
    request = REQUEST.replace(requests_per_s=2.0)
    world = open_evaluator(request)
    found = parse_answer(make_plan(request, world, world.elsewhere).document())
    plan = found.plans[0]
    assert plan.usd_per_hour is not None
    assert plan.deployment["weight_dtype"] == "bf16"
    changes = growth(Rerun.of(found), plan).changes
    free = [change for change in changes if change.kind == "deployment" and change.holds]
    assert [change.extra_usd_per_hour for change in free] == [0.0]
    assert free[0].words.startswith(f"another plan on {plan.hardware}: ")
    assert all(c.usd_per_hour is None or c.usd_per_hour < plan.usd_per_hour for c in changes if c.kind == "hardware")


def test_the_command_explains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "answer.json", tmp_path / "why.json"
    path.write_text(told())
    assert run_command("plan", app, ["explain", str(path), "--json", str(out)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= PIPED
    found = json.loads(out.read_text())
    assert len(found["why_not"]) == len(answer().alternatives)
    bound = [u["resource"] for u in found["uses"] if u["binds"]]
    assert all(name in found["binds"] for name in bound)
    assert len(found["advice"]) == len(bound)
    assert found["more_capacity"]["goal_requests_per_s"] == pytest.approx(
        CAPACITY_GOAL * data()["best"]["capacity_requests_per_s"]
    )


def test_the_goal_of_the_search_is_that_of_the_request() -> None:
    """A plan with the lowest carbon was said to have the highest, and one for users to be the cheapest per token."""
    best = answer().plans[0]

    def why(**changes: object) -> str:
        request = answer().request.replace(**changes)
        return next(_why(answer().model_copy(update={"request": request}), best))

    for objective in OBJECTIVES:
        found = why(objective=objective)
        assert ("lowest" in found) is (objective in ("cost", "energy", "carbon", "latency"))
        assert ("highest" in found) is (objective in ("throughput", "goodput"))
    assert why(requests_per_s=2.0).endswith(f"this one is the cheapest that serves {rate(best.requests_per_s)}.")
    assert why(users=30).endswith("this one is the cheapest that serves 30 users.")
    assert why().endswith("this one has the lowest cost per token.")


def test_a_no_explains_itself() -> None:
    no = answer().model_copy(update={"best": None, "alternatives": []})
    assert explain(no).growth is None


def test_varied_workloads_change_what_they_say_and_nothing_else() -> None:
    plain = Rerun.of(answer()).workload
    base = plain.materialise(0, 200, 2.0)
    longer = VariedWorkload.of(plain, output_factor=2.0).materialise(0, 200, 2.0)
    assert (longer.output_tokens == 2 * base.output_tokens).all()
    assert (longer.input_tokens == base.input_tokens).all()
    assert (longer.arrival_s == base.arrival_s).all()
    smooth = VariedWorkload.of(plain, burstiness=0.9).materialise(0, 200, 2.0)
    assert (smooth.output_tokens == base.output_tokens).all()
    assert smooth.arrival_s[[0, -1]] == pytest.approx(base.arrival_s[[0, -1]])
    assert np.diff(smooth.arrival_s).std() < 0.97 * np.diff(base.arrival_s).std()
    assert np.diff(smooth.arrival_s).min() >= 0.0
    shared = VariedWorkload.of(plain, shared=0.5).materialise(0, 200, 2.0)
    assert shared.block_hashes is not None
    first, n = shared.block_hashes[0], int(shared.input_tokens[0])
    assert first == tuple(range(int(n * 0.5) // 16))


def test_slower_steps_stretch_time_exactly() -> None:
    again = Rerun.of(answer())
    tester, candidate = again.tester, again.candidates[0]
    plain = tester.probe(candidate, 4.0, 300).observations[0].samples_s["ttft"]
    slower = again.evaluator.with_(step_factor=2.0)

    stretched = replace(tester, evaluator=slower).probe(candidate, 2.0, 300).observations[0].samples_s["ttft"]
    assert stretched == pytest.approx(2 * plain)


def test_a_slower_host_keeps_what_is_not_its_own() -> None:
    again = Rerun.of(answer())
    evaluator, candidate = again.evaluator_of(0), again.candidates[0]
    host = evaluator.deployments.compiled(candidate).resolved.engine.host
    twice = slower_host(host, 2.0)
    slower = evaluator.with_(host_factor=2.0).deployments
    assert slower.compiled(candidate).resolved.engine.host == twice
    assert slower.resolved(candidate) is evaluator.deployments.resolved(candidate)  # only what changes is made again
    assert twice.step_s == 2 * host.step_s
    assert twice.collective_skew_s == host.collective_skew_s


def test_reasons_are_sentences() -> None:
    assert refused_sentence(1) == "The only candidate does not meet the request."
    assert refused_sentence(1200) == "None of 1,200 candidates meets the request."
    assert reason_sentence(1, "simulated: ttft.p99 is missed") == "1 was simulated: ttft.p99 is missed."
    assert reason_sentence(2, "not simulated: overloaded") == "2 were not simulated: overloaded."
    others = next(reversed(main_reasons({f"ruled out: {i}": 5 - i for i in range(5)}, "key", 3)))
    assert reason_sentence(6, others) == "6 more: one of 3 other reasons applies (key in JSON has all)."
