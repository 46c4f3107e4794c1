"""The Model Context Protocol: answers the messages of one client with the tools of the planner.

Messages are JSON-RPC 2.0, one on each line. Two generations of the protocol are served in one process, as its revision
2026-07-28 allows (basic/versioning): requests that carry their own version are answered without a session, and clients
of earlier revisions open a session with `initialize`. Tools run in threads, so that a client can cancel a call or ask
for something else meanwhile. Nothing but messages is written to stdout.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, BinaryIO, Final

from catalogs.errors import InputError
from catalogs.io.output_files import finite
from catalogs.ui.installation import own_version
from planner.web.mcp.tools import TOOLS, RunningCommand, tool

#: The revision without sessions, and those with a session, newest first.
STATELESS: Final = "2026-07-28"

WITH_SESSION: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

#: Codes of JSON-RPC errors, and that of an unsupported protocol version.
PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603

#: Code of the error for an unsupported protocol version.
UNSUPPORTED_VERSION: Final = -32022

#: Key of a request's metadata that states its protocol version; a request without it belongs to a session.
_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"

#: How long a client may keep the list of tools, milliseconds.
_LIST_TTL_MS: Final = 3_600_000

#: Calls that run at once.
_CALLS: Final = 4

_INSTRUCTIONS: Final = (
    "Plans deployments of language models on rented or owned accelerators. `guess` answers at once; `plan` simulates: "
    "base decisions on it. `models` and `hardware` list valid names. Times are seconds, sizes bytes, money US "
    "dollars. State the dates of prices and the probabilities of objectives when you report a plan."
)


class ProtocolError(Exception):
    """A request that the protocol refuses: its code, a message, and data about it."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class ProtocolServer:
    """Answers the messages of one client."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lock = Lock()
        self._calls = ThreadPoolExecutor(_CALLS, thread_name_prefix="tool")
        self._running: dict[str | int, RunningCommand] = {}
        self._methods: dict[str, Callable[[dict[str, Any], bool], dict[str, Any]]] = {
            "initialize": _initialize,
            "server/discover": _discover,
            "ping": lambda _params, _stateless: {},
            "tools/list": _list_tools,
        }

    def serve(self, lines: BinaryIO) -> None:
        """Answer every line until the client closes its end; calls that still run are completed."""
        for line in lines:
            if line.strip():
                self.receive(line)
        self._calls.shutdown(wait=True)

    def stop(self) -> None:
        """End every running call and the process."""
        for running in list(self._running.values()):
            running.cancel()
        os._exit(128 + signal.SIGTERM)

    def receive(self, line: bytes) -> None:
        """Answer one message; a call of a tool is answered later."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._fail(None, ProtocolError(PARSE_ERROR, "the line is not JSON"))
            return
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            self._fail(None, ProtocolError(INVALID_REQUEST, "a message is one JSON-RPC 2.0 object"))
            return
        method, params, id_ = message.get("method"), message.get("params", {}), message.get("id")
        if method is None and ("result" in message or "error" in message):
            return  # a response: this server sends no requests
        if "id" not in message:
            self._notified(method, params)
            return
        try:
            if not isinstance(id_, str | int) or isinstance(id_, bool):
                raise ProtocolError(INVALID_REQUEST, "an id is a string or a whole number")
            if not isinstance(method, str) or not isinstance(params, dict):
                raise ProtocolError(INVALID_REQUEST, "a request has a method and an object of parameters")
            self._request(id_, method, params)
        except ProtocolError as error:
            self._fail(id_ if isinstance(id_, str | int) else None, error)

    def _request(self, id_: str | int, method: str, params: dict[str, Any]) -> None:
        stateless = _is_stateless(params)
        if method == "tools/call":
            self._call(id_, params, stateless)
        elif method in self._methods:
            self._reply(id_, self._methods[method](params, stateless), stateless)
        else:
            raise ProtocolError(UNKNOWN_METHOD, f"unknown method: {method[:100]}")

    def _notified(self, method: object, params: object) -> None:
        if method == "notifications/cancelled" and isinstance(params, dict):
            id_ = params.get("requestId")
            running = self._running.pop(id_, None) if isinstance(id_, str | int) else None
            if running is not None:
                running.cancel()

    def _call(self, id_: str | int, params: dict[str, Any], stateless: bool) -> None:
        name, arguments = params.get("name"), params.get("arguments") or {}
        found = tool(name) if isinstance(name, str) else None
        if found is None:
            raise ProtocolError(INVALID_PARAMS, f"unknown tool: {str(name)[:100]}")
        if not isinstance(arguments, dict):
            raise ProtocolError(INVALID_PARAMS, "the arguments of a tool are an object")
        if id_ in self._running:
            raise ProtocolError(INVALID_REQUEST, "a request with this id is running")
        running = self._running[id_] = RunningCommand()

        def answer() -> None:
            try:
                result = _tool_result(found.call(arguments, running))
            except InputError as error:
                result = {"content": [{"type": "text", "text": str(error)}], "isError": True}
            except Exception as error:
                result = {"content": [{"type": "text", "text": f"internal error: {error!r}"}], "isError": True}
            if self._running.pop(id_, None) is not None:  # a cancelled call has no response
                self._reply(id_, result, stateless)

        self._calls.submit(answer)

    def _reply(self, id_: str | int, result: dict[str, Any], stateless: bool) -> None:
        kind = {"resultType": "complete"} if stateless else {}
        self._send({"jsonrpc": "2.0", "id": id_, "result": kind | result})

    def _fail(self, id_: str | int | None, error: ProtocolError) -> None:
        found: dict[str, Any] = {"code": error.code, "message": str(error)}
        if error.data is not None:
            found["data"] = error.data
        self._send({"jsonrpc": "2.0", "id": id_, "error": found})

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(finite(message), allow_nan=False, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            self._out.write(line)
            self._out.flush()


def _is_stateless(params: dict[str, Any]) -> bool:
    """Return whether a request states its own protocol version.

    Raises:
        ProtocolError: The version is not supported.
    """
    meta = params.get("_meta")
    version = meta.get(_VERSION_KEY) if isinstance(meta, dict) else None
    if version is None:
        return False
    if version not in (STATELESS, *WITH_SESSION):
        data = {"supported": [STATELESS, *WITH_SESSION], "requested": version}
        raise ProtocolError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    return bool(version == STATELESS)


def _about() -> dict[str, Any]:
    return {"name": "llm-capacity-planner", "title": "LLM capacity planner", "version": own_version()}


def _initialize(params: dict[str, Any], _: bool) -> dict[str, Any]:
    wanted = params.get("protocolVersion")
    version = wanted if wanted in WITH_SESSION else WITH_SESSION[0]
    capabilities: dict[str, Any] = {"tools": {"listChanged": False}}
    return {
        "protocolVersion": version,
        "capabilities": capabilities,
        "serverInfo": _about(),
        "instructions": _INSTRUCTIONS,
    }


def _discover(_params: dict[str, Any], _: bool) -> dict[str, Any]:
    return {
        "resultType": "complete",
        "supportedVersions": [STATELESS, *WITH_SESSION],
        "capabilities": {"tools": {}},
        "instructions": _INSTRUCTIONS,
        "ttlMs": _LIST_TTL_MS,
        "cacheScope": "public",
        "_meta": {"io.modelcontextprotocol/serverInfo": _about()},
    }


def _list_tools(_: dict[str, Any], stateless: bool) -> dict[str, Any]:
    kept = {"ttlMs": _LIST_TTL_MS, "cacheScope": "public"} if stateless else {}
    return {"tools": [found.definition() for found in TOOLS], **kept}


def _tool_result(document: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a call: the document, and the same as text for clients that read text only."""
    data = finite(document)
    text = json.dumps(data, allow_nan=False, ensure_ascii=False)
    return {"content": [{"type": "text", "text": text}], "structuredContent": data, "isError": False}
