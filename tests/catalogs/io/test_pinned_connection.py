"""What a program must not connect to on behalf of others, and replies that exceed their limits."""

from __future__ import annotations

import socket
import threading
import time
from ipaddress import ip_address
from typing import Any

import pytest

from catalogs.errors import InputError
from catalogs.io.http import ReplyError, ServerUrl
from catalogs.io.pinned_connection import PinnedServer, ReplyLimits, check_address, posted
from tests.hostile_server import hostile, reply, sends, silent

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

#: Seconds that a machine under load may add to a deadline.
SLACK_S = 20.0


def pinned(url: str, **more: Any) -> PinnedServer:
    return PinnedServer.of(ServerUrl.parse(url), **more)


def body_of(url: str, **limits: Any) -> bytes:
    with posted(pinned(url), "/x", b"{}", {}, ReplyLimits(**limits)) as found:
        return found.body()


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254", "169.254.170.2", "169.254.0.1", "fe80::1", "fd00:ec2::254", "fd20:ce::254",
        "100.100.100.200", "168.63.129.16", "192.0.0.192", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "240.0.0.1", "255.255.255.255",
    ],
)  # fmt: skip
def test_no_setting_allows_metadata_services_or_addresses_of_no_machine(address: str) -> None:
    for private in (False, True):
        with pytest.raises(InputError):
            check_address(ip_address(address), "name.example", private)
    url = f"http://[{address}]/" if ":" in address else f"http://{address}/"
    with pytest.raises(InputError):
        pinned(url, private_network=True)


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "192.168.1.1", "172.16.0.1", "127.0.0.1", "::1", "fd12::1", "100.64.0.1", "::ffff:10.0.0.1"]
)
def test_a_name_leads_to_a_private_network_only_if_the_operator_allows_it(address: str) -> None:
    check_address(ip_address(address), "name.example", True)
    with pytest.raises(InputError, match="private_network: true"):
        check_address(ip_address(address), "name.example", False)


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_allowed(address: str) -> None:
    check_address(ip_address(address), "name.example", False)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Addresses by name in place of the resolver's; a name with several rounds gives the next one at each look-up."""
    table: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def resolve(host: str, port: int, *args: Any, **more: Any) -> Any:
        if host not in table:
            return real(host, port, *args, **more)
        rounds = table[host]
        now = rounds.pop(0) if len(rounds) > 1 else rounds[0]
        return [row for text in now.split() for row in real(text, port, *args, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return table


def test_one_bad_address_of_a_name_refuses_the_name(names: dict[str, list[str]]) -> None:
    names["mixed.example"] = ["8.8.8.8 169.254.169.254"]
    with pytest.raises(InputError, match=r"mixed\.example \(169\.254\.169\.254\)"):
        pinned("http://mixed.example/")
    names["localhost"] = ["10.0.0.1"]
    with pytest.raises(InputError, match="private network"):
        pinned("http://localhost/")


def test_a_name_that_changes_after_the_check_leads_nowhere_else(names: dict[str, list[str]]) -> None:
    with hostile(sends(reply(b"inner"))) as inner:
        names["turns.example"] = ["203.0.113.9", "127.0.0.1"]  # a documentation range: nothing answers there
        with pytest.raises(InputError, match=r"private network"):
            pinned(f"http://turns.example:{inner.port}/")
        names["turns.example"] = ["192.0.2.1", "127.0.0.1"]
        server = PinnedServer(
            ServerUrl.parse("http://turns.example"), "turns.example", inner.port, False, ("127.0.0.2",)
        )
        with pytest.raises(InputError), posted(server, "/x", b"", {}, ReplyLimits(seconds=0.5)) as found:
            found.body()
        assert names["turns.example"] == ["192.0.2.1", "127.0.0.1"]  # it was not looked up again
        assert not inner.requests


@pytest.mark.parametrize(
    ("url", "advice"),
    [("http://does-not-exist.invalid/", "hint: check its spelling"), ("notaurl", "nearest valid choice: localhost")],
)
def test_an_unknown_name_is_one_line(url: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(InputError, match=f"name of the server is unknown .*; {advice}"):
        pinned(url)


def test_a_proxy_of_the_environment_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile(sends(reply(b"proxy"))) as proxy, hostile(sends(reply(b"server"))) as server:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert body_of(server.url) == b"server"
        assert not proxy.requests


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_a_redirect_is_not_followed(status: str) -> None:
    with hostile(sends(reply(b"{}"))) as other:
        moved = reply(b"", status, [f"Location: {other.url}/"])
        with hostile(sends(moved)) as server, pytest.raises(ReplyError, match="redirects"):
            body_of(server.url)
        assert not other.requests


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (silent, "did not finish its reply within 0.6 s"),
        (sends(HEAD, b"x", pause_s=0.05, forever=True), "did not finish its reply"),
        (
            sends(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", pause_s=0.01, forever=True),
            "did not finish|did not answer properly",
        ),
        (sends(b"HTTP/1.1 200 OK\r\nX: ", b"y", pause_s=0.05, forever=True), "did not finish its reply"),
        (sends(HEAD, b"x" * 2**20, forever=True), "larger than 4 MiB"),
        (sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx"), "bytes too early"),
        (sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx"), "did not answer properly"),
        (sends(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n"), "did not answer properly"),
        (sends(b"\x1b[2Jpwned\x00\r\n\r\n"), "did not answer properly"),
        (sends(b""), "did not answer properly"),
        (sends(reply(b"\x1b[31mred\x07", "500 Oops")), r"answers 500 \(\?\[31mred\?\)"),
    ],
)
def test_hostile_replies_are_one_line_within_the_limits(answer: Any, says: str) -> None:
    began = time.monotonic()
    with hostile(answer) as server, pytest.raises(InputError, match=says) as caught:
        body_of(server.url, seconds=0.6 if "did not finish" in says else 30.0, bytes=4 * 2**20)
    assert time.monotonic() - began < 0.6 + SLACK_S
    assert str(caught.value).isprintable()


def test_a_server_that_never_ends_its_tls_greeting_is_left_in_time() -> None:
    with hostile(silent) as server, pytest.raises(InputError):
        body_of(server.url.replace("http://", "https://"), seconds=0.5)


def test_a_cancelled_request_ends_at_once() -> None:
    cancelled = threading.Event()
    threading.Timer(0.2, cancelled.set).start()
    began = time.monotonic()
    with hostile(silent) as server, pytest.raises(InputError, match="cancelled"):
        send_until(cancelled, server.url)
    assert time.monotonic() - began < SLACK_S


def send_until(cancelled: threading.Event, url: str) -> None:
    with posted(pinned(url), "/x", b"{}", {}, ReplyLimits(seconds=60.0), cancelled) as found:
        found.body()
