"""Networks on the pages and in the API: one question in four spellings, its job, its answer and what follows."""

from __future__ import annotations

import io
import json
import shlex
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import httpx
import pytest

from catalogs.errors import InputError
from catalogs.io.yaml_loader import load_yaml
from planner.networks.plan import plan_network
from planner.networks.request import network_request
from planner.networks.schema import NetworkAnswer
from planner.networks.screen import render
from planner.problem.request_keys import network_keys, request_keys
from planner.web.documents.analysis import named_model
from planner.web.documents.catalogs import networks
from planner.web.documents.comparisons import comparison_document
from planner.web.documents.guess import network_guess_document
from planner.web.documents.network_answer import network_document
from planner.web.documents.question_form import further_groups, only_of
from planner.web.jobs.kind import Submission
from planner.web.jobs.kinds.whatifs import prepare as prepare_what_if
from planner.web.mcp.tools import tool
from planner.web.questions import from_query, read_question, subject_of, to_query
from planner.web.settings import ServerSettings
from planner.web.store.database import Database
from planner.web.store.jobs import DONE, JobStore, NewJob
from planner.web.store.uploads import UploadStore
from planner.web.uploads import Uploads
from tests.planner.web.running_server import SMALL, RunningServer, answered
from tests.planner.web.watched_page import PHONE, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: A plan with one candidate.
KEYS: dict[str, Any] = {
    "model": "resnet50", "hardware": "h100x2", "slo": ["e2e.p90=20ms"], "rate": 300, "modes": ["compiled"],
    "precisions": ["bf16"], "max_batch": 1, "max_instances": 1, "tariff": {"usd_per_hour": 4.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> Uploads:
    folder = tmp_path_factory.mktemp("uploads")
    return Uploads(UploadStore(Database(f"sqlite:///{folder / 'jobs.sqlite'}")), folder, 1 << 20, 1 << 24)


@pytest.fixture(scope="module")
def answers() -> dict[str, NetworkAnswer]:
    keys = {name: value for name, value in KEYS.items() if name != "tariff"} | {"tariff.usd_per_hour": 4.0}
    limits = {"yes": {}, "no": {"slo": "e2e.p90=0.1ms"}}
    return {name: plan_network(network_request(keys | more)) for name, more in limits.items()}


def test_every_spelling_of_a_question_for_a_network_is_the_same_question(uploads: Uploads) -> None:
    wan = {"model": "wan2.1-t2v-1.3b", "hardware": "h100x8", "slo": ["e2e.p95=5min"], "steps": 40, "users": 3}
    for body in (KEYS, wan | {"job": "832x480x81:0.7,832x480x41:0.3", "think_s": 2.5}):
        question = read_question(body, uploads, "")
        spelled = question.spellings()
        of_query = from_query(parse_qsl(spelled["query"], keep_blank_values=True))
        assert read_question(of_query, uploads, "").scenario == question.scenario
        assert read_question(load_yaml(spelled["scenario"]), uploads, "").scenario == question.scenario
        assert shlex.split(spelled["command"])[:3] == ["plan", "--model", body["model"]]


def test_the_server_reads_no_network_by_its_path(uploads: Uploads) -> None:
    for change in ({"model": "net.yaml"}, {"job": "jobs.csv"}, {"job": "/etc/passwd.csv"}):
        with pytest.raises(InputError, match="no files by their path"):
            read_question(KEYS | change, uploads, "")


def test_every_key_of_a_network_has_a_control() -> None:
    shown = {field.name: field.only for group in further_groups() for field in group.fields}
    assert {name for name, only in shown.items() if only == "network"} <= set(network_keys()) - set(request_keys())
    by_hand = {"job", "steps"}
    assert set(network_keys()) - set(request_keys()) - by_hand <= set(shown)
    assert only_of("workload") == "language"
    assert only_of("slo") == ""


def test_the_form_has_a_default_job_for_every_network() -> None:
    items = networks()
    assert len(items) > 80
    for item in items:
        keys = {"model": item["name"], "hardware": "h100", "slo": item["slo"]}
        assert network_request(keys).slos
    by_name = {item["name"]: item for item in items}
    assert by_name["wan2.1-t2v-1.3b"]["job"] == "832x480x81"
    assert by_name["bert-base"]["steps"] is None


def test_the_view_states_the_figures_of_the_answer(answers: dict[str, NetworkAnswer]) -> None:
    found, answer = network_document(answers["yes"]), answers["yes"]
    assert answer.best is not None
    assert found["screen"] == render(answer)
    assert found["headline"] == answer.best.words
    cards = {label: (value, detail) for label, value, detail in found["cards"]}
    assert cards["Cost"][0] in found["screen"]
    assert cards["Rate"][0] == "300 jobs/s"
    names = [figure["name"] for figure in found["figures"]]
    assert names == ["front", "curve", "memory", "time"]
    best = next(trace for trace in found["figures"][0]["data"] if trace["name"] == "Best")
    assert len(best["x"]) == len(answer.best.curve)
    assert json.dumps(found)
    rates = [point.requests_per_s for point in answer.best.curve]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(answer.best.capacity_requests_per_s)
    per_unit = [point.usd_per_unit or 0.0 for point in answer.best.curve]
    assert per_unit == sorted(per_unit, reverse=True)


def test_a_refusal_offers_valid_questions(answers: dict[str, NetworkAnswer], uploads: Uploads) -> None:
    found = network_document(answers["no"])
    assert not found["feasible"]
    no = found["refusal"]
    assert no["reason"][1:] in " ".join(found["screen"].split())
    assert no["ways"]
    for way in no["ways"]:
        body = {name: value for name, value in KEYS.items() if name != "tariff"} | {"slo": ["e2e.p90=0.1ms"]}
        assert read_question(body | way["changes"], uploads, "").scenario != read_question(body, uploads, "").scenario


def test_answers_for_networks_are_compared_and_never_with_language_models(answers: dict[str, NetworkAnswer]) -> None:
    both = [answers["yes"], answers["no"]]
    found = comparison_document(both, ["one", "two"])
    assert [head["feasible"] for head in found["answers"]] == [True, False]
    assert any("infeasible" in note for note in found["notes"])


def test_a_guess_names_the_fewest_accelerators_of_full_batches() -> None:
    keys = {"model": "resnet50", "hardware": "h100x8", "slo": "e2e.p90=20ms"}
    found = network_guess_document(network_request(keys | {"rate": 300.0}))
    assert found["fits"]
    assert found["gpus"] == 1
    assert found["enough"]
    whole = network_guess_document(network_request(keys))
    assert (found["requests_per_s"], found["usd_per_hour"]) == pytest.approx(
        (whole["requests_per_s"] / 8, whole["usd_per_hour"] / 8)  # the rate and the price are of the same accelerators
    )
    much = network_guess_document(network_request(keys | {"rate": 1e6}))
    assert not much["enough"]
    tight = network_guess_document(network_request(keys | {"slo": "e2e.p90=1us"}))
    assert tight["gpus"] is None
    assert "above the limit" in str(tight["binds"])


def test_addresses_of_steps_refuse_a_network_as_such() -> None:
    with pytest.raises(InputError, match="takes language models, and this model is a network: got 'bge-large'"):
        named_model("bge-large")
    assert named_model("llama3.1-8b") == "llama3.1-8b"


def test_assistants_may_ask_for_networks() -> None:
    plan, guess = tool("plan"), tool("guess")
    assert plan is not None
    assert guess is not None
    assert {"job", "steps", "modes"} <= set(plan.definition()["inputSchema"]["properties"])
    found = guess.answer({"model": "resnet50", "hardware": "h100x2", "slo": ["e2e.p90=20ms"]}, None)  # type: ignore[arg-type]
    assert found["single_job_s"] > 0


def test_the_compare_page_offers_plans_for_one_subject_together(browser: Browser, server: RunningServer) -> None:
    with server.client() as client:
        language, _ = answered(client, "plans", SMALL)
        network, _ = answered(client, "plans", KEYS | {"seed": 77})  # the newest plan
        both = [("job", language["id"]), ("job", network["id"])]
        assert client.get("/api/v1/comparison", params=both).status_code == 422
        jobs = client.get("/api/v1/jobs?kind=plan&limit=100").json()["items"]
    subjects = {job["id"]: job["subject"] for job in jobs}
    assert (subjects[language["id"]], subjects[network["id"]]) == ("language", "network")
    with watched(browser, server.url) as found:  # which fails for a comparison that the server refuses
        page = found.open("/compare")
        page.locator("#plans input").first.wait_for()
        boxes = {box.input_value(): box for box in page.locator("#plans input").all()}
        assert boxes[network["id"]].is_checked()
        assert boxes[language["id"]].is_disabled()
        assert {subjects[id_] for id_, box in boxes.items() if box.is_checked()} == {"network"}


def test_what_a_plan_is_for_is_known_from_its_question(uploads: Uploads) -> None:
    assert subject_of({"model": "resnet50"}, uploads, "") == "network"
    assert subject_of({"model": "llama3.1-8b"}, uploads, "") == "language"
    assert subject_of({"model": "llama3.1-8b", "agents": 4}, uploads, "") == "agents"
    assert subject_of({"model": "upload:" + "0" * 64}, uploads, "") is None
    network = uploads.receive(io.BytesIO(b"name: mine\n"), "mine.yaml", "")
    assert subject_of({"model": f"upload:{network.hash}"}, uploads, "") == "network"


def test_a_plan_for_agents_has_no_what_if(uploads: Uploads) -> None:
    store = JobStore(uploads.store.database)
    store.add(NewJob("plan", "for agents", "", "key", {"model": "llama3.1-8b", "agents": 4}))
    job = store.claim("server", ("plan",), only=True)
    assert job is not None
    store.finish(job, DONE, {})
    submission = Submission("", store, uploads, ServerSettings())
    with pytest.raises(InputError, match="agents has no what-if"):
        prepare_what_if({"job": job.id, "changes": {"rate": "x2"}}, submission)


def test_a_plan_of_a_network_is_a_job_like_any_other(client: httpx.Client) -> None:
    job, found = answered(client, "plans", KEYS)
    assert found["kind"] == "network"
    assert job["verdict"] == "yes"
    view = client.post("/api/v1/answers/view", json=found).json()
    assert view["feasible"]
    assert client.get(f"/api/v1/jobs/{job['id']}/result.csv").text.startswith("plan,label")
    deployment = load_yaml(client.get(f"/api/v1/jobs/{job['id']}/deployment.yaml").text)
    assert deployment == found["best"]["deployment"]
    page = client.get(f"/api/v1/jobs/{job['id']}/result.html")
    assert page.status_code == 200
    assert "Cost against latency" in page.text
    files = client.get(f"/api/v1/jobs/{job['id']}/files.zip")
    assert files.status_code == 200
    changed, result = answered(client, "whatifs", {"job": job["id"], "changes": {"rate": "x1.2", "job": "batch=2"}})
    assert changed["verdict"] in ("yes", "no")
    assert result["plan"]["deployment"]["job"] == {"batch": 2}
    refused = client.post("/api/v1/whatifs", json={"job": job["id"], "changes": {"deployment": {"kv_dtype": "fp8"}}})
    assert refused.status_code == 422
    assert "no such key" in refused.json()["detail"]


@pytest.mark.slow
def test_the_form_shows_the_fields_of_the_kind_of_model(browser: Browser, server: RunningServer) -> None:
    flat = {name: value for name, value in KEYS.items() if name != "tariff"} | {"tariff.usd_per_hour": 4.0}
    with watched(browser, server.url) as found:
        page = found.open("/plan")
        page.locator("#model").fill("llama3.1-8b")
        page.locator("#workload").wait_for()
        assert page.locator("#job-sizes").is_hidden()
        page.locator("#model").fill("sd3.5-medium")
        page.locator("#job-sizes").wait_for()
        assert page.locator("#workload").is_hidden()
        assert page.locator("#steps").is_visible()
        assert page.locator("#slo-rows input[type=number]").first.input_value() == "30"
        page.locator("#model").fill("bert-base")
        page.locator("#steps-field").wait_for(state="hidden")
        page.locator("#model").fill("llama3.1-8b")
        page.locator("#workload").wait_for()
        page = found.open(f"/plan?{to_query(flat | {'job': 'batch=2'})}")
        page.locator("#job-sizes").wait_for()
        assert page.locator("#job-sizes").input_value() == "batch=2"
        page.locator("#live .good", has_text="It fits").wait_for(timeout=20_000)
        page.locator("#go").click()
        page.locator("#answer .verdict").wait_for(timeout=120_000)
        assert "sizes=batch" in page.url
        page.reload()
        page.locator("#answer .verdict").wait_for(timeout=120_000)
        assert page.locator("#job-sizes").input_value() == "batch=2"
        assert page.locator("#answer .stale").count() == 0
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.slow
def test_the_page_of_a_network_fits_a_phone(browser: Browser, server: RunningServer) -> None:
    with watched(browser, server.url, viewport=PHONE) as found:
        page = found.open("/plan?model=sd3.5-medium&hardware=h100x2&slo=e2e.p95%3D30s&rate=0.5")
        page.locator("#live .good", has_text="It fits").wait_for(timeout=60_000)
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
