"""Replies of hostile servers: one line within the deadline and a bounded size; no password is printed or passed on."""

from __future__ import annotations

import json
import socket
import time
import tracemalloc

import pytest

from catalogs.errors import InputError
from catalogs.io import http
from catalogs.io.http import ServerUrl, get_json, get_text, plain_text, without_password, without_secrets
from tests.hostile_server import hostile, reply, sends, silent

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"

#: Seconds that a machine under load may add to a deadline.
SLACK_S = 20.0


def test_a_whole_reply_is_read() -> None:
    with hostile(sends(reply('{"a": "\u00e9"}'.encode()))) as server:
        assert get_json(server.url) == {"a": "\u00e9"}
    with hostile(sends(reply(b"a\xffb"))) as server:
        assert get_text(server.url) == "a\ufffdb"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (silent, "did not finish its reply|no server answers"),
        (sends(HEAD, b"x", pause_s=0.05, forever=True), "did not finish its reply"),
        (sends(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", pause_s=0.05, forever=True), "did not finish its reply|no server"),
        (sends(b"HTTP/1.1 200 OK\r\nX: ", b"y", pause_s=0.05, forever=True), "did not finish its reply"),
        (sends(HEAD, b"x" * 2**20, forever=True), "larger than 16 MiB"),
        (sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx"), "bytes too early"),
        (sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx"), "no server answers"),
        (sends(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n"), "no server answers"),
        (sends(b"\x1b[2Jpwned\x00\r\n\r\n"), "no server answers"),
        (sends(b""), "no server answers"),
        (sends(reply(b"", "500 \x1b[31mred\x07")), "the server answers 500"),
        (sends(reply(b"", "302 Found", ["Location: http://127.0.0.1:9/x"])), "the server answers 302"),
        (sends(reply(b"", "302 Found", ["Location: file:///etc/passwd"])), "the server answers 302"),
    ],
)
def test_hostile_replies_are_one_line_within_the_deadline(answer, says: str) -> None:
    began = time.monotonic()
    with hostile(answer) as server, pytest.raises(InputError, match=says) as caught:
        get_text(server.url, timeout_s=0.6)
    assert time.monotonic() - began < 0.6 + SLACK_S
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("body", [b"", b"{", b"\x00", b"[" * 200_000, b"1" * 5_000, b"\xff\xfe{}"])
def test_what_is_not_json_is_one_line(body: bytes) -> None:
    with hostile(sends(reply(body))) as server, pytest.raises(InputError, match="not JSON") as caught:
        get_json(server.url)
    assert str(caught.value).isprintable()


def test_an_endless_reply_needs_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BYTES", 2**20)
    tracemalloc.start()
    with hostile(sends(HEAD, b"x" * 2**18, forever=True)) as server, pytest.raises(InputError, match="larger than"):
        get_text(server.url)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 * 2**20


def test_a_key_is_not_taken_to_another_server() -> None:
    with hostile(sends(reply(b"{}"))) as other:
        moved = reply(b"", "307 Temporary Redirect", [f"Location: {other.url}/"])
        with hostile(sends(moved)) as server, pytest.raises(InputError, match="307"):
            get_text(server.url, ServerUrl.parse(server.url).headers("the-key"))
        assert b"Bearer the-key" in server.requests[0]
        assert not other.requests


@pytest.mark.parametrize(
    "text",
    [
        "", "http://", "ftp://x", "file:///etc/passwd", "http://h:port", "http://h:99999999", "http://[::1", "//",
        "http://h\r\nX: y", "http://h/a b", "http://h\x00", "h\x1b[2J", "javascript:alert(1)", "http://:80",
    ],
)  # fmt: skip
def test_what_is_no_address_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match="URL") as caught:
        ServerUrl.parse(text)
    assert str(caught.value).isprintable()


def test_addresses() -> None:
    assert ServerUrl.parse("h:9090/").base == "http://h:9090"
    assert ServerUrl.parse("https://[::1]:8000/x/metrics", ("/metrics",)).base == "https://[::1]:8000/x"
    found = ServerUrl.parse("http://user:p%40ss@h:1")
    assert found.base == "http://h:1"
    assert found.headers() == {"Authorization": "Basic dXNlcjpwQHNz"}
    assert found.headers("key") == {"Authorization": "Bearer key"}
    assert "p@ss" not in repr(found)
    assert "dXNl" not in repr(found)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:SECRET@h:1/x", "user:SECRET@h", "http://SECRET@h", "http://:SECRET@h", "http://u:SEC/RET@h",
        "http://u:a@SECRET@h", "postgresql://u:SECRET@h/d", "http://h/?token=SECRET&x=1", "http://h/?api_key=SECRET",
        "postgresql://h/d?user=u&password=SECRET", "http://u:SECRET@h:port/",
    ],
)  # fmt: skip
def test_no_part_of_a_password_is_printed(url: str) -> None:
    for text in (without_password(url), *(str(error) for error in _refusals(url))):
        assert not any(part in text for part in ("SECRET", "SEC/", "RET@"))


def _refusals(url: str) -> list[InputError]:
    found = []
    try:
        server = ServerUrl.parse(url)
        get_text(server.base, server.headers(), timeout_s=0.2)
    except InputError as error:
        found.append(error)
    return found


def test_messages_that_quote_an_address_lose_its_password() -> None:
    url = "postgresql://u:p%40w@h/d"
    for message in (f"Could not parse {url}", "password 'p%40w' refused", "password p@w refused"):
        assert "p%40w" not in without_secrets(message, url)
        assert "p@w" not in without_secrets(message, url)
    assert without_secrets("no secret", "sqlite:///s.db") == "no secret"


def test_texts_of_servers_are_one_short_line() -> None:
    assert plain_text("a\nb\x1b[2J\u202e c") == "a b?[2J? c"
    assert len(plain_text("x" * 10_000_000)) == 200
    assert plain_text(json.loads('"\\ud800"')) == "?"


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(InputError, match=r"no server answers.*; hint: check the host and the port"):
        get_text(f"http://127.0.0.1:{port}")
