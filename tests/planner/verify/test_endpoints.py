"""`plan drift` against hostile servers: one line, exit status 2, within the timeouts, and no password in any output."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from catalogs.errors import InputError
from catalogs.io import http
from catalogs.ui.entry_point import run_command
from planner.cli.main import app
from planner.verify import prometheus
from planner.verify.prometheus import observe_server, parse
from tests.hostile_server import hostile, reply, sends, silent
from tests.planner.report.test_plan_report import data

GOOD = """# TYPE vllm:request_success_total counter
vllm:request_success_total{model_name="m"} 40
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 10
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 40
vllm:time_to_first_token_seconds_sum{model_name="m"} 8.5
vllm:time_to_first_token_seconds_count{model_name="m"} 40
"""


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 0.6)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (silent, "did not finish"),
        (sends(b"HTTP/1.1 200 OK\r\n\r\n", b"vllm:x 1\n", pause_s=0.05, forever=True), "did not finish"),
        (sends(b"HTTP/1.1 200 OK\r\n\r\n", b"vllm:x 1\n" * 100_000, forever=True), "larger than"),
        (sends(reply(b"vllm:x 1\n" * 100_001)), "more than 100,000 samples"),
        (sends(reply(b'vllm:x{a="\x1b[2J"} \x00')), "no Prometheus metrics"),
        (sends(reply(b"", "401 SECRET")), "answers 401"),
        (sends(reply(b"up 1\n")), "neither a vLLM server nor"),
        (sends(reply(GOOD.replace("} 40", "} NaN", 1).encode())), "not a count"),
        (sends(reply(GOOD.replace("} 10", "} -1", 1).encode())), "not a count"),
        (sends(reply(GOOD.replace('le="0.1"', 'le="x"').encode())), "no number as its bound"),
    ],
)
def test_hostile_metrics_are_one_line(answer, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(data()))
    began = time.monotonic()
    with hostile(answer) as server:
        url = server.url.replace("//", "//user:SECRET@")
        assert run_command("plan", app, ["drift", str(plan), "--prometheus", url, "--seconds", "1"]) == 2
        assert b"Authorization: Basic" in server.requests[0]
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err
    assert "SECRET" not in err
    assert err.strip().isprintable()
    assert time.monotonic() - began < 120.0


def test_a_histogram_without_its_last_bucket_is_refused() -> None:
    page = parse(GOOD.replace('le="+Inf"', 'le="9"'), "x")
    with pytest.raises(InputError, match="no bucket for"):
        prometheus.Interval(prometheus.Exposition(), page, 1.0).histogram("ttft")


@pytest.mark.parametrize(
    "document",
    [
        [], 1, None, {"data": {}}, {"data": {"result": [{}]}}, {"data": {"result": [{"metric": 1}]}},
        {"data": {"result": [{"metric": {"__name__": "vllm:request_success_total"}, "value": [0]}]}},
        {"data": {"result": [{"metric": {"__name__": "vllm:request_success_total"}, "value": [0, "x"]}]}},
        {"data": {"result": [{"metric": {"__name__": "vllm:request_success_total"}, "value": [0, "NaN"]}]}},
        {"data": {"result": [{"metric": {"__name__": f"vllm:{i}"}} for i in range(10_000)]}},
    ],
)  # fmt: skip
def test_hostile_queries_are_one_line(document: object) -> None:
    """The first reply is Prometheus's own metrics, so that its interface is queried."""
    replies = iter([reply(b"up 1\n"), *[reply(json.dumps(document).encode())] * 100])
    with hostile(lambda connection: connection.sendall(next(replies))) as server:
        with pytest.raises(InputError) as caught:
            observe_server(server.url, 0.01, "m")
        assert len(server.requests) <= 3
    assert str(caught.value).isprintable()


def test_all_queries_together_have_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_QUERIES_S", 1.0)
    names = [{"metric": {"__name__": name}, "value": [0, "1"]} for name in prometheus.COUNTERS["requests"]]
    slow = json.dumps({"data": {"result": names}}).encode()
    replies = iter([reply(b"up 1\n"), *[reply(slow)] * 100])

    def answer(connection) -> None:
        time.sleep(0.55)
        connection.sendall(next(replies))

    with hostile(answer) as server, pytest.raises(InputError, match="did not answer all queries"):
        observe_server(server.url, 0.01, "m")


def mutated(random_: random.Random, body: bytes) -> bytes:
    """Return a body with some bytes replaced, repeated, cut or swapped for values that break parsers."""
    nasty = [
        b"NaN",
        b"+Inf",
        b"1e999",
        b"-1",
        b"\x00",
        b"\xff",
        b'"',
        b"{",
        b"}",
        b"\n",
        b"\r",
        b"\xe2\x80\xa8",
        b"le=",
    ]
    found = bytearray(body)
    for _ in range(random_.randint(1, 6)):
        at = random_.randrange(len(found) or 1)
        kind = random_.randrange(4)
        if kind == 0:
            found[at : at + random_.randint(0, 4)] = random_.choice(nasty)
        elif kind == 1:
            found[at : at + 1] = bytes([random_.randrange(256)])
        elif kind == 2:
            del found[at : at + random_.randint(1, 30)]
        else:
            found[at:at] = found[at : at + random_.randint(1, 30)] * random_.randint(1, 50)
    return bytes(found)


def read_mutated(seed: int) -> None:
    """Read one mutated reply: it is either refused in one printable line, or gives finite counts."""
    text = mutated(random.Random(seed), GOOD.encode()).decode("utf-8", "replace")
    refusal = ""
    try:
        page = parse(text, "x")
        seen = prometheus.Interval(prometheus.Exposition(), page, 1.0)
        histogram = seen.histogram("ttft")
        assert seen.counted("requests") >= 0
        assert histogram.n >= 0
        assert all(a <= b for a, b in zip(histogram.counts, histogram.counts[1:], strict=False))
        assert all(name.isprintable() for name in seen.models)
    except InputError as error:
        refusal = str(error)
    assert refusal.isprintable()


def test_mutated_metrics_are_read_or_refused() -> None:
    for seed in range(500):
        read_mutated(seed)


@pytest.mark.slow
def test_many_mutated_metrics_are_read_or_refused() -> None:
    for seed in range(1_000, 201_000):
        read_mutated(seed)


@pytest.mark.slow
def test_many_mutated_replies_are_read_or_refused_over_a_connection() -> None:
    """Headers and body are mutated; each of the 2,000 replies ends within its timeout."""
    for seed in range(2_000):
        whole, refusal = mutated(random.Random(seed), reply(GOOD.encode())), ""
        with hostile(sends(whole)) as server:
            try:
                observe_server(server.url, 0.01, "m")
            except InputError as error:
                refusal = str(error)
        assert refusal.isprintable()
