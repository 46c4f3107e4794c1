"""Requests that no form sends: broken JSON, numbers without end, unusual methods, and names in other scripts."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient

from planner.web.api.state import PREFIX
from planner.web.app import create_app
from planner.web.jobs.queue import JobQueue
from planner.web.pages import PAGES
from planner.web.settings import ServerSettings
from tests.planner.web.running_server import SMALL

JSON = {"Content-Type": "application/json"}
SIMULATION = {"deployment": {"model": "llama3.2-1b", "hardware": "l40s"}}


def opened(folder: Path) -> TestClient:
    app = create_app(ServerSettings(store=f"sqlite:///{folder / 'jobs.sqlite'}"))
    faulty = APIRouter()

    @faulty.get("/faulty")
    def fail() -> None:
        raise RuntimeError("a secret of the server")

    app.include_router(faulty)
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """A server whose queue does not run: what it accepts waits."""
    return opened(tmp_path_factory.mktemp("hostile"))


def check_refused(response: object, words: str) -> None:
    assert response.status_code == 422, response.text  # type: ignore[attr-defined]
    assert response.headers["content-type"] == "application/problem+json"  # type: ignore[attr-defined]
    assert words in response.json()["rule"], response.json()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "too many digits"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"", "missing"),
        (b"[]", "JSON object"),
        (b'{"model": "\\ud800"}', "half of a character"),
        (b'{"model": "a\\u0000b"}', "by their path"),
        (b'{"rate": NaN}', "finite"),
        (b'{"rate": 1e999}', "finite"),
    ],
)
def test_a_body_that_is_no_question_is_refused_with_its_rule(client: TestClient, body: bytes, words: str) -> None:
    check_refused(client.post(f"{PREFIX}/plans", content=body, headers=JSON), words)


@pytest.mark.parametrize("number", ["²", "x", "-1", "0", "9" * 30, "1.5", ""])
def test_a_number_that_is_none_is_refused(client: TestClient, number: str) -> None:
    assert client.get(f"{PREFIX}/jobs", params={"before": number}).status_code == 422


@pytest.mark.parametrize("last", [b"\xb2", b"x", b"", b"9" * 32, b"-1"])
def test_an_unusual_last_event_id_starts_from_the_first_event(client: TestClient, last: bytes) -> None:
    job = client.post(f"{PREFIX}/plans", json=SMALL).json()
    client.delete(f"{PREFIX}/jobs/{job['id']}")  # its events end
    found = client.get(f"{PREFIX}/jobs/{job['id']}/events", headers={b"Last-Event-ID": last})
    assert found.status_code == 200
    assert "event: done" in found.text


def test_a_file_without_a_name_is_refused_with_a_hint(client: TestClient) -> None:
    check_refused(client.post(f"{PREFIX}/uploads", data={"file": "text"}), "file")
    check_refused(client.post(f"{PREFIX}/uploads", files={"file": ("", b"")}), "file")


@pytest.mark.parametrize("name", ["模型.json", "‮gpj.exe", "a" * 500 + ".csv", "../../x", "a\r\nSet-Cookie: x", "😀"])
def test_a_file_of_any_name_is_stored_under_a_plain_one(client: TestClient, name: str) -> None:
    found = client.post(f"{PREFIX}/uploads", files={"file": (name, b"arrival_s,input_tokens\n0,1\n")})
    assert found.status_code == 201, found.text
    assert found.json()["name"].isascii()
    assert len(found.json()["name"]) <= 80
    assert "/" not in found.json()["name"]


@pytest.mark.parametrize("path", [*(page.path for page in PAGES), f"{PREFIX}/models", "/healthz", "/static/js/api.js"])
def test_head_is_get_without_the_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PUT", "PATCH", "FOO"])
def test_another_method_is_a_problem(client: TestClient, method: str) -> None:
    found = client.request(method, f"{PREFIX}/models")
    assert found.status_code == 405
    assert found.headers["content-type"] == "application/problem+json"
    assert client.head(f"{PREFIX}/jobs/none/events").status_code == 405


def test_a_fault_of_the_server_is_a_problem_without_details(client: TestClient) -> None:
    found = client.get("/faulty")
    assert found.status_code == 500
    assert found.headers["content-type"] == "application/problem+json"
    assert "secret" not in found.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"router": "no-such-router"}, "router"),
        ({"router": "x" * 200_000}, "router"),
        ({"seed": 10**40}, "seed"),
        ({"trace_window": "0:" + "9" * 5000}, "trace window"),
        ({"deployment": {**SIMULATION["deployment"], "extra_args": ["x" * 200_000]}}, ""),
    ],
)
def test_a_simulation_that_would_fail_is_no_job(client: TestClient, change: dict[str, object], words: str) -> None:
    before = client.get(f"{PREFIX}/jobs").json()
    check_refused(client.post(f"{PREFIX}/simulations", json=SIMULATION | change), words)
    assert client.get(f"{PREFIX}/jobs").json() == before


def test_a_question_of_any_length_keeps_lists_of_jobs_short(client: TestClient) -> None:
    hardware = ",".join(["h100x8"] * 100_000)
    found = client.post(f"{PREFIX}/plans", json=SMALL | {"hardware": hardware, "fixed": {}})
    check_refused(found, "a question has at most 100,000 characters")
    assert len(json.dumps(client.get(f"{PREFIX}/jobs").json())) < 100_000


def test_a_job_is_deleted_once(client: TestClient) -> None:
    job = client.post(f"{PREFIX}/plans", json=SMALL | {"seed": 77}).json()
    with ThreadPoolExecutor(8) as threads:
        path = f"{PREFIX}/jobs/{job['id']}"
        cancelled = list(threads.map(lambda _: client.delete(path).status_code, range(24)))
    assert set(cancelled) <= {200, 204, 404}
    assert client.delete(path).status_code in (204, 404)
    assert client.get(path).status_code == 404


def test_a_job_that_another_request_deletes_first_does_not_exist(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.post(f"{PREFIX}/plans", json=SMALL | {"seed": 78}).json()
    cancel = JobQueue.cancel

    def cancel_late(queue: JobQueue, id_: str) -> object:
        cancel(queue, id_)
        queue.store.delete(id_)
        return cancel(queue, id_)

    monkeypatch.setattr(JobQueue, "cancel", cancel_late)
    found = client.delete(f"{PREFIX}/jobs/{job['id']}")
    assert found.status_code == 404
    assert found.headers["content-type"] == "application/problem+json"
