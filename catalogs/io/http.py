"""Replies of HTTP servers, read with a limit on time and size, and text of servers made safe to print.

Every request to a server of the user goes through `get_text` or `get_json`: one deadline covers the look-up of the
name, the connection, the headers and the body; redirects are not followed, because they would take a key to another
server; a password in a URL is sent as basic authentication and is never printed.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from catalogs.errors import InputError

#: Seconds within which a server must answer, where the caller states none.
TIMEOUT_S: Final = 10.0

#: Largest answer that is read. A judgement: far above any listing of models, and no danger to memory.
MAX_BYTES: Final = 16 * 2**20

#: Bytes that are read at once.
CHUNK_BYTES: Final = 64 * 2**10

_MAX_TEXT: Final = 200  # characters of a text of a server that are printed


class ReplyError(InputError):
    """The error that a server answers, but with another status than 200 or with another kind of document."""


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """The address of a server, without its last slash and without a password, which is kept apart and not printed."""

    base: str
    authorization: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str, suffixes: tuple[str, ...] = ()) -> ServerUrl:
        """Return the address of an http or https URL; a URL without a scheme is http.

        Args:
            text: The URL, which may contain a user and a password.
            suffixes: Ends of the path that are left out, for example "/metrics".

        Raises:
            InputError: The text is not such a URL.
        """
        printed = without_password(text)
        try:
            parts = urlsplit(text if "//" in text else f"http://{text}")
            port, host = parts.port, parts.hostname
        except ValueError as error:
            raise InputError(f"this is not a URL ({plain_text(error)})", printed, "http://localhost:8000") from None
        if parts.scheme not in ("http", "https") or not host or not text.isprintable() or " " in text:
            raise InputError("an address must be an http or https URL", printed, "http://localhost:8000")
        path = parts.path.rstrip("/")
        for suffix in suffixes:
            path = path.removesuffix(suffix)
        name = f"[{host}]" if ":" in host else host
        base = f"{parts.scheme}://{name}{'' if port is None else f':{port}'}{path}"
        if parts.username is None:
            return cls(base)
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(base, "Basic " + base64.b64encode(pair.encode()).decode())

    def headers(self, key: str | None = None) -> dict[str, str]:
        """Return the headers of a request: a key as a bearer token, else the user and password of the URL."""
        authorization = f"Bearer {key}" if key else self.authorization
        return {"Authorization": authorization} if authorization else {}


def without_password(url: str) -> str:
    """Return a URL for printing: its user part and every password, key or token in its query are replaced."""
    found = re.sub(
        r"^((?:[^/?#@]*//)?).*@", r"\1***@", url, flags=re.DOTALL
    )  # up to the last @: a password may hold any
    return re.sub(r"([?&][^=&]*(?:pass|token|key|secret)[^=&]*)=[^&#]*", r"\1=***", found, flags=re.IGNORECASE)


def without_secrets(message: str, url: str) -> str:
    """Return a message of another program without the URL that it may quote, in whole or in part."""
    user, at, _ = url.partition("//")[2].rpartition("@")
    _, _, password = user.partition(":")
    for secret in (url, f"{user}{at}" if at else "", password, unquote(password)):
        message = message.replace(secret, "***") if secret else message
    return message


def plain_text(text: object, most: int = _MAX_TEXT) -> str:
    """Return a text of another program for printing: one line of at most `most` printable characters."""
    whole = str(text)
    line = "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in whole[: 4 * most])
    line = " ".join(line.split())
    return line if len(line) <= most and len(whole) <= 4 * most else f"{line[: most - 3]}..."


def get_text(address: str, headers: Mapping[str, str] | None = None, timeout_s: float | None = None) -> str:
    """Return the body of a reply with status 200, as UTF-8 in which invalid bytes are replaced.

    The timeout is TIMEOUT_S if none is given.

    Raises:
        ReplyError: The server answers another status.
        InputError: The server does not answer, or its reply takes longer than `timeout_s` seconds or has more than
            MAX_BYTES bytes.
    """
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    reader = _Reader(Request(address, headers={"Accept": "*/*", **(headers or {})}), time.monotonic() + timeout_s)
    thread = threading.Thread(target=reader.run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    printed = plain_text(without_password(address))
    if reader.status is not None:
        raise ReplyError(f"the server answers {reader.status}", printed)
    if reader.problem is not None:
        raise InputError(reader.problem, printed, hint=reader.hint)
    if reader.body is None:
        reader.cancelled.set()
        raise InputError(f"the server did not finish its reply within {timeout_s:.2g} s", printed)
    return reader.body.decode("utf-8", "replace")


def get_json(address: str, headers: Mapping[str, str] | None = None, timeout_s: float | None = None) -> Any:
    """Return the JSON document of a reply.

    Raises:
        ReplyError: The server answers another status, or its reply is not JSON.
        InputError: As `get_text`.
    """
    text = get_text(address, headers, timeout_s)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else plain_text(error)
        raise ReplyError(f"the server's reply is not JSON ({why})", plain_text(without_password(address))) from None


class _NoRedirects(HTTPRedirectHandler):
    """Turns a redirect into its status."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Return no request for the new address, so that the reply is the redirect itself."""


class _Reader:
    """Reads one reply in a thread, so that no phase of it can exceed the deadline of the caller."""

    def __init__(self, request: Request, ends_s: float) -> None:
        self._request, self._ends_s = request, ends_s
        self.body: bytes | None = None
        self.problem: str | None = None
        self.hint: str | None = None
        self.status: int | None = None
        self.cancelled = threading.Event()

    def run(self) -> None:
        """Read the reply into `body`, or describe the problem."""
        try:
            self.body = self._read()
        except InputError as error:
            self.problem = error.rule
        except HTTPError as error:
            self.status = error.code
            error.close()
        except (OSError, HTTPException, ValueError) as error:
            if time.monotonic() >= self._ends_s:
                return  # the time is over: that is the problem, however the connection reports it
            reason = plain_text(getattr(error, "reason", None) or error or type(error).__name__)
            self.problem = f"no server answers at this address ({reason})"
            self.hint = "check the host and the port, and that the server runs there"

    def _read(self) -> bytes:
        chunks, size = [], 0
        left_s = max(self._ends_s - time.monotonic(), 0.1)
        with build_opener(_NoRedirects()).open(self._request, timeout=left_s) as answer:
            while chunk := answer.read1(CHUNK_BYTES):
                size += len(chunk)
                if size > MAX_BYTES:
                    raise InputError(f"the server's reply is larger than {MAX_BYTES / 2**20:.0f} MiB")
                if self.cancelled.is_set() or time.monotonic() > self._ends_s:
                    raise InputError("the server did not finish its reply in time")
                chunks.append(chunk)
            if answer.length:  # bytes that the server announced; read1 reports no early end
                raise InputError(f"the server's reply ends {answer.length:,} bytes too early")
        return b"".join(chunks)
