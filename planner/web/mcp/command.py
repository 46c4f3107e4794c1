"""The command `plan mcp`: serves the protocol on stdin and stdout."""

from __future__ import annotations

import os
import signal
import sys


def mcp() -> None:
    """Serve the planner as tools for assistants: Model Context Protocol on stdin and stdout.

    Example: {"mcpServers": {"planner": {"command": "plan", "args": ["mcp"]}}}
    """
    from planner.web.mcp.protocol import ProtocolServer

    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not break the protocol
    server = ProtocolServer(out)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.serve(sys.stdin.buffer)
