"""The measurement of an endpoint against real local servers: figures, limits, failures, and what is never printed."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any

import pytest

from catalogs.errors import InputError
from catalogs.ui import progress
from catalogs.ui.entry_point import run_command
from simulator.endpoint.measurement import MeasuringPlan
from simulator.endpoint.target import EndpointChoice, connect
from simulator.verify.command import app
from tests.hostile_server import Answer, hostile, reply, sends, silent

USAGE = {"prompt_tokens": 100, "completion_tokens": 2}

EVENTS = [{"choices": [{"delta": {"content": text}}]} for text in ("a", "b")] + [{"choices": [], "usage": USAGE}]

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(
    b"data: " + json.dumps(event).encode() + b"\n\n" for event in EVENTS
)

MODELS = json.dumps({"data": [{"id": "first"}, {"id": "second"}]}).encode()


def measured(answer: Answer, capsys: Any, *options: str) -> tuple[int, dict[str, Any], str]:
    """Run the command against a server; return its exit status, its document and what it printed."""
    with hostile(answer) as server:
        code = run_command("calibrate", app, ["endpoint", server.url, "--no-identify", "--json", "-", *options])
    printed = capsys.readouterr()
    return code, json.loads(printed.out or "{}"), printed.out + printed.err


def test_every_answer_is_measured_and_priced(capsys: Any) -> None:
    tariff = ("--usd-per-million-input", "2", "--usd-per-million-output", "10", "--usd-per-hour", "3.6")
    code, found, _ = measured(sends(STREAM), capsys, "--concurrency", "1,2", "--requests", "4", *tariff)
    assert code == 0
    assert [(level["concurrency"], level["n"], level["n_failed"]) for level in found["levels"]] == [
        (1, 4, 0),
        (2, 6, 0),
    ]
    for level in found["levels"]:
        assert level["output_tokens"] == 2 * level["n"]
        assert level["output_tokens_per_s"] == pytest.approx(level["output_tokens"] / level["duration_s"])
        assert level["requests_per_s"] == pytest.approx(level["n"] / level["duration_s"])
        assert 0 < level["ttft_s"]["p50"] <= level["e2e_s"]["p50"] <= level["e2e_s"]["p99"]
        assert level["usd_per_answer"]["by_token"] == pytest.approx((2.0 * 100 + 10.0 * 2) / 1e6)
        assert level["usd_per_answer"]["by_machine"] == pytest.approx(level["duration_s"] * 0.001 / level["n"])
    assert found["complexity"]["requests"] == 4
    assert found["not_identified"]


def test_a_long_measurement_shows_how_much_of_it_is_done(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.001)
    with hostile(sends(STREAM)) as server:
        levels = ["--concurrency", "2", "--requests", "40", "--no-identify"]
        run_command("calibrate", app, ["endpoint", server.url, *levels])
    lines = capsys.readouterr().err.splitlines()
    done = [re.fullmatch(r"endpoint: (\d+) of 40, requests, 2 at once \(0 s\)", line) for line in lines]
    counts = [int(match[1]) for match in done if match]
    assert counts == sorted(counts)
    assert counts[-1] > 0


def test_a_prompt_comes_back_as_text(capsys: Any) -> None:
    code, found, _ = measured(sends(STREAM), capsys, "--prompt", "Hello", "--concurrency", "1", "--requests", "1")
    assert (code, found["text"]) == (0, "ab")
    with hostile(sends(STREAM)) as server:
        run_command("calibrate", app, ["endpoint", server.url, "--prompt", "Hello", "--no-identify", "--requests", "2"])
    shown = capsys.readouterr().out
    assert "ab" in shown
    assert "price per answer: not known" in shown


def test_each_request_of_a_workload_has_its_length() -> None:
    from catalogs.workloads.workload import load_workload

    plan = MeasuringPlan(workload=load_workload("chat"), seed=3)
    drawn = plan.workload.materialise(seed=3 + 5, n_requests=7)
    prompts = plan.prompts(7, first=5)
    assert [len(p.text.split()) for p in prompts] == drawn.input_tokens.tolist()
    assert [p.output_tokens for p in prompts] == drawn.output_tokens.tolist()
    assert plan.prompts(7, first=5) == prompts


def test_lengths_without_a_workload_separate_both_kinds_of_tokens() -> None:
    import numpy as np

    prompts = MeasuringPlan().prompts(15, first=1)
    columns = np.array([[1, len(p.text.split()), p.output_tokens] for p in prompts])
    assert np.linalg.matrix_rank(columns) == 3
    assert len({(len(p.text.split()), p.output_tokens) for p in prompts}) == 15


def endless(connection: socket.socket) -> None:
    """Stream tokens until the client leaves."""
    connection.sendall(STREAM[: STREAM.index(b"data: ")])
    event = b"data: " + json.dumps(EVENTS[0]).encode() + b"\n\n"
    while True:
        connection.sendall(event)
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (silent, "did not finish its reply"),
        (endless, "did not finish its reply"),
        (sends(b"\x00\xff\x1b[31mnot http\r\n" * 20), "no server answers at this address"),
        (sends(reply(b"<html>", headers=["Content-Type: text/html"])), "does not answer requests.*not JSON"),
        (sends(reply(b"busy", "503 Busy")), "does not answer requests.*answers 503"),
        (sends(reply(b"no", "401 Unauthorized")), "does not accept the key"),
    ],
)
def test_a_server_that_does_not_serve_is_one_line(answer: Answer, says: str, capsys: Any) -> None:
    timeout = "0.4s" if answer in (silent, endless) else "20s"  # the others answer at once
    code, _, printed = measured(answer, capsys, "--timeout", timeout)
    assert code == 2
    assert re.search(says, printed), printed
    assert len(printed.strip().splitlines()) == 1
    assert printed.strip().isprintable()


def test_a_server_that_fails_midway_ends_the_level(capsys: Any) -> None:
    served: list[int] = []

    def answer(connection: socket.socket) -> None:
        served.append(1)
        connection.sendall(STREAM if len(served) < 15 else reply(b"full", "503 Busy"))

    code, found, _ = measured(answer, capsys, "--concurrency", "1,2", "--requests", "50")
    assert code == 1
    assert len(served) < 50
    assert [level["concurrency"] for level in found["levels"]] == [1]
    assert any("answers 503" in reason for reason in found["failures"])
    assert found["levels"][0]["n"] == 50
    assert 0 < found["levels"][0]["n_failed"] < 50
    assert any("ended early" in note for note in found["notes"])


def test_no_key_is_printed(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "sk-very-secret")

    def answer(connection: socket.socket) -> None:
        connection.sendall(reply(b"the key sk-very-secret is unknown", "400 Bad"))

    for url in ("{}", "http://user:pass-word@{}"):
        with hostile(answer) as server:
            address = url.format(server.url if url == "{}" else server.url.removeprefix("http://"))
            options = ["endpoint", address, "--key-env", "THE_KEY", "--no-identify"]
            assert run_command("calibrate", app, options) == 2
            sent = b"".join(server.requests)
        printed = "".join(capsys.readouterr())
        assert b"sk-very-secret" in sent
        assert "sk-very-secret" not in printed
        assert "pass-word" not in printed
        assert "the key *** is unknown" in printed


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--prompt", "a", "--workload", "chat"], "either a prompt or the lengths"),
        (["--prompt", " "], "must not be empty"),
        (["--concurrency", "1,x"], "list of whole numbers"),
        (["--concurrency", "0"], "from 1 to 256"),
        (["--concurrency", "2,2"], "only once"),
        (["--requests", "0"], "1 to 10,000"),
        (["--output-tokens", "0"], "at least one token"),
        (["--timeout", "0s"], "number above zero"),
        (["--limit", "2d"], "at most a day"),
        (["--extra", "[1]"], "JSON object"),
        (["--form", "chats"], "nearest valid choice: chat"),
        (["--usd-per-hour", "-1"], "must not be negative"),
        (["--hw", "h1000"], "h100"),
        (["--engine", "vlm"], "vllm"),
        (["--model", "no-such-model"], "no-such-model"),
        (["--key-env", "NOT_SET"], "holds no key"),
    ],
)
def test_bad_options_are_one_line_and_send_nothing(options: list[str], says: str, capsys: Any) -> None:
    with hostile(sends(STREAM)) as server:
        assert run_command("calibrate", app, ["endpoint", server.url, *options]) == 2
        assert server.requests == []
    assert says in capsys.readouterr().err


def test_the_first_listed_model_is_used_and_another_refused() -> None:
    with hostile(sends(reply(MODELS, headers=["Content-Type: application/json"]))) as server:
        found = connect(EndpointChoice(server.url), 5.0)
        assert found.settings.model == "first"
        assert found.server.url.base == f"{server.url}/v1"
        assert found.on_this_machine
        with pytest.raises(InputError, match="nearest valid choice: second"):
            connect(EndpointChoice(server.url, served="secnd"), 5.0)
        with pytest.raises(InputError, match="nearest valid choice"):
            connect(EndpointChoice(f"{server.url}/v1/chat/completions", served="third"), 5.0)
        assert connect(EndpointChoice(f"{server.url}/p", form="vertex"), 5.0).settings.model is None


def test_vertex_answers_are_measured_without_a_stream(capsys: Any) -> None:
    document = {"predictions": [{"content": "hello", "usage": {"prompt_tokens": 3, "completion_tokens": 4}}]}
    body = reply(json.dumps(document).encode(), headers=["Content-Type: application/json"])
    code, found, _ = measured(
        sends(body), capsys, "--form", "vertex", "--prompt", "Hi", "--requests", "3", "--concurrency", "1"
    )
    assert code == 0
    assert found["text"] == "hello"
    assert found["levels"][0]["ttft_s"] is None
    assert found["levels"][0]["output_tokens"] == 12
    assert any("not streamed" in note for note in found["notes"])
