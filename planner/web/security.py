"""What every request must fulfil before a handler sees it, and the headers of every response.

The rules hold against other web pages in the user's browser: a page whose name leads to this machine (DNS rebinding)
fails on its Host header, and a page that sends a request to this server (CSRF) fails on its Origin. A server that other
machines reach has a token besides.
"""

from __future__ import annotations

import hashlib
import hmac
import html
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from catalogs.units import MIB
from planner.web.problems import problem
from planner.web.settings import ServerSettings

#: Largest body of a request that is not an upload, bytes.
MOST_BODY: Final = 4 * MIB

#: Bytes of a multipart body beyond its file.
_MULTIPART_EXTRA: Final = 64 * 1024

UPLOADS: Final = "/api/v1/uploads"

LOGIN: Final = "/login"

#: End of the addresses of server-sent events.
EVENTS: Final = "/events"

COOKIE: Final = "planner_session"

#: Seconds for which a login lasts: thirty days.
_COOKIE_AGE_S: Final = 30 * 86400

#: Addresses that need no token: they show no data.
_OPEN: Final = ("/healthz", "/readyz")

_SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")

_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")

#: The charts put an empty style element into the page and add rules to it by script; the hash is that of no text.
_EMPTY_STYLE: Final = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"

POLICY: Final = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {_EMPTY_STYLE}; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
    "Cache-Control": "no-cache",
}

_TOO_LARGE: Final = "the body of this request is larger than {:,} bytes"

_LOGIN_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Sign in · LLM capacity planner</title>
<link rel="stylesheet" href="/static/css/site.css"></head>
<body><main id="content"><h1>Sign in</h1><p>This server requires a token. Ask its operator for it.</p>
{note}<form method="post" action="/login">
<input type="hidden" name="next" value="{next}">
<p><label>Token <input type="password" name="token" autocomplete="current-password" required autofocus></label></p>
<p><button type="submit">Sign in</button></p></form></main></body></html>
"""


def _without_body(send: Send) -> Send:
    """Return a `send` that leaves the bodies of responses out: a response to HEAD has only the headers of GET."""

    async def send_head(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return send_head


class Guard:
    """An ASGI middleware that refuses requests which break a rule, and adds the headers of every response."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, token: str | None) -> None:
        self._app = app
        self._hosts = frozenset(name.lower() for name in (*_LOCAL_NAMES, settings.host, *settings.file.hosts))
        self._token = token
        self._session = None if token is None else hmac.new(token.encode(), b"session", hashlib.sha256).hexdigest()
        self._most_upload = settings.file.max_upload_mib * MIB + _MULTIPART_EXTRA

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        respond: Send = send_with_headers
        refusal = self._refusal(scope)
        if scope["method"] == "HEAD" and not scope["path"].endswith(EVENTS):  # events would only end with their job
            scope, respond = {**scope, "method": "GET"}, _without_body(respond)
        if refusal is not None:
            await refusal(scope, receive, respond)
        elif self._token is not None and scope["path"] == LOGIN:
            await (await self._log_in(scope, receive))(scope, receive, respond)
        else:
            await self._run(scope, receive, respond)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, which gets no more of the body than the limit allows."""
        most, size = self._most_body(scope), 0

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise HTTPException(413, _TOO_LARGE.format(most), {"Connection": "close"})
            return message

        await self._app(scope, receive_limited, send)

    def _most_body(self, scope: Scope) -> int:
        return self._most_upload if scope["path"] == UPLOADS else MOST_BODY

    @staticmethod
    def _too_large(most: int) -> Response:
        response = problem(413, "Too large", _TOO_LARGE.format(most))
        response.headers["Connection"] = "close"
        return response

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the response to a request that breaks a rule; None if it breaks none."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.knows_host(hosts[0]):
            hint = "add the name to `hosts` in the file of --settings"
            return problem(400, "Unknown host", "the Host header names another server", hint=hint)
        if scope["method"] not in _SAFE_METHODS and not _same_origin(headers, hosts[0]):
            return problem(403, "Another origin", "a page of another origin may not change anything here")
        length = headers.get("content-length", "0")
        most = self._most_body(scope)
        if not length.isdigit() or int(length[:20]) > most:
            return self._too_large(most)
        if self._token is None or self._may_pass(scope, headers):
            return None
        if scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            return self._form(scope["path"], 401)
        response = problem(401, "A token is needed", "send the token as Authorization: Bearer TOKEN")
        response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def knows_host(self, host: str) -> bool:
        """Return whether a Host header names this server."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        return name in self._hosts and not any(character in host for character in "@/?#\\ ")

    # ---- the token

    def _may_pass(self, scope: Scope, headers: Headers) -> bool:
        """Return whether a request has the token, or needs none."""
        path = str(scope["path"])
        if path in _OPEN or path == LOGIN or path.startswith("/static/"):
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(given.strip(), str(self._token)):
            return True
        return _equal(_cookie(headers), str(self._session))

    def _form(self, next_: str, status: int, note: str = "") -> Response:
        return HTMLResponse(_LOGIN_PAGE.format(next=html.escape(_here(next_)), note=note), status)

    async def _log_in(self, scope: Scope, receive: Receive) -> Response:
        """Return the form, or a cookie in exchange for the token."""
        if scope["method"] in ("GET", "HEAD"):
            return self._form("/", 200)
        if scope["method"] != "POST":
            return problem(405, "Method not allowed", "send the token with POST")
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > MOST_BODY:
                return self._too_large(MOST_BODY)
            if not message.get("more_body"):
                break
        fields = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        next_ = fields.get("next", "/")
        if not _equal(fields.get("token", "").strip(), str(self._token)):
            return self._form(next_, 401, '<p role="alert">This is not the token of this server.</p>')
        response = RedirectResponse(_here(next_), 303)
        secure = scope.get("scheme") == "https"
        response.set_cookie(
            COOKIE, str(self._session), _COOKIE_AGE_S, httponly=True, samesite="strict", secure=secure, path="/"
        )
        return response


def _here(path: str) -> str:
    """Return a path of this server; the first page for anything that leads elsewhere."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _same_origin(headers: Mapping[str, str], host: str) -> bool:
    """Return whether a request that changes something comes from a page of this server, or from no page at all.

    Browsers state the origin of such requests; other programs need not.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    if origin is None:
        return True
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    return found.scheme in ("http", "https") and found.netloc.lower() == host.lower()
