"""Engines started by hand on one machine: a script that starts every replica and, before several, nginx."""

from __future__ import annotations

import shlex
from typing import Final

from planner.deploy.router import nginx_config
from planner.deploy.serving import Serving
from planner.deploy.written import Written

_FIRST_PORT: Final = 8001
_ROUTER_PORT: Final = 8000
_VISIBLE: Final = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


def write(s: Serving) -> Written:
    """serve.sh, and nginx.conf where there are several replicas."""
    files = {"serve.sh": _script(s)}
    if s.replicas > 1:
        servers = [f"127.0.0.1:{_FIRST_PORT + i}" for i in range(s.replicas)]
        files["nginx.conf"] = _nginx(servers)
    steps = ["export HF_TOKEN=...   # for gated models", "./serve.sh   # until it is stopped; logs beside it"]
    found = f"`{s.arguments.program[0]}` is installed here" + (", and nginx" if s.replicas > 1 else "")
    return Written(files, steps, f"http://localhost:{_ROUTER_PORT}", [f"{found}; the plan's engine: {s.image}"])


def _script(s: Serving) -> str:
    several = s.replicas > 1
    lines = ["#!/usr/bin/env bash", f"# {s.replicas} x {s.resolved.layout.words} of {s.model}", "set -euo pipefail"]
    lines += ['cd "$(dirname "$0")"', "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in s.arguments.environment.items()]
    ports = [_FIRST_PORT + i for i in range(s.replicas)] if several else [_ROUTER_PORT]
    for i, port in enumerate(ports):
        command = s.listening(port).text.replace(" /models/", " models/")  # beside this script
        lines.append(f"{_visible(s, i)}{command} > replica-{i}.log 2>&1 &")
    listed = " ".join(map(str, ports))
    lines += [f"for port in {listed}; do", f'  until curl -sf "http://127.0.0.1:$port{s.health}" > /dev/null; do']
    lines += ['    [ -z "$(jobs -pr)" ] && { echo "no replica is running; see replica-*.log" >&2; exit 1; }']
    lines += ["    sleep 2", "  done", "done"]
    if several:
        lines.append('nginx -p "$PWD" -c nginx.conf &')
    return "\n".join([*lines, f'echo "ready on port {_ROUTER_PORT}"', "wait -n", ""])


def _visible(s: Serving, i: int) -> str:
    name = _VISIBLE.get(s.device.maker)
    if name is None or s.device.resource is None or "mig" in s.device.resource:
        return ""
    first = i * s.accelerators
    return f"{name}={','.join(str(n) for n in range(first, first + s.accelerators))} "


def _nginx(servers: list[str]) -> str:
    """A whole configuration, which writes only beside itself."""
    head = "daemon off;\npid nginx.pid;\nerror_log nginx-error.log;\nevents { worker_connections 16384; }\nhttp {\n"
    paths = "access_log off;\n" + "".join(
        f"{kind}_temp_path nginx-{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    inside = paths + nginx_config(servers, _ROUTER_PORT)
    return head + "".join(f"    {line}\n" for line in inside.splitlines()) + "}\n"
