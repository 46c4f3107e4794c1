"""Whole answers: the contract's shape, figures that hold when simulated anew, useful refusals, equal bytes."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from catalogs.deployments.schema import Deployment
from catalogs.workloads.workload import load_workload
from planner.cli.screens.plan import render
from planner.evaluation.multi_hardware import open_evaluator
from planner.pipeline import make_plan
from planner.problem.demand import FailureTolerance
from planner.problem.overrides import Overrides
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import Slo, parse_slos
from planner.problem.tariff import Tariff
from planner.sections.full_answer import parse_answer
from planner.space.candidates import candidates
from simulator.analysis.metrics import summarise
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.simulate import simulate
from tests.planner.short_runs import shortened

TIGHT = "ttft.p90=50ms"
#: One candidate for each layout and precision of the weights.
LIMITS = Overrides.of({"kv_dtype": "bf16", "max_num_seqs": 256, "max_num_batched_tokens": 2048})


def answer_to(model: str, hardware: str, slo: str, **asked: Any) -> dict[str, Any]:
    search = SearchOptions(trials=asked.pop("trials", 6))
    asked = {"workload": "lmsys-turns"} | asked
    request = PlanRequest(model=model, hardware=hardware, slos=parse_slos([slo]), search=search, **asked)
    world = open_evaluator(request)
    return make_plan(request, world, world.elsewhere).document()


@cache
def small_plan() -> dict[str, Any]:
    return answer_to("llama3.1-8b", "rtx4090x2", TIGHT)


@cache
def no_plan() -> dict[str, Any]:
    return answer_to("llama3.1-405b", "h100x4", "p99=2s")


@cache
def overloaded_plan() -> dict[str, Any]:
    return answer_to("llama3.1-8b", "rtx4090", "p90=2s", requests_per_s=45.0, trials=1, fixed=LIMITS)


def test_the_answer_has_the_contracts_shape() -> None:
    answer = small_plan()
    assert {"schema_version", "request", "feasible", "best", "alternatives", "pareto", "infeasible", "search"} <= set(
        answer
    )
    assert (answer["feasible"], answer["infeasible"]) == (True, None)
    for plan in (answer["best"], *answer["alternatives"], *answer["pareto"]):
        assert {"deployment", "metrics", "slo", "capacity_requests_per_s", "cost", "energy"} <= set(plan)
        assert {"usd_per_hour", "usd_per_million_output_tokens", "usd_per_million_total_tokens"} <= set(plan["cost"])
        assert {"price_as_of", "price_source"} <= set(plan["cost"])
        assert {"w_mean", "kwh_per_million_output_tokens", "gco2e_per_million_output_tokens"} <= set(plan["energy"])
    search = answer["search"]
    assert {"n_space", "n_bounded_out", "n_simulated", "n_pruned", "seconds", "seed"} <= set(search)
    assert search["n_pruned"] <= search["n_simulated"] <= search["n_space"] - search["n_bounded_out"]
    assert answer["request"]["slo"] == [TIGHT]


def test_a_checkpoint_of_a_sibling_is_named_above_the_start_command() -> None:
    """fp8 weights of the base model come from a published checkpoint of the instruction-tuned model."""
    kwargs: dict[str, Any] = {"precisions": ("fp8",), "trials": 1, "fixed": LIMITS}
    repository = "nvidia/Llama-3.1-8B-Instruct-FP8"
    base = answer_to("meta-llama/Llama-3.1-8B", "l40s", "p99=2s", **kwargs)
    served = base["best"]["checkpoint"]
    assert served["requested"] == "meta-llama/Llama-3.1-8B"
    assert (served["repository"], served["kind"]) == (repository, "the instruction-tuned sibling")
    shown = render(parse_answer(base)).replace("\n            ", " ")
    assert f"Serves      {repository}, which is the instruction-tuned sibling" in shown
    assert "not the requested meta-llama/Llama-3.1-8B" in shown
    prefill = f"vllm serve {repository} --max-num-seqs 8"  # names the checkpoint, as the notes on it do
    base["best"]["command_notes"].append(f"prefill: {prefill}")
    rows = render(parse_answer(base)).split("\n")
    assert [row for row in rows if row.startswith(("Start", "Prefill"))] == [f"Prefill     {prefill}"]
    assert rows[rows.index(f"Prefill     {prefill}") + 1].startswith(f"Decode      vllm serve {repository} ")
    own = answer_to("meta-llama/Llama-3.1-8B-Instruct", "l40s", "p99=2s", **kwargs)
    assert own["best"]["checkpoint"]["kind"] == "the requested model"
    assert "Serves  " not in render(parse_answer(own))


def test_every_figure_has_an_error_bar() -> None:
    (row,) = small_plan()["best"]["slo"]
    assert row["met"]
    assert row["ci_low_s"] < row["value_s"]
    assert row["ci_high_s"] is None or row["value_s"] < row["ci_high_s"]
    assert row["value_s"] <= row["limit_s"]
    assert 0.9 <= row["probability_met"] < 1
    assert row["value_s"] < row["value_at_confidence_s"] <= row["limit_s"]


def test_without_a_load_the_figures_are_at_the_capacity() -> None:
    best = answer_to("llama3.1-8b", "rtx4090", "tpot.p95=60ms", trials=2)["best"]
    assert all(row["probability_met"] >= 0.9 for row in best["slo"])
    assert best["capacity_requests_per_s"] == best["requests_per_s"]


@pytest.mark.parametrize(
    ("rate", "confidence"),
    [
        (4.0, 0.5),  # met
        (4.0, 0.9),  # missed by a little, for the confidence
        (10.0, 0.9),  # far too much
        # the same law at further loads
        pytest.param(3.5, 0.9, marks=pytest.mark.slow),
        pytest.param(5.0, 0.9, marks=pytest.mark.slow),
        pytest.param(10.0, 0.5, marks=pytest.mark.slow),
    ],
)
def test_met_capacity_interval_and_probability_agree_at_every_confidence(rate: float, confidence: float) -> None:
    load: dict[str, Any] = {"workload": "azure-conv", "requests_per_s": rate, "confidence": confidence}
    answer = answer_to("llama3.1-8b", "l40s", "ttft.p99=2s", **load, precisions=("fp8",), trials=1, fixed=LIMITS)
    plan = answer["best"] if answer["feasible"] else answer["infeasible"]["closest"]
    (row,), capacity = plan["slo"], plan["capacity_requests_per_s"]
    assert answer["request"]["confidence"] == confidence
    assert row["met"] == answer["feasible"] == (row["probability_met"] >= confidence)
    assert row["met"] == (row["value_at_confidence_s"] is not None and row["value_at_confidence_s"] <= row["limit_s"])
    assert answer["feasible"] == (capacity is not None and capacity >= rate)
    assert all(
        point["met"] == (capacity is not None and point["requests_per_s"] <= capacity) for point in plan["curve"]
    )


@pytest.mark.runs_of(500)
def test_more_confidence_never_means_more_capacity() -> None:
    capacities = [
        answer_to("llama3.1-8b", "rtx4090", "tpot.p95=40ms", trials=2, confidence=sure, fixed=LIMITS)["best"][
            "capacity_requests_per_s"
        ]
        for sure in (0.5, 0.9)
    ]
    assert capacities == sorted(capacities, reverse=True)
    assert capacities[0] > 1.2 * capacities[-1]


def test_the_reasons_of_a_refusal_add_up_to_all_candidates() -> None:
    for answer in (no_plan(), overloaded_plan()):
        assert sum(answer["infeasible"]["reasons"].values()) == answer["search"]["n_space"]


def simulated_p90_s(plan: dict[str, Any]) -> float:
    """The plan's deployment at its capacity, by the simulator's own door, other requests."""
    deployment = Deployment(**{k: v for k, v in plan["deployment"].items() if k in Deployment.model_fields})
    requests = load_workload("lmsys-turns").materialise(
        seed=99, n_requests=4000, requests_per_s=plan["capacity_requests_per_s"]
    )
    return float(summarise(simulate(compile_deployment(deployment), requests))["metrics"]["ttft_s"]["p90"])


def test_the_plan_holds_its_objective_when_simulated_anew() -> None:
    row = small_plan()["best"]["slo"][0]
    assert simulated_p90_s(small_plan()["best"]) == pytest.approx(row["value_s"], rel=0.25)
    assert simulated_p90_s(small_plan()["best"]) < 0.05


def test_a_planner_that_ignores_the_objective_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    tighter = "ttft.p90=45ms"
    assert simulated_p90_s(answer_to("llama3.1-8b", "rtx4090x2", tighter, trials=2, fixed=LIMITS)["best"]) < 0.045
    monkeypatch.setattr(Slo, "value_s", lambda self, samples_s: 1e-6)  # noqa: ARG005
    careless = answer_to("llama3.1-8b", "rtx4090x2", tighter, trials=2, fixed=LIMITS)
    monkeypatch.undo()
    assert simulated_p90_s(careless["best"]) > 0.045


def test_equal_requests_give_equal_bytes() -> None:
    def without_time(answer: dict[str, Any]) -> str:
        return json.dumps({**answer, "search": {**answer["search"], "seconds": 0}})

    assert without_time(small_plan()) == without_time(answer_to("llama3.1-8b", "rtx4090x2", TIGHT))


def test_a_rate_is_carried_by_the_smallest_part_that_holds_it_at_its_part_of_the_price() -> None:
    tariff = Tariff(usd_per_hour=8.0)
    answer = answer_to("llama3.1-8b", "h100x4", "p99=2s", requests_per_s=5.0, trials=2, tariff=tariff)
    assert answer["best"]["cost"]["usd_per_hour"] == pytest.approx(2.0)
    deployment = answer["best"]["deployment"]
    assert deployment["hardware"] == "h100x1"
    assert (deployment["weight_dtype"], deployment["kv_dtype"]) == ("bf16", "bf16")
    assert answer["best"]["requests_per_s"] == 5.0
    assert answer["best"]["slo"][0]["probability_met"] > 0.9


@cache
def priced_plan() -> dict[str, Any]:
    """Two replicas carry the load; two GPUs of one replica would need an instance of four.

    Runs of 200 requests are too short to show that two replicas keep up with the rate.
    """
    given = {"requests_per_s": 45.0, "precisions": ("bf16",), "fixed": LIMITS}
    return answer_to("llama3.1-8b", "l40sx4", "ttft.p99=2s", trials=20, **given)


@pytest.mark.usual_runs
def test_the_lowest_cost_is_that_of_the_whole_instances_and_names_them() -> None:
    plan = priced_plan()["best"]
    cost, used = plan["cost"], plan["deployment"]["replicas"] * plan["deployment"]["tensor_parallel"]
    assert plan["deployment"]["tensor_parallel"] == 1
    assert cost["usd_per_hour"] == pytest.approx(used * 1.5484)
    assert [(i["count"], i["accelerators"]) for i in cost["instances"]] == [(used, 1)]
    assert (cost["commitment"], cost["cloud"], cost["region"]) == ("on-demand", "nebius", "eu-north1")
    assert (plan["energy"]["grid_region"], plan["energy"]["grid_assumed"]) == ("fi", False)
    rows = priced_plan()["prices"]
    assert min(r["usd_per_hour"] for r in rows if r["contract"] == "on demand") == cost["usd_per_hour"]
    assert all(r["as_of"] and r["contract"] for r in rows)


@pytest.mark.usual_runs
@pytest.mark.parametrize("width", [80, 100])
def test_the_screen_names_instances_commitment_place_and_date_and_lists_regions(width: int) -> None:
    text = render(parse_answer(priced_plan()), width)
    assert max(map(len, text.split("\n"))) <= width + 1
    words = " ".join(text.split())
    for part in ("gpu-l40s-a_1gpu-8vcpu-32gb", "on demand, nebius eu-north1", "2025-09 or later", "a month", "a year"):
        assert part in words
    assert "grid fi (nebius eu-north1 is in Finland)" in words
    assert "aws us-east-1" in words
    assert "the whole bill is" in words


def test_what_does_not_fit_is_refused_with_numbers_and_a_way_out() -> None:
    answer = no_plan()
    assert (answer["feasible"], answer["best"], answer["alternatives"]) == (False, None, [])
    refusal = answer["infeasible"]
    assert "weights" in refusal["binding_constraint"]
    assert "GB" in refusal["binding_constraint"]
    assert refusal["closest"]["deployment"]["weight_dtype"] == "fp8"
    ways = {way["kind"]: way["value"] for way in refusal["what_would_meet_it"]}
    assert ways["hardware"] is not None
    assert "h100x8" in {way["value"] for way in refusal["what_would_meet_it"]}
    assert answer["search"]["n_simulated"] == 0


def test_a_step_slower_than_the_limit_is_refused_with_the_step() -> None:
    answer = answer_to("llama3.1-8b", "rtx4090", "tpot.p99=5ms", fixed=LIMITS)
    refusal = answer["infeasible"]
    assert "one decode step alone is" in refusal["binding_constraint"]
    relaxed = next(w["value"] for w in refusal["what_would_meet_it"] if w["kind"] == "slo")
    assert answer_to("llama3.1-8b", "rtx4090", relaxed, trials=1, fixed=LIMITS)["feasible"]


def test_too_high_a_rate_is_refused_with_a_rate_that_holds() -> None:
    """In the shortest runs, a rate that one number of requests meets may be missed with another."""
    with shortened(250):
        refusal = overloaded_plan.__wrapped__()["infeasible"]
        assert "45 requests/s" in refusal["binding_constraint"]
        assert refusal["closest"]["capacity_requests_per_s"] < 45
        rate = next(w["value"] for w in refusal["what_would_meet_it"] if w["kind"] == "rate")
        assert answer_to("llama3.1-8b", "rtx4090", "p90=2s", requests_per_s=0.95 * rate, fixed=LIMITS)["feasible"]


def test_nothing_survives_the_loss_of_the_only_replica_and_two_are_named() -> None:
    """Neither a lower rate nor a looser objective would help, and none is named."""
    asked: dict[str, Any] = {"requests_per_s": 1.0, "spare": FailureTolerance(1), "fixed": LIMITS}
    answer = answer_to("llama3.1-8b", "rtx4090", "p99=2s", **asked, trials=1)
    refusal = answer["infeasible"]
    assert refusal["binding_constraint"] == "1 replica lost of 1 leaves no replica"
    assert refusal["closest"]["survival"]["met"] is False
    ways = refusal["what_would_meet_it"]
    assert "rtx4090x2" in {way["value"] for way in ways}
    assert {way["kind"] for way in ways} <= {"hardware", "precision"}


@pytest.mark.slow
def test_a_refusal_may_be_closest_to_a_candidate_that_does_not_fit() -> None:
    """No replica survives the loss of the only node, and the candidate closest to that does not fit either."""
    spare = FailureTolerance(nodes=1)
    answer = answer_to("mixtral-8x7b", "h100x2", "p99=20s", requests_per_s=1.0, spare=spare, trials=1)
    assert answer["infeasible"]["binding_constraint"] == "1 node lost of 1 leaves no replica"
    assert answer["infeasible"]["closest"]["memory"]["fits"] is False


def test_an_unknown_price_is_null_and_said() -> None:
    answer = answer_to("llama3.1-8b", "xeon-8480", "p99=60s", trials=1, fixed=LIMITS)
    plan = answer["best"] if answer["feasible"] else answer["infeasible"]["closest"]
    assert plan["cost"]["usd_per_hour"] is None
    assert plan["cost"]["usd_per_million_output_tokens"] is None
    if answer["feasible"]:
        assert "unknown: no price" in render(parse_answer(answer))


@pytest.mark.parametrize("answer", [small_plan, no_plan])
def test_the_screen_is_one_screen(answer: Any) -> None:
    narrow = render(parse_answer(answer()), 80).split("\n")
    assert max(map(len, narrow)) <= 81
    lines = render(parse_answer(answer())).split("\n")
    assert len(lines) <= 43  # of an answer with four notes
    assert max(map(len, lines)) <= 101
    first = lines[lines.index("") + 1]  # after the request
    if answer()["feasible"]:
        assert first.startswith("Recommended")
        program, verb, checkpoint, *_ = answer()["best"]["command"].split()
        assert (program, verb) == ("vllm", "serve")
        assert f"vllm serve {checkpoint}" in "\n".join(lines)
    else:
        assert first.startswith("NO")


def test_a_precision_taken_because_the_native_one_does_not_fit_says_so() -> None:
    request = PlanRequest(model="llama3.1-405b", hardware="h100x8", slos=parse_slos(["p99=2s"]))
    world = open_evaluator(request)
    fits = [c for c in candidates(request, world.names) if world.discard(c) is None]
    assert {c.weight_dtype for c in fits} == {"fp8"}
    (notice,) = (n for n in world.facts(fits[0]).notices if "because the model does not fit" in n)
    assert "GB >" in notice
