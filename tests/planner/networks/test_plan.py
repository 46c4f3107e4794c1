"""Whole answers for networks: their figures follow from each other, and the deployment they recommend simulates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalogs.deployments.network_deployment import load_any_deployment
from catalogs.hardware.catalog import parse_hardware
from catalogs.ui.entry_point import run_command
from catalogs.workloads.jobs import JobWorkload
from planner.cli.main import app
from planner.economics.rack_power import idle_w
from planner.networks.job_service import error_factor
from planner.networks.plan import NetworkPlanner, plan_network
from planner.networks.report.page import write_page
from planner.networks.report.tables import plans
from planner.networks.request import network_request
from planner.networks.schema import NetworkAnswer
from planner.networks.screen import difference_words, error_words, render
from planner.networks.studies.explain import why_not
from simulator.jobs.simulate import simulate_jobs
from simulator.networks.factors import interval_factor
from tests.planner.networks.known_jobs import one as known
from tests.planner.networks.known_jobs import world

#: Keys that leave few candidates.
SMALL = {"modes": "compiled", "precisions": "bf16", "max_batch": 1, "search.trials": 3}

FEASIBLE = ["--model", "bert-base", "--hw", "h100x2", "--slo", "e2e.p90=20ms", "--rate", "1500", "--price", "4"]


def run(tmp: Path, given: list[str], status: int = 0) -> dict[str, Any]:
    file, page, deployment = tmp / "answer.json", tmp / "answer.html", tmp / "deployment.yaml"
    command = [*given, "--json", str(file), "--html", str(page), "--deployment-out", str(deployment)]
    assert run_command("plan", app, command) == status
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("network")


@pytest.fixture(scope="module")
def answer(folder: Path) -> dict[str, Any]:
    return run(folder, FEASIBLE)


def test_the_figures_of_a_plan_follow_from_each_other(answer: dict[str, Any]) -> None:
    best, job = answer["best"], answer["job"]
    rate, per_hour = best["requests_per_s"], best["units_per_hour"]
    assert rate == 1500
    assert per_hour == pytest.approx(rate * 3600 * job["units_per_job"])
    assert best["usd_per_unit"] == pytest.approx(best["cost"]["usd_per_hour"] / per_hour)
    assert best["cost"]["usd_per_hour"] == pytest.approx(4 * best["deployment"]["replicas"] / 2)
    energy = best["energy"]
    assert energy["j_per_unit"] == pytest.approx(energy["w_mean"] * 3600 / per_hour)
    assert energy["wh_per_unit"] == pytest.approx(energy["j_per_unit"] / 3600 * energy["pue"])
    assert energy["gco2e_per_unit"] == pytest.approx(energy["wh_per_unit"] / 1e3 * energy["grid_gco2e_per_kwh"])
    assert best["metrics"]["service_s"] == pytest.approx(sum(stage["total_s"] for stage in best["stages"]))
    error = best["error"]
    assert 1.0 < error["slowdown"] < error["interval_factor"]
    assert best["memory"]["peak_bytes"] < best["memory"]["device_bytes"]


def test_hardware_without_measurements_has_a_wider_interval_and_says_so() -> None:
    keys = {"model": "resnet50", "slo": "e2e.p90=100ms", "rate": 100, "modes": "eager", "precisions": "bf16"}
    keys |= {"max_batch": 1, "max_instances": 1, "tariff.usd_per_hour": 1.0, "search.trials": 1}
    known, unknown = (plan_network(network_request(keys | {"hardware": name})).best for name in ("l40sx1", "tpu-v5ex1"))
    assert known is not None
    assert unknown is not None
    assert (known.error.hardware_measured, unknown.error.hardware_measured) == (True, False)
    assert unknown.error.interval_factor > known.error.interval_factor
    assert unknown.error.slowdown > known.error.slowdown
    assert "was not measured" in error_words(unknown.error)
    assert error_factor("eager", 0.5, measured=False) == 1.0  # wider, but not biased
    assert error_factor("eager", 0.95) == pytest.approx(interval_factor("eager"))


def test_accelerators_that_are_rented_and_idle_are_in_power_energy_and_carbon(tmp_path: Path) -> None:
    """Lambda rents eight H100 at once, verda one; the user's own price is of no instance."""
    keys = {"model": "bge-large", "hardware": "h100x1", "slo": "e2e.p95=100ms", "rate": 400, **SMALL}
    keys |= {"max_batch": 4}
    billed = ({"tariff.cloud": "verda"}, {"tariff.cloud": "lambda"}, {"tariff.usd_per_hour": 1.0})
    one, eight, own = (plan_network(network_request(keys | each)) for each in billed)
    assert one.best is not None
    assert eight.best is not None
    assert own.best is not None
    assert one.best.energy.unused_w == own.best.energy.unused_w == 0.0
    assert one.best.energy.w_mean == own.best.energy.w_mean
    assert one.best.unused_words == ""
    found = eight.best.energy
    assert found.unused_w == pytest.approx(7 * idle_w(parse_hardware("h100x1")))
    assert found.w_mean == pytest.approx(one.best.energy.w_mean + found.unused_w)
    assert found.j_per_unit == pytest.approx(found.w_mean / 400)
    assert found.grid_gco2e_per_kwh is not None
    assert found.gco2e_per_unit == pytest.approx(found.wh_per_unit / 1e3 * found.grid_gco2e_per_kwh)
    for light, whole in zip(one.best.curve, eight.best.curve, strict=True):
        more_j = found.unused_w / whole.requests_per_s
        assert whole.wh_per_unit == pytest.approx(light.wh_per_unit + more_j / 3600 * found.pue)
    words = "drawn by the 7 rented accelerators that are not used"
    assert words in " ".join(render(eight).split())
    assert words not in " ".join(render(one).split())
    write_page(eight, tmp_path / "page.html")
    assert words in (tmp_path / "page.html").read_text()


def test_any_hardware_leaves_out_what_was_not_measured() -> None:
    """As for language models: the roofline alone is too optimistic for a comparison, unless its hardware is named."""
    request = network_request({"model": "bert-base", "hardware": "any", "slo": "e2e.p90=20ms", "rate": 100})
    planner = NetworkPlanner.of(request)
    names = {hardware.accelerator.name for hardware in planner.hardware()}
    assert {"h100", "l40s", "a100-80gb"} <= names
    assert not {"l4", "v100-16gb", "t4"} & names
    (notice,) = (text for text in planner.notices if "no calibration" in text)
    assert "v100-16gb" in notice
    named = NetworkPlanner.of(request.replace(hardware="l4x1,h100x1"))
    assert [hardware.text for hardware in named.hardware()] == ["l4x1", "h100x1"]
    assert not [text for text in named.notices if "no calibration" in text]


def test_the_search_for_the_least_energy_counts_accelerators_that_are_rented_and_idle() -> None:
    keys = {"hardware": "h100x1", "objective": "energy", "rate": 0.5}
    one, eight = (world(lambda _: 1.0, **keys, **{"tariff.cloud": cloud}) for cloud in ("verda", "lambda"))
    scores = [assessor(known("h100x1")).score for assessor in (one, eight)]
    assert scores[0] is not None
    idle_j = idle_w(parse_hardware("h100x1")) / 0.5
    assert scores[1] == pytest.approx(scores[0] + 7 * idle_j)
    bounds = [assessor.bound(known("h100x1")) for assessor in (one, eight)]
    assert bounds[1] == pytest.approx(bounds[0] + 7 * idle_j)
    assert eight.bound(known("h100x4")) == pytest.approx(bounds[0] + 4 * idle_j)  # four replicas leave four idle


def test_an_alternative_that_ties_with_a_simpler_plan_says_so() -> None:
    """A batch never has more than one job at a light load: larger batches and instances are only less simple."""
    keys = {"model": "resnet50", "hardware": "l4", "slo": "e2e.p90=100ms", "objective": "latency", **SMALL}
    answer = plan_network(network_request(keys | {"tariff.usd_per_hour": 1.0}))
    assert answer.best is not None
    planner = NetworkPlanner.of(answer.request)
    sized = planner.builder.sized
    simple, other, two = (
        planner.alternative(sized(known("l4", **best), 20.0), sized(known("l4", **changes), 20.0))
        for best, changes in (({"max_batch": 2}, {}), ({}, {"max_batch": 2}), ({}, {"max_batch": 2, "instances": 2}))
    )
    assert (simple.ties, other.ties, two.ties) == (False, True, True)
    tie = "a tie: the simpler deployment is recommended"
    assert tie in difference_words(answer.best, other, "image")
    assert tie in why_not(answer.best, other, "image")
    rows = plans(answer.model_copy(update={"alternatives": [other, simple]})).rows
    assert [tie in row[1] for row in rows] == [False, True, False]
    assert tie not in difference_words(answer.best, simple, "image")
    assert tie not in why_not(answer.best, simple, "image")


def test_an_alternative_that_costs_more_does_not_tie() -> None:
    keys = {"model": "resnet50", "hardware": "l4x1,h100x1", "slo": "e2e.p90=100ms", "rate": 20, **SMALL}
    answer = plan_network(network_request(keys))
    assert [other.ties for other in answer.alternatives] == [False]
    assert "a tie" not in render(answer)


def test_each_objective_is_met_at_the_confidence(answer: dict[str, Any]) -> None:
    assert answer["feasible"] is True
    for row in answer["best"]["slo"]:
        assert row["met"] is True
        assert row["probability_met"] >= answer["request"]["confidence"]
        assert row["ci_low_s"] < row["value_s"] < row["ci_high_s"]
        assert row["value_s"] < row["value_at_confidence_s"] <= row["limit_s"]
    assert answer["best"]["capacity_requests_per_s"] >= 1500


def test_the_answer_is_read_back_and_has_its_schema(answer: dict[str, Any]) -> None:
    import jsonschema

    schema = json.loads((Path(__file__).parents[3] / "planner/schemas/network_answer.schema.json").read_text())
    jsonschema.validate(answer, schema)
    again = NetworkAnswer.model_validate_json(json.dumps(answer))
    assert json.loads(json.dumps(again.document())) == answer


def test_the_recommended_deployment_simulates_to_the_stated_latency(answer: dict[str, Any], folder: Path) -> None:
    deployment = load_any_deployment(folder / "deployment.yaml")
    assert yaml.safe_load((folder / "deployment.yaml").read_text()) == answer["best"]["deployment"]
    jobs = JobWorkload().draw(11, 4000, answer["best"]["requests_per_s"])
    seen = simulate_jobs(deployment, jobs)  # type: ignore[arg-type]
    mean_s = float(seen.e2e_s[400:].mean())
    assert mean_s == pytest.approx(answer["best"]["metrics"]["e2e_s"]["mean"], rel=0.1)


def test_the_screen_and_the_page_state_the_plan(answer: dict[str, Any], folder: Path) -> None:
    screen = render(NetworkAnswer.model_validate_json(json.dumps(answer)))
    assert screen.startswith("Request     bert-base (text encoder) on h100x2")
    assert "embeddings per hour at 1,500 jobs/s" in screen
    assert "per 1,000,000 embeddings" in screen
    assert " at the servers; with PUE 1.3: " in screen
    assert max(map(len, screen.split("\n"))) <= 100
    page = (folder / "answer.html").read_text()
    assert answer["best"]["words"] in page
    assert "https://" not in page.split("</style>")[-1].split("<script")[0]


def test_the_prices_by_region_have_the_cost_and_the_carbon_of_a_unit(tmp_path: Path) -> None:
    keys = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    found = run(tmp_path, ["--model", "bert-base", "--hw", "l40s", "--slo", "e2e.p90=50ms", "--rate", "20", *keys])
    best, prices = found["best"], found["prices"]
    assert len(prices) > 2
    for row in prices:
        assert row["usd_per_unit"] == pytest.approx(row["usd_per_hour"] / best["units_per_hour"])
        assert (row["gco2e_per_unit"] is None) == (row["grid_region"] is None)
    (billed,) = [
        row
        for row in prices
        if (row["cloud"], row["region"], row["contract"])
        == (best["cost"]["cloud"], best["cost"]["region"], "on demand")
    ]
    assert billed["usd_per_unit"] == pytest.approx(best["usd_per_unit"])
    assert billed["gco2e_per_unit"] == pytest.approx(best["energy"]["gco2e_per_unit"])
    screen = render(NetworkAnswer.model_validate_json(json.dumps(found)))
    assert f"a month, ${best['cost']['usd_per_year']:,.0f} a year)" in screen
    assert "Regions     cloud and region" in screen
    assert f"{billed['cloud']} {billed['region']}" in screen.split("Regions")[1]
    assert "Prices by region" in (tmp_path / "answer.html").read_text()


def test_the_users_own_price_has_no_regions_on_the_screen(answer: dict[str, Any]) -> None:
    assert "Regions" not in render(NetworkAnswer.model_validate_json(json.dumps(answer)))


def test_the_screen_has_every_note_of_the_plan(answer: dict[str, Any]) -> None:
    notes = [f"note number {i}" for i in range(1, 7)]
    found = answer | {"best": answer["best"] | {"notices": notes}}
    screen = render(NetworkAnswer.model_validate_json(json.dumps(found)))
    assert all(note in screen for note in notes)


def test_the_same_request_has_the_same_answer(answer: dict[str, Any], tmp_path: Path) -> None:
    again = run(tmp_path, answer["reproduce"]["command"].split()[1:])
    for found in (answer, again):
        found["search"]["seconds"] = 0
    assert again == answer


def test_a_refusal_states_the_limit_and_what_would_meet_it(tmp_path: Path) -> None:
    found = run(tmp_path, [*FEASIBLE[:4], "--slo", "e2e.p90=0.5ms"], 1)
    assert found["feasible"] is False
    assert found["best"] is None
    no = found["infeasible"]
    assert "one job alone takes" in no["binding_constraint"]
    assert "above the limit of 500 µs" in no["binding_constraint"]
    kinds = [change["kind"] for change in no["what_would_meet_it"]]
    assert "slo" in kinds or "hardware" in kinds
    assert not (tmp_path / "deployment.yaml").exists()


def test_the_suggested_rate_of_a_refusal_holds() -> None:
    keys = {"model": "resnet50", "hardware": "l4", "slo": "e2e.p90=50ms", "rate": 3_000, **SMALL}
    no = plan_network(network_request(keys | {"tariff.usd_per_hour": 1.0})).infeasible
    assert no is not None
    assert "% of what is required" in no.binding_constraint
    rate = next(change.value for change in no.what_would_meet_it if change.kind == "rate")
    assert no.closest is not None
    assert rate == pytest.approx(no.closest.capacity_requests_per_s, rel=0.01)
    assert plan_network(network_request(keys | {"rate": rate, "tariff.usd_per_hour": 1.0})).feasible


def test_the_searches_for_what_would_meet_a_refused_request_are_counted() -> None:
    """One job alone misses the limit: nothing is simulated but the changes, whose candidates the progress counts."""
    keys = {"model": "resnet50", "hardware": "l4", "slo": "e2e.p90=0.5ms", "rate": 10, **SMALL}
    told: list[tuple[int, int]] = []
    answer = plan_network(network_request(keys), lambda done, planned: told.append((done, planned)))
    refusal = answer.infeasible
    assert refusal is not None
    assert answer.search.n_requests == 0
    assert refusal.n_searches > 1
    assert refusal.n_jobs > 0
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert all(done <= planned for done, planned in told)
    line = " ".join(render(answer).partition("Search")[2].split())
    assert f"{refusal.n_searches} searches for what would meet it, with {refusal.n_jobs:,} jobs" in line


@pytest.mark.parametrize("objective", ["energy", "carbon", "throughput", "latency"])
def test_every_objective_has_an_answer(objective: str) -> None:
    keys = {"model": "resnet50", "hardware": "l4", "slo": "e2e.p90=50ms", "objective": objective, **SMALL}
    found = plan_network(network_request(keys))
    assert found.best is not None
    assert found.best.slo[0].met
