"""Connections to a server whose address is checked once and then kept, with one limit on the time and one on the bytes.

A program that connects on behalf of other people must not reach what only its own machine may reach: the metadata
services of clouds, link-local devices, and, unless its operator allows it, the private network. A name is looked up
once; all of its addresses are checked; every connection goes to one of these addresses, so that a name that is looked
up again cannot lead elsewhere. Proxies of the environment are not used, and redirects are not followed.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

from catalogs.errors import InputError
from catalogs.io.http import CHUNK_BYTES, ReplyError, ServerUrl, plain_text

Address = IPv4Address | IPv6Address

#: Addresses of metadata services that are not link-local: AWS (instances, pods), Google Cloud, Alibaba Cloud, Azure and
#: Oracle Cloud, each from the provider's documentation of its metadata service.
METADATA_ADDRESSES: Final = frozenset(
    map(
        ip_address,
        ("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    )
)

#: The prefix under which a network with only IPv6 shows IPv4 addresses (RFC 6052).
_NAT64: Final = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """What one reply may take at most, from the look-up of the name to its last byte."""

    seconds: float = 120.0
    bytes: int = 8 * 2**20


@dataclass(frozen=True, slots=True)
class PinnedServer:
    """A server with the addresses that its name had when they were checked."""

    url: ServerUrl
    host: str
    port: int
    tls: bool
    addresses: tuple[str, ...]

    @classmethod
    def of(cls, url: ServerUrl, private_network: bool = False, timeout_s: float = 10.0) -> PinnedServer:
        """Look up the server of a URL and check all of its addresses.

        Args:
            url: The address of the server.
            private_network: Whether a name may lead to the private network. A URL that states a private or loopback
                address itself, or localhost, may always do so: its author wrote where it leads.
            timeout_s: Limit of the look-up, in seconds.

        Raises:
            InputError: The name is unknown, or one of its addresses must not be used.
        """
        parts = urlsplit(url.base)
        host, tls = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        found = _look_up(host, port, timeout_s)
        local_name = host == "localhost" or host.endswith(".localhost")
        for text in found:
            address = ip_address(text.partition("%")[0])
            check_address(address, host, private_network or _is_literal(host) or (local_name and address.is_loopback))
        return cls(url, host, port, tls, found)


def check_address(address: Address, host: str, private_network: bool) -> None:
    """Check that a connection to an address is allowed.

    Raises:
        InputError: The address is link-local, that of a metadata service, no address of a single machine, or private
            where this is not allowed.
    """
    shown = host if host == str(address) else f"{host} ({address})"
    inner = _embedded(address)
    if inner in METADATA_ADDRESSES or inner.is_link_local:
        raise InputError("link-local addresses and metadata services are never connected to", shown)
    if inner.is_loopback:
        allowed = private_network
    elif inner.is_unspecified or inner.is_multicast or inner.is_reserved:
        raise InputError("this is not the address of a server", shown)
    else:
        allowed = private_network or inner.is_global
    if not allowed:
        hint = "set private_network: true for this endpoint if that is intended"
        raise InputError("the name leads to an address of a private network", shown, hint=hint)


def _embedded(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        return inner or address
    return address


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(host: str, port: int, timeout_s: float) -> tuple[str, ...]:
    """Return the addresses of a name, in the order of the resolver.

    Raises:
        InputError: The name is unknown, or the resolver does not answer in time.
    """
    found: list[str] = []
    problem: list[Exception] = []

    def run() -> None:
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.extend(dict.fromkeys(str(row[4][0]) for row in rows))
        except (OSError, UnicodeError) as error:
            problem.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not found:
        why = plain_text(problem[0]) if problem else f"no answer within {timeout_s:.3g} s"
        nearest = "localhost" if "." not in host else None
        hint = None if nearest else "check its spelling, and that this machine reaches a name server"
        raise InputError(f"the name of the server is unknown ({why})", host, nearest, hint)
    return tuple(found)


class _PinnedConnection(HTTPConnection):
    """A connection to the checked addresses of a server, which another thread can end."""

    def __init__(self, server: PinnedServer, ends_s: float, context: ssl.SSLContext | None) -> None:
        super().__init__(server.host, server.port)
        self._server, self._ends_s, self._context = server, ends_s, context
        self._connected: socket.socket | None = None  # kept while a reply is read, when the base class forgets it
        self.ended = threading.Event()

    def connect(self) -> None:
        """Connect to the first address that answers; a TLS certificate must be valid for the name."""
        for position, address in enumerate(self._server.addresses, 1):
            left_s = self._left_s()
            try:
                self.sock = self._connected = socket.create_connection((address, self.port), left_s)
                break
            except OSError:
                if position == len(self._server.addresses) or self.ended.is_set():
                    raise
        self.sock.settimeout(self._left_s())
        if self._context is not None:
            secured = self._context.wrap_socket(
                self.sock, server_hostname=self._server.host, do_handshake_on_connect=False
            )
            self.sock = self._connected = secured
            secured.do_handshake()

    def end(self) -> None:
        """End the connection: every read that waits returns at once."""
        self.ended.set()
        if self._connected is not None:
            try:
                socket.socket.shutdown(self._connected, socket.SHUT_RDWR)
            except OSError:
                return  # it has already ended

    def _left_s(self) -> float:
        return max(self._ends_s - time.monotonic(), 0.001)


class Reply:
    """A reply with status 200 whose body is read in chunks, with the time at which each chunk arrived."""

    def __init__(self, response: HTTPResponse, most_bytes: int, ended: threading.Event) -> None:
        self._response, self._most_bytes, self._ended = response, most_bytes, ended
        self.content_type = response.headers.get_content_type()

    def chunks(self) -> Iterator[tuple[float, bytes]]:
        """Yield (seconds of the monotonic clock, bytes) until the reply ends.

        Raises:
            InputError: The reply has more bytes than it may have, or ends before its announced length.
        """
        size = 0
        while chunk := self._response.read1(CHUNK_BYTES):
            size += len(chunk)
            if size > self._most_bytes:
                raise InputError(f"the server's reply is larger than {self._most_bytes / 2**20:.3g} MiB")
            yield time.monotonic(), chunk
        if self._response.length and not self._ended.is_set():
            raise InputError(f"the server's reply ends {self._response.length:,} bytes too early")

    def body(self) -> bytes:
        """Return the whole body; see `chunks`."""
        return b"".join(chunk for _, chunk in self.chunks())


@contextmanager
def posted(
    server: PinnedServer,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    limits: ReplyLimits,
    cancelled: threading.Event | None = None,
) -> Iterator[Reply]:
    """Send a POST request to a path below the URL of the server, and give its reply, read within the limits.

    Args:
        server: The server.
        path: The path below the URL, for example "/chat/completions".
        body: The body, JSON.
        headers: Headers of the request in addition to those of every request.
        limits: The limits of the reply.
        cancelled: An event that ends the request when it is set.

    Raises:
        ReplyError: The server answers another status than 200; a redirect is not followed.
        InputError: The server does not answer, or its reply exceeds a limit.
    """
    ends_s = time.monotonic() + limits.seconds
    connection = _PinnedConnection(server, ends_s, ssl.create_default_context() if server.tls else None)
    done = threading.Event()
    guard = threading.Thread(target=_end_in_time, args=(connection, ends_s, done, cancelled), daemon=True)
    guard.start()
    address = plain_text(f"{server.url.base}{path}")
    try:
        target = urlsplit(server.url.base).path + path
        sent = {"Content-Type": "application/json", "Accept-Encoding": "identity", "Connection": "close", **headers}
        connection.request("POST", target, body, sent)
        response = connection.getresponse()
        if response.status != 200:
            raise _status_error(response, address)
        yield Reply(response, limits.bytes, connection.ended)
        if connection.ended.is_set():
            raise _ended_error(limits, cancelled, address)
    except (OSError, HTTPException, ValueError) as error:
        if connection.ended.is_set():
            raise _ended_error(limits, cancelled, address) from None
        if isinstance(error, InputError):
            raise
        if isinstance(error, TimeoutError):
            raise _ended_error(limits, None, address) from None
        why = plain_text(error or type(error).__name__)
        raise InputError(f"the server did not answer properly ({why})", address) from None
    finally:
        done.set()
        connection.close()


def _end_in_time(
    connection: _PinnedConnection, ends_s: float, done: threading.Event, cancelled: threading.Event | None
) -> None:
    """End a connection at its time limit or when it is cancelled, unless it is done before."""
    while not done.wait(min(max(ends_s - time.monotonic(), 0.0), 0.1 if cancelled is not None else 3600.0)):
        if time.monotonic() >= ends_s or (cancelled is not None and cancelled.is_set()):
            connection.end()
            return


def _status_error(response: HTTPResponse, address: str) -> ReplyError:
    """Return the error for another status than 200, with the first words of the server."""
    if 300 <= response.status < 400:
        where = plain_text(response.headers.get("Location", "another address"))
        return ReplyError(f"the server redirects ({response.status}), which is not followed", where)
    words = plain_text(response.read(2000).decode("utf-8", "replace"))
    return ReplyError(f"the server answers {response.status}{f' ({words})' if words else ''}", address)


def _ended_error(limits: ReplyLimits, cancelled: threading.Event | None, address: str) -> InputError:
    if cancelled is not None and cancelled.is_set():
        return InputError("the request was cancelled", address)
    return InputError(f"the server did not finish its reply within {limits.seconds:.3g} s", address)
