"""Replies of served models by hand: their times, their token counts, and what is no reply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from calibration.serve.streaming_client import GenerationRequest, RequestForm, generate, visible
from catalogs.errors import InputError
from catalogs.io.http import ReplyError, ServerUrl
from catalogs.io.pinned_connection import PinnedServer, ReplyLimits
from tests.hostile_server import HostileServer, hostile, reply, sends

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def delta(text: str, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, **more}]})


def ask(server: HostileServer, form: RequestForm = "chat", stream: bool = True, **more: Any) -> Any:
    request = GenerationRequest("m", "Hello", 5, form, stream, more)
    return generate(PinnedServer.of(ServerUrl.parse(server.url)), request, "the-key", ReplyLimits(20.0, 2**20))


def sent_body(server: HostileServer) -> Any:
    return json.loads(server.requests[0].partition(b"\r\n\r\n")[2])


def test_a_stream_by_hand() -> None:
    """Three messages 0.1 s apart: the first token, two gaps, and the server's own count of five tokens."""
    usage = {"prompt_tokens": 7, "completion_tokens": 5}
    parts = (HEAD + event({"choices": [{"delta": {"role": "assistant"}}]}), delta("Hel"), delta("lo, "))
    last = delta("world", finish_reason="length") + event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"
    with hostile(sends(*parts, last, pause_s=0.1)) as server:
        found = ask(server, ignore_eos=True)
        body = sent_body(server)
        assert b"POST /chat/completions HTTP/1.1" in server.requests[0]
        assert b"Authorization: Bearer the-key" in server.requests[0]
    assert body["messages"] == [{"role": "user", "content": "Hello"}]
    assert body["max_tokens"] == 5
    assert body["ignore_eos"] is True
    assert found.text == "Hello, world"
    assert (found.input_tokens, found.output_tokens, found.counted_by_server) == (7, 5, True)
    assert found.finish_reason == "length"
    assert found.ttft_s == pytest.approx(0.1, abs=0.09)
    assert found.itl_s == pytest.approx((0.1, 0.1), abs=0.09)
    assert found.e2e_s == pytest.approx(found.ttft_s + sum(found.itl_s))
    assert found.tpot_s == pytest.approx((found.e2e_s - found.ttft_s) / 4)


def test_messages_split_anywhere_are_the_same_text() -> None:
    whole = delta("caf\u00e9 ") + delta("\u2603").replace(b"\n\n", b"\r\n\r\n") + b": comment\n\ndata: [DONE]"
    for cut in range(1, len(whole), 7):
        with hostile(sends(HEAD, whole[:cut], whole[cut:], pause_s=0.002)) as server:
            found = ask(server)
        assert (found.text, found.output_tokens, found.counted_by_server) == ("caf\u00e9 \u2603", 2, False)


def test_the_other_forms() -> None:
    done = {"choices": [{"text": " you", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
    with hostile(sends(reply(json.dumps(done).encode()))) as server:
        found = ask(server, "completions", stream=False)
        assert sent_body(server)["prompt"] == "Hello"
    assert (found.text, found.output_tokens, found.ttft_s, found.itl_s) == (" you", 1, None, ())
    for prediction in ("hi", {"content": "hi"}, {"choices": [{"message": {"content": "hi"}}]}):
        with hostile(sends(reply(json.dumps({"predictions": [prediction]}).encode()))) as server:
            found = ask(server, "vertex")
            assert sent_body(server) == {"instances": [{"prompt": "Hello", "max_tokens": 5}]}
            assert b"POST :predict" in server.requests[0]
        assert (found.text, found.ttft_s) == ("hi", None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"data: {\n\n", "not JSON"),
        (b"data: [1]\n\n", "not a JSON object"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "not JSON"),
        (b"data: [DONE]\n\n", "no text"),
        (b"", "no text"),
        (b"data: " + b"x" * 400_000, "longer than"),
        (event({"error": {"message": "\x1b[31mbusy"}}), r"reports an error: got '\?\[31mbusy'"),
        (event({"choices": "x"}) + event({"choices": [None]}) + event({"choices": [{"delta": 3}]}), "no text"),
        (delta("x" * 1000) * 2000, "larger than 1 MiB"),
    ],
)
def test_what_is_no_stream_is_one_line(body: bytes, says: str) -> None:
    with hostile(sends(HEAD + body)) as server, pytest.raises(InputError, match=says) as caught:
        ask(server)
    assert str(caught.value).isprintable()


def test_a_server_that_does_not_stream_says_so() -> None:
    answer = sends(reply(b'{"choices": []}', headers=["Content-Type: application/json"]))
    with hostile(answer) as server, pytest.raises(ReplyError, match="does not stream"):
        ask(server)


def test_texts_cannot_change_the_screen() -> None:
    assert visible("a\x1b[2J\u202eb\x00\x07\r") == "a\ufffd[2J\ufffdb\ufffd\ufffd\ufffd"
    assert (
        visible("line\n\tnext \u0915\u094d\u200d\u0937 \U0001f600")
        == "line\n\tnext \u0915\u094d\u200d\u0937 \U0001f600"
    )
