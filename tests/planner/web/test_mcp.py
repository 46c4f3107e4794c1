"""`plan mcp` as a client sees it: a process that speaks the Model Context Protocol, in both of its generations."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from planner.main import app
from planner.web.mcp.protocol import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    STATELESS,
    UNKNOWN_METHOD,
    UNSUPPORTED_VERSION,
    ProtocolServer,
)
from planner.web.mcp.tools import TOOLS

MODERN = {"_meta": {"io.modelcontextprotocol/protocolVersion": STATELESS}}


@dataclass
class Client:
    """A client of one server process."""

    process: subprocess.Popen[str]
    last: int = 0
    early: dict[int, Any] = field(default_factory=dict)

    def send(self, message: object) -> None:
        """Write one message."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def request(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        self.last += 1
        self.send({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params})
        return self.last

    def response(self, id_: int) -> Any:
        """Return the response to a request; responses may come in any order."""
        assert self.process.stdout is not None
        while id_ not in self.early:
            message = json.loads(self.process.stdout.readline())
            self.early[message["id"]] = message
        return self.early.pop(id_)

    def result(self, method: str, **params: Any) -> Any:
        """Return the result of a request."""
        return self.response(self.request(method, **params))["result"]

    def tool(self, name: str, **arguments: Any) -> Any:
        """Return the result of a tool."""
        return self.result("tools/call", name=name, arguments=arguments)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    command = [sys.executable, "-m", "planner.main", "mcp"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, encoding="utf-8", **pipes) as process:  # type: ignore[call-overload]
        yield Client(process)
        process.stdin.close()
        assert process.wait(timeout=20) == 0


def test_a_session_begins_with_the_version_of_the_client(client: Client) -> None:
    opened = client.result("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test"})
    assert opened["protocolVersion"] == "2025-06-18"
    assert "tools" in opened["capabilities"]
    assert client.result("initialize", protocolVersion="1999-01-01")["protocolVersion"] == "2025-11-25"
    client.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert client.result("ping") == {}


def test_a_request_with_its_own_version_needs_no_session(client: Client) -> None:
    found = client.result("server/discover", **MODERN)
    assert found["resultType"] == "complete"
    assert found["supportedVersions"][0] == STATELESS
    listed = client.result("tools/list", **MODERN)
    assert {"resultType", "ttlMs", "cacheScope"} <= set(listed)
    meta = {"_meta": {"io.modelcontextprotocol/protocolVersion": "1900-01-01"}}
    refused = client.response(client.request("tools/list", **meta))["error"]
    assert refused["code"] == UNSUPPORTED_VERSION
    assert refused["data"]["requested"] == "1900-01-01"


def test_tools_state_their_arguments(client: Client) -> None:
    tools = {tool["name"]: tool for tool in client.result("tools/list")["tools"]}
    assert list(tools) == [tool.name for tool in TOOLS]
    assert {"plan", "analyze", "simulate", "models", "hardware"} <= set(tools)
    for tool in tools.values():
        schema = tool["inputSchema"]
        assert schema["type"] == "object"
        assert set(schema["required"]) <= set(schema["properties"])
        assert all(key["description"] for key in schema["properties"].values())
    assert {"model", "hardware", "slo", "rate", "users"} <= set(tools["plan"]["inputSchema"]["properties"])


def test_short_tools_answer_with_structured_content(client: Client) -> None:
    found = client.tool("models", search="deepseek-v3.2")
    assert found["structuredContent"]["items"][0]["name"] == "deepseek-v3.2"
    assert json.loads(found["content"][0]["text"]) == found["structuredContent"]
    step = client.tool("analyze", model="llama3.1-8b", hardware="h100", batch=8)["structuredContent"]["step"]
    assert step["engine_s"] > step["roofline_s"] > 0
    guess = client.tool("guess", model="llama3.1-8b", hardware="h100", slo=["ttft.p99=2s"], rate=1)
    assert guess["structuredContent"]["gpus"] == 1
    assert client.tool("hardware", search="h100 nvl")["structuredContent"]["items"][0]["name"] == "h100-nvl"


def test_a_simulation_is_that_of_the_command(client: Client) -> None:
    deployment = {"model": "llama3.1-8b", "hardware": "h100x1"}
    found = client.tool("simulate", deployment=deployment, workload="chat", rate=2, requests=40)
    assert not found["isError"]
    assert found["structuredContent"]["metrics"]


BOTH_LOADS = {"model": "llama3.1-8b", "hardware": "h100", "slo": ["ttft.p99=2s"], "rate": 1, "users": 3}


@pytest.mark.slow
def test_a_plan_is_that_of_the_command(client: Client) -> None:
    question = {"model": "llama3.1-8b", "hardware": "h100x1", "slo": ["ttft.p99=2s"], "rate": 2}
    found = client.tool("plan", **question)["structuredContent"]
    assert found["feasible"]
    assert found["best"]["deployment"]["replicas"] == 1


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("analyze", {"model": "llama3.1-8"}, "needs the argument hardware"),
        ("analyze", {"model": "llama3.1-80b", "hardware": "h100"}, "unknown model"),
        ("analyze", {"model": "llama3.1-8b", "hardware": "h100", "bach": 1}, "nearest valid choice: batch"),
        ("plan", {"model": "llama3.1-8b", "hardware": "h100", "slo": ["ttft.p99=2"]}, "unit"),
        ("simulate", {"deployment": {"model": "llama3.1-8b", "hardware": "h1000"}}, "unknown hardware"),
        ("plan", BOTH_LOADS, "the load is a rate or a number of users, not both: got 'rate 1 and users 3'"),
        ("guess", BOTH_LOADS, "nearest valid choice: users 3 or rate 1"),
        ("simulate", {"deployment": {"model": "llama3.1-8b", "hardware": "h100"}, "rate": 1e-30}, "rate is a number"),
    ],
)
def test_invalid_arguments_are_errors_of_the_tool(client: Client, name: str, arguments: Any, words: str) -> None:
    found = client.tool(name, **arguments)
    assert found["isError"]
    assert words in found["content"][0]["text"]
    assert "Traceback" not in found["content"][0]["text"]
    assert "--" not in found["content"][0]["text"]


def test_a_cancelled_call_ends_its_process_and_has_no_response(client: Client) -> None:
    question = {"model": "llama3.1-70b", "hardware": "any", "slo": ["ttft.p99=2s"], "rate": 50}
    id_ = client.request("tools/call", name="plan", arguments=question)
    time.sleep(0.5)
    client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id_}})
    assert client.result("ping") == {}
    assert id_ not in client.early


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", PARSE_ERROR),
        (b"[" * 100_000, PARSE_ERROR),
        (b"[]", INVALID_REQUEST),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', INVALID_REQUEST),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}', INVALID_REQUEST),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "no/such"}', UNKNOWN_METHOD),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "no"}}', INVALID_PARAMS),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "models", "arguments": 1}}', -32602),
    ],
)
def test_what_breaks_the_protocol_is_refused(line: bytes, code: int) -> None:
    out = io.BytesIO()
    ProtocolServer(out).serve(io.BytesIO(line + b"\n"))
    assert json.loads(out.getvalue())["error"]["code"] == code


def test_the_command_is_listed() -> None:
    assert "mcp" in {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
