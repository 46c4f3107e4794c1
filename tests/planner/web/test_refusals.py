"""Refusals of the API: one line with the rule, the value and the nearest valid choice, in the keys of a JSON body."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from catalogs.errors import InputError
from planner.web.api.state import PREFIX
from planner.web.app import create_app
from planner.web.jobs.registry import KINDS
from planner.web.option_names import in_keys
from planner.web.settings import ServerSettings

LANGUAGE = {"model": "llama3.1-8b", "hardware": "h100", "slo": ["ttft.p99=1s"]}
NETWORK = {"model": "sam2.1-large", "hardware": "l40s", "slo": ["e2e.p99=1s"]}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder: Path = tmp_path_factory.mktemp("refusals")
    return TestClient(
        create_app(ServerSettings(store=f"sqlite:///{folder / 'jobs.sqlite'}")), base_url="http://127.0.0.1"
    )


def without(question: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in question.items() if key != name}


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (without(LANGUAGE, "model"), "model is needed"),
        (without(LANGUAGE, "hardware"), "hardware is needed"),
        (without(NETWORK, "hardware"), "hardware is needed"),
        (LANGUAGE | {"hardware": "h100,,"}, "hardware takes one name or several separated by commas"),
        (LANGUAGE | {"hardware": "h100,h200", "tariff": {"usd_per_hour": 2}}, "needs exactly one hardware"),
        (LANGUAGE | {"think_s": 3}, "a think time needs users"),
        (LANGUAGE | {"survive": "1"}, "survive needs a load"),
    ],
)
def test_a_refused_question_names_keys_and_no_options(client: TestClient, body: dict[str, Any], rule: str) -> None:
    found = client.post(f"{PREFIX}/plans", json=body)
    assert found.status_code == 422
    assert rule in found.json()["rule"]
    assert "\n" not in found.json()["detail"]
    assert re.search(r"(?<!\S)--[a-z]", found.text) is None


def test_the_example_of_a_question_is_a_body_that_the_server_takes(client: TestClient) -> None:
    for body in (without(LANGUAGE, "model"), without(NETWORK, "hardware")):
        example = json.loads(client.post(f"{PREFIX}/plans", json=body).json()["hint"])
        assert client.post(f"{PREFIX}/question", json=example).status_code == 200


def test_a_command_keeps_its_options() -> None:
    hints = (
        "catalog import-launch --hw h100",
        "`calibrate profile --hw h100` measures it",
        "vllm serve --model-path M",
    )
    for hint in hints:
        assert in_keys(InputError("no calibration", "h100", hint=hint)).hint == hint
    options = in_keys(InputError("--trace and --survive exclude each other", "--rate 3", "plan --users N"))
    assert (options.rule, options.value) == ("over_time and survive exclude each other", "--rate 3")
    assert options.nearest == "users"


def test_a_key_that_is_the_name_of_an_option_leads_to_the_key(client: TestClient) -> None:
    found = client.get(f"{PREFIX}/guess?model=llama3.1-8b&hw=h100")
    assert (found.json()["value"], found.json()["nearest"]) == ("hw", "hardware")


@pytest.mark.parametrize(
    ("changes", "unknown", "nearest"),
    [({"rat": 2}, "changes.rat", "changes.rate"), ({"rate": 2, "hardwear": "h200"}, "hardwear", "changes.hardware")],
)
def test_a_misspelled_key_of_a_block_has_a_nearest_key(
    client: TestClient, changes: dict[str, Any], unknown: str, nearest: str
) -> None:
    found = client.post(f"{PREFIX}/whatifs", json={"job": "0" * 16, "changes": changes}).json()
    assert unknown in found["rule"]
    assert found["nearest"] == nearest


def test_a_key_of_a_block_that_is_like_no_other_has_all_of_them(client: TestClient) -> None:
    found = client.post(f"{PREFIX}/whatifs", json={"job": "0" * 16, "changes": {"zzzzqqq": 2}}).json()
    assert "hardware" in found["nearest"].split(", ")


@pytest.mark.parametrize(
    ("kind", "nearest"), [("zzz", None), ("foo", "front"), ("plans", "plan"), ("simulations", "simulation")]
)
def test_an_unknown_kind_of_job_is_refused(client: TestClient, kind: str, nearest: str | None) -> None:
    found = client.get(f"{PREFIX}/jobs", params={"kind": kind})
    assert found.status_code == 422
    assert (found.json()["rule"], found.json()["value"]) == ("no such kind of job", kind)
    assert found.json()["nearest"] == (nearest or ", ".join(KINDS))
    for name in KINDS:
        assert client.get(f"{PREFIX}/jobs", params={"kind": name}).status_code == 200


@pytest.mark.parametrize("model", ["sam2.1-large", "wan2.2-t2v-a14b", "bge-large"])
def test_a_simulation_of_a_network_is_refused_with_what_takes_one(client: TestClient, model: str) -> None:
    body = {"deployment": {"model": model, "hardware": "l40s"}}
    found = client.post(f"{PREFIX}/simulations", json=body).json()
    assert "take language models" in found["rule"]
    assert found["value"] == model
    assert f"{PREFIX}/plans" in found["hint"]
    text = f"model: {model}\nhardware: l40s\n"
    (fault,) = client.post(f"{PREFIX}/deployments/check", json={"text": text}).json()["faults"]
    assert (fault["line"], fault["key"], fault["nearest"]) == (1, "model", None)
    assert "take language models" in fault["rule"]


def test_a_simulation_of_a_misspelled_network_names_the_network(client: TestClient) -> None:
    body = {"deployment": {"model": "sam2.1-larg", "hardware": "l40s"}}
    found = client.post(f"{PREFIX}/simulations", json=body).json()
    assert (found["rule"], found["value"], found["nearest"]) == ("unknown model", "sam2.1-larg", "sam2.1-large")
    text = "model: sam2.1-larg\nhardware: l40s\n"
    (fault,) = client.post(f"{PREFIX}/deployments/check", json={"text": text}).json()["faults"]
    assert (fault["rule"], fault["nearest"]) == ("unknown model", "sam2.1-large")
