"""Engines started by a script on one machine, with a router in front of several servers.

The router of replicas is nginx; the router of prefill and decode servers is that of the engine.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from planner.deploy.files import DeploymentFiles, bash_script
from planner.deploy.local_servers import (
    ENCODER_PROXY,
    LocalServer,
    encoder_proxy_words,
    local_addresses,
    local_servers,
    pools_words,
    router_words,
)
from planner.deploy.serving import HEALTH, Serving
from planner.deploy.serving import PORT as ROUTER_PORT
from planner.deploy.targets.compose import FIRST_PORT, nginx_config

#: The example proxy of vLLM's release.
_PROXY_AT: Final = f"https://raw.githubusercontent.com/vllm-project/vllm/main/examples/disaggregated/disaggregated_encoder/{ENCODER_PROXY}"

_VISIBLE: Final = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


def write(*pools: Serving) -> DeploymentFiles:
    """Return serve.sh, which starts every server and, if there are several, a router; nginx.conf configures nginx."""
    s, encodes = pools[-1], pools[0].resolved.role == "encode"
    disaggregated = any(pool.resolved.role == "prefill" for pool in pools)
    proxied = encodes and s.family == "vllm"
    alone = not disaggregated and not encodes and s.replicas == 1
    found = local_servers(pools, ROUTER_PORT if alone else FIRST_PORT)
    serving = [server for server in found if not server.encodes]
    lines = [
        "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT",
        *_WATCH,
        *(f"export {name}={shlex.quote(value)}" for name, value in s.arguments.environment.items()),
        *(line for server in found for line in (_start(server), f"started {server.name}")),
    ]
    files: dict[str, str] = {}
    needs = f"needs `{s.arguments.program[0]}`"
    if proxied:
        needs += f", mooncake-transfer-engine and {ENCODER_PROXY} of vLLM in this folder (see the steps)"
        lines += _wait([server.port for server in found])
        lines += [f"{shlex.join(encoder_proxy_words(found, ROUTER_PORT))} > router.log 2>&1 &"]
        lines += ["started router", *_wait([ROUTER_PORT])]
    elif disaggregated:
        router = "vllm-router" if s.family == "vllm" else "sglang-router"
        needs += f", nixl and {router} on this machine (`pip install nixl {router}`)"
        lines += _wait([server.port for server in found])
        lines += [f"{shlex.join(router_words(local_addresses(serving), s.family, ROUTER_PORT))} > router.log 2>&1 &"]
        lines += ["started router", *_wait([ROUTER_PORT])]
    else:
        needs += f"{'' if alone else ' and nginx'} on this machine"
        lines += _wait([server.port for server in found])
        if not alone:
            lines += ['nginx -p "$PWD" -c nginx.conf > nginx.log 2>&1 &', "started nginx"]
            files["nginx.conf"] = _nginx([f"127.0.0.1:{server.port}" for server in serving])
    lines += [f'echo "ready on port {ROUTER_PORT}"', "wait -n || true", "all_run", "exit 1"]
    files["serve.sh"] = bash_script(lines, f"{pools_words(pools)} of {s.model}")
    steps = [
        "export HF_TOKEN=...   # for gated models",
        *([f"curl -fsSLO {_PROXY_AT}"] if proxied else []),
        "./serve.sh   # runs until stopped; writes logs into this folder",
    ]
    made = f"the plan was made for {s.image}"
    tokens = s.family == "vllm" or not disaggregated  # sglang-router refuses prompts that are token ids
    separate = disaggregated or proxied
    return DeploymentFiles(files, steps, [needs, made] if separate else [f"{needs}; {made}"], token_prompts=tokens)


def _start(server: LocalServer) -> str:
    """Return the command of a server, preceded by the environment variables that only this server has."""
    s, arguments = server.serving, server.arguments
    own = {name: v for name, v in arguments.environment.items() if name not in s.arguments.environment}
    visible = _VISIBLE.get(s.device.maker)
    if visible is not None:
        own = {visible: ",".join(str(server.first + i) for i in range(s.accelerators))} | own
    command = replace(arguments, environment=own).text_with_environment
    command = command.replace(" /models/", " models/")  # the folder of this script has the GGUF files
    return f"{command} > {server.name}.log 2>&1 &"


#: Shell functions: `started NAME` notes the process started last, and `all_run` ends the script, which stops all
#: others, if one of them has ended.
_WATCH: Final = (
    "names=() pids=()",
    'started() { names+=("$1"); pids+=("$!"); }',
    "all_run() {",
    '  local i running=" $(jobs -pr | tr "\\n" " ") "',
    '  for i in "${!pids[@]}"; do',
    '    [[ "$running" == *" ${pids[$i]} "* ]] && continue',
    '    echo "${names[$i]} has ended, so all others are stopped; see ${names[$i]}.log" >&2',
    "    exit 1",
    "  done",
    "}",
)


def _wait(ports: Sequence[int]) -> list[str]:
    """Return lines that wait until all servers answer, or end the script as soon as one of them ends."""
    return [
        f"for port in {' '.join(map(str, ports))}; do",
        f'  until curl -sf "http://127.0.0.1:$port{HEALTH}" > /dev/null; do',
        "    all_run",
        "    sleep 2",
        "  done",
        "done",
    ]


def _nginx(servers: list[str]) -> str:
    """Return a complete nginx configuration that writes only into its own folder."""
    head = "daemon off;\npid nginx.pid;\nerror_log nginx-error.log;\nevents { worker_connections 16384; }\nhttp {\n"
    folders = [f"{kind}_temp_path nginx-{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    inside = ["access_log off;", *folders, *nginx_config(servers, ROUTER_PORT).splitlines()]
    return head + "".join(f"    {line}\n" for line in inside) + "}\n"
