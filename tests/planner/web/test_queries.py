"""Queries of the API: a key that an address does not know is refused, so that no misspelled key is ignored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from planner.web.api.state import PREFIX
from planner.web.app import create_app
from planner.web.settings import ServerSettings


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder: Path = tmp_path_factory.mktemp("queries")
    return TestClient(
        create_app(ServerSettings(store=f"sqlite:///{folder / 'jobs.sqlite'}")), base_url="http://127.0.0.1"
    )


def test_every_address_refuses_an_unknown_key(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["paths"]
    paths = [path for path, operations in described.items() if path.startswith(PREFIX) and "get" in operations]
    assert len(paths) > 20
    for path in paths:
        found = client.get(re.sub(r"\{[^}]*\}", "x", path), params={"no_such_key": "1"})
        assert found.status_code == 422, path
        assert found.headers["content-type"] == "application/problem+json"
        assert found.json()["value"] == "no_such_key", path
        assert "no such key" in found.json()["rule"], path


@pytest.mark.parametrize(
    ("query", "value", "nearest"),
    [
        ("analyze?model=llama3.1-8b&hardware=h100&bach=8", "bach", "batch"),
        ("graph?modle=llama3.1-8b", "modle", "model"),
        ("models?serch=llama", "serch", "search"),
        ("guess?model=llama3.1-8b&hadware=h100", "hadware", "hardware"),
        ("models?search=a&search=b", "search", "one value"),
        ("analyze?model=llama3.1-8b&hardware=h100&batch=0", "0", "1"),
        ("jobs?limit=1000", "1000", "200"),
    ],
)
def test_a_refusal_names_the_nearest_key_or_value(client: TestClient, query: str, value: str, nearest: str) -> None:
    found = client.get(f"{PREFIX}/{query}")
    assert found.status_code == 422
    assert (found.json()["value"], found.json()["nearest"]) == (value, nearest)


def test_a_key_that_takes_several_values_may_be_repeated(client: TestClient) -> None:
    assert client.get(f"{PREFIX}/comparison?job=a&job=b").json()["rule"] == "job must be the id of a plan"
    question = "model=llama3.1-8b&hardware=h100x8&slo=ttft.p99%3D2s&slo=tpot.p99%3D50ms"
    assert client.get(f"{PREFIX}/question?{question}").json()["question"]["slo"] == ["ttft.p99=2s", "tpot.p99=50ms"]


@pytest.mark.parametrize(
    ("key", "value", "limit"),
    [
        ("rate", 1e30, "100,000,000"),
        ("users", 10**15, "1,000,000,000"),
        ("max_usd_per_hour", 1e300, "1,000,000,000,000"),
        ("tariff", {"usd_per_hour": 1e300}, "1,000,000,000,000"),
        ("accounting", {"power_caps_w": [1e300]}, "1,000,000,000,000"),
        ("search", {"trials": 10**30}, "1,000,000,000"),
        ("input_tokens", 10**15, "1,000,000,000"),
    ],
)
def test_a_number_that_no_deployment_has_is_refused_with_its_limit(
    client: TestClient, key: str, value: object, limit: str
) -> None:
    body = {"model": "llama3.1-8b", "hardware": "h100x8", "slo": ["ttft.p99=2s"], key: value}
    found = client.post(f"{PREFIX}/plans", json=body)
    assert found.status_code == 422
    assert f"at most {limit}" in found.json()["rule"]
    assert found.json()["nearest"] == limit.replace(",", "")


@pytest.mark.parametrize(
    "change",
    [
        {"rate": 1e30},
        {"rate": 1e-30},
        {"requests": 10**12},
        {"input_tokens": 10**12},
        {"time_step": 1e-30},
        {"router_staleness": 1e30},
    ],
)
def test_a_simulation_that_nothing_could_run_is_refused(client: TestClient, change: dict[str, object]) -> None:
    deployment = {"model": "llama3.2-1b", "hardware": "l40s"}
    found = client.post(f"{PREFIX}/simulations", json={"deployment": deployment, **change})
    assert found.status_code == 422
    assert found.json()["nearest"], found.json()
