"""Inference tasks against real local servers: whom they may reach, their limits, and what is measured."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalogs.errors import InputError
from catalogs.io.pinned_connection import ReplyLimits
from planner.web.documents.inference_result import measured_document
from planner.web.inference import InferenceTask, checked_task, send_task
from planner.web.listed_endpoints import ListedEndpoint, read_endpoints
from tests.hostile_server import Answer, hostile, reply, sends, silent

USAGE = {"prompt_tokens": 100, "completion_tokens": 2}

EVENTS = [{"choices": [{"delta": {"content": text}}]} for text in ("a", "b")] + [{"choices": [], "usage": USAGE}]

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(
    b"data: " + json.dumps(event).encode() + b"\n\n" for event in EVENTS
)


def carried_out(answer: Answer, keys: dict[str, Any] | None = None, limits: Any = None, **task: Any) -> dict[str, Any]:
    with hostile(answer) as server:
        endpoint = ListedEndpoint(url=server.url, **(keys or {}))
        checked, endpoint = checked_task({"e": endpoint}, {"endpoint": "e", "prompt": "Hello", **task})
        return measured_document(send_task(checked, endpoint, limits=limits))


def test_every_request_is_measured_and_priced() -> None:
    prices = {"usd_per_million_input_tokens": 2.0, "usd_per_million_output_tokens": 10.0, "usd_per_hour": 3.6}
    found = carried_out(sends(STREAM), prices, requests=4, concurrency=2)
    assert [row["position"] for row in found["requests"]] == [0, 1, 2, 3]
    for row in found["requests"]:
        assert (row["text"], row["input_tokens"], row["output_tokens"]) == ("ab", 100, 2)
        assert 0 < row["ttft_s"] <= row["e2e_s"]
        assert row["usd"] == pytest.approx((2.0 * 100 + 10.0 * 2) / 1e6)
    summary = found["summary"]
    assert (summary["n"], summary["n_failed"], summary["output_tokens"]) == (4, 0, 8)
    assert summary["usd"] == pytest.approx(4 * 220 / 1e6)
    assert summary["usd_of_machines"] == pytest.approx(summary["duration_s"] * 0.001)
    assert summary["e2e_s"]["p50"] <= summary["e2e_s"]["p99"]
    assert "url" not in json.dumps(found)
    json.loads(json.dumps(found, allow_nan=False))


def test_at_most_the_stated_number_of_requests_is_under_way() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def answer(connection: Any) -> None:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        time.sleep(0.05)
        with lock:
            now -= 1
        connection.sendall(STREAM)

    found = carried_out(answer, requests=9, concurrency=3)
    assert [row["problem"] for row in found["requests"]] == [None] * 9
    assert most == 3


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (silent, "did not finish its reply within 0.5 s"),
        (sends(STREAM, b": wait\n\n", pause_s=0.05, forever=True), "did not finish its reply"),
        (sends(STREAM, b"data: {}\n\n" * 50_000, forever=True), "larger than 0.5 MiB|did not finish"),
        (sends(reply(b"", "302 Found", ["Location: http://169.254.169.254/latest/meta-data/"])), "redirects"),
        (sends(reply(b"\x1b]0;owned\x07", "503 Busy")), r"answers 503 \(\?\]0;owned\?\)"),
    ],
)
def test_what_a_server_does_wrong_is_the_reason_of_its_request(answer: Answer, says: str) -> None:
    import re

    found = carried_out(answer, limits=ReplyLimits(0.5, 2**19), requests=2)
    assert found["summary"]["n_failed"] == 2
    for row in found["requests"]:
        assert re.search(says, row["problem"]), row["problem"]
        assert row["problem"].isprintable()
        assert "127.0.0.1" not in row["problem"]
    assert found["summary"]["ttft_s"] is None


def test_a_cancelled_task_ends_and_keeps_what_it_has() -> None:
    cancelled = threading.Event()
    begun: list[int] = []

    def answer(connection: Any) -> None:
        begun.append(1)
        if len(begun) < 3:
            connection.sendall(STREAM)
            return
        cancelled.set()
        connection.recv(1)

    began = time.monotonic()
    with hostile(answer) as server:
        task = InferenceTask(endpoint="e", prompt="Hello", requests=10)
        found = send_task(task, ListedEndpoint(url=server.url), cancelled=cancelled)
    assert time.monotonic() - began < 20.0
    assert len(found.load.replies) == 2
    assert len(begun) == 3


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://169.254.169.254/v1", "metadata services"),
        ("http://[fd00:ec2::254]/v1", "metadata services"),
        ("http://0.0.0.0:8000/v1", "not the address of a server"),
        ("http://name.invalid/v1", "name of the server is unknown"),
    ],
)
def test_endpoints_that_are_never_connected_to(url: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        send_task(InferenceTask(endpoint="e", prompt="Hello"), ListedEndpoint(url=url, private_network=True))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"endpoint": "f"}, "not on the server's list.*nearest valid choice: e"),
        ({"endpoint": "http://169.254.169.254/"}, "not on the server's list"),
        ({"url": "http://x"}, "unknown key 'url'"),
        ({"model": "n"}, "does not serve this model"),
        ({"requests": 51}, "requests of e is at most 50"),
        ({"concurrency": 17}, "concurrency of e is at most 16"),
        ({"output_tokens": 10_000_000}, "output_tokens of e is at most"),
        ({"requests": 0}, "requests"),
        ({"requests": "1"}, "requests"),
        ({"prompt": "x" * 200_001}, "prompt"),
        ({"prompt": None}, "either a prompt or input_tokens"),
        ({"input_tokens": 5}, "either a prompt or input_tokens"),
    ],
)
def test_tasks_beyond_the_operators_list_are_refused(change: dict[str, Any], says: str) -> None:
    listed = {"e": ListedEndpoint(url="http://localhost:1/v1", models=["m"], most_requests=50)}
    body = {"endpoint": "e", "prompt": "Hello", "model": "m"}
    assert checked_task(listed, body)[0].model == "m"
    with pytest.raises(InputError, match=says):
        checked_task(listed, body | change)
    with pytest.raises(InputError, match="lists no endpoints"):
        checked_task({}, body)


def test_the_file_of_endpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text(
        "a: {url: 'https://u:SECRET@h/v1', key_env: THE_KEY, models: [m]}\nb: {url: 'http://h', form: vertex}\n"
    )
    found = read_endpoints(file)
    assert list(found) == ["a", "b"]
    public = json.dumps([endpoint.public(name) for name, endpoint in found.items()])
    assert "SECRET" not in public
    assert "THE_KEY" not in public
    monkeypatch.setenv("THE_KEY", "k")
    assert found["a"].key() == "k"
    monkeypatch.delenv("THE_KEY")
    with pytest.raises(InputError, match="holds no key"):
        found["a"].key()
    assert read_endpoints(None) == {}
    for text in ("a: {url: 'ftp://h'}", "a: {}", "a: {url: 'http://h', user: x}", "a: 3", "- a"):
        file.write_text(text)
        with pytest.raises(InputError):
            read_endpoints(file)


def test_random_prompts_have_about_the_stated_words_and_no_common_prefix() -> None:
    make: Callable[[int], list[str]] = lambda seed: InferenceTask(  # noqa: E731
        endpoint="e", input_tokens=40, requests=100, seed=seed
    ).prompts()
    assert make(1) == make(1) != make(2)
    assert {len(p.split()) for p in make(1)} == {40}
    assert len({p.split()[0] for p in make(1)}) == 100
