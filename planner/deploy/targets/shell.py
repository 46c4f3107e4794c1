"""Engines started by hand on one machine: a script that starts every replica and, before several, nginx; before prefill
and decode servers, the engine's own router.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from planner.deploy.disaggregated import DisaggregatedServing, LocalServer, router_words, servers
from planner.deploy.files import DeploymentFiles
from planner.deploy.serving import Serving
from planner.deploy.targets.compose import nginx_config

_FIRST_PORT: Final = 8001

_ROUTER_PORT: Final = 8000

_VISIBLE: Final = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


def write(s: Serving) -> DeploymentFiles:
    """Return serve.sh, and nginx.conf if there are several replicas."""
    files = {"serve.sh": _script(s)}
    if s.replicas > 1:
        servers = [f"127.0.0.1:{_FIRST_PORT + i}" for i in range(s.replicas)]
        files["nginx.conf"] = _nginx(servers)
    steps = [
        "export HF_TOKEN=...   # for gated models",
        "./serve.sh   # runs until stopped; writes logs into this folder",
    ]
    needs = f"needs `{s.arguments.program[0]}`{' and nginx' if s.replicas > 1 else ''} on this machine"
    notes = [f"{needs}; the plan was made for {s.image}"]
    return DeploymentFiles(files, steps, f"http://localhost:{_ROUTER_PORT}", notes)


def write_apart(a: DisaggregatedServing) -> DeploymentFiles:
    """Return serve.sh, which starts prefill servers, decode servers and the router that pairs them."""
    found, s = servers(a, _FIRST_PORT), a.decode
    lines = _head(f"{a.words} of {s.model}", s)
    lines += [_start(server) for server in found]
    lines += _wait([server.port for server in found], s.health, "server", "{prefill,decode}-*.log")
    lines += [f"{shlex.join(router_words(found, _ROUTER_PORT))} > router.log 2>&1 &"]
    lines += _wait([_ROUTER_PORT], "/health", "server or router", "*.log")
    files = {"serve.sh": "\n".join([*lines, *_TAIL])}
    steps = [
        "export HF_TOKEN=...   # for gated models",
        "./serve.sh   # runs until stopped; writes logs into this folder",
    ]
    router = "vllm-router" if s.family == "vllm" else "sglang-router"
    notes = [f"needs `{s.arguments.program[0]}`, nixl and {router} on this machine (`pip install nixl {router}`)"]
    notes.append(f"the plan was made for {s.image}")
    tokens = s.family == "vllm"  # sglang-router refuses prompts that are token ids
    return DeploymentFiles(files, steps, f"http://localhost:{_ROUTER_PORT}", notes, token_prompts=tokens)


_TAIL: Final = (f'echo "ready on port {_ROUTER_PORT}"', "wait -n", "")


def _script(s: Serving) -> str:
    several = s.replicas > 1
    lines = _head(f"{s.replicas} x {s.resolved.layout.words} of {s.model}", s)
    ports = [_FIRST_PORT + i for i in range(s.replicas)] if several else [_ROUTER_PORT]
    for i, port in enumerate(ports):
        command = s.listening(port).text.replace(" /models/", " models/")  # beside this script
        lines.append(f"{_visible(s, i * s.accelerators)}{command} > replica-{i}.log 2>&1 &")
    lines += _wait(ports, s.health, "replica", "replica-*.log")
    if several:
        lines.append('nginx -p "$PWD" -c nginx.conf &')
    return "\n".join([*lines, *_TAIL])


def _head(words: str, s: Serving) -> list[str]:
    lines = ["#!/usr/bin/env bash", f"# {words}", "set -euo pipefail", 'cd "$(dirname "$0")"']
    lines.append("trap 'kill $(jobs -p) 2>/dev/null || true' EXIT")
    return lines + [f"export {name}={shlex.quote(value)}" for name, value in s.arguments.environment.items()]


def _start(server: LocalServer) -> str:
    made, own = server.arguments, server.serving.arguments.environment
    more = "".join(f"{name}={shlex.quote(v)} " for name, v in made.environment.items() if name not in own)
    return f"{_visible(server.serving, server.first)}{more}{made.text} > {server.name}.log 2>&1 &"


def _wait(ports: Sequence[int], health: str, what: str, logs: str) -> list[str]:
    """Return lines that wait until all servers answer, or exit if none runs."""
    lines = [f"for port in {' '.join(map(str, ports))}; do"]
    lines += [f'  until curl -sf "http://127.0.0.1:$port{health}" > /dev/null; do']
    lines += [f'    [ -z "$(jobs -pr)" ] && {{ echo "no {what} is running; see {logs}" >&2; exit 1; }}']
    return [*lines, "    sleep 2", "  done", "done"]


def _visible(s: Serving, first: int) -> str:
    name = _VISIBLE.get(s.device.maker)
    if name is None or s.device.resource is None or "mig" in s.device.resource:
        return ""
    return f"{name}={','.join(str(n) for n in range(first, first + s.accelerators))} "


def _nginx(servers: list[str]) -> str:
    """Return a complete nginx configuration that writes only into its own folder."""
    head = "daemon off;\npid nginx.pid;\nerror_log nginx-error.log;\nevents { worker_connections 16384; }\nhttp {\n"
    paths = "access_log off;\n" + "".join(
        f"{kind}_temp_path nginx-{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    inside = paths + nginx_config(servers, _ROUTER_PORT)
    return head + "".join(f"    {line}\n" for line in inside.splitlines()) + "}\n"
