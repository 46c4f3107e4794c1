"""Docker Compose: one service for each replica on its own accelerators, and nginx in front of several replicas.

nginx is the router that a plan assumes: each request goes to the next replica in turn, and responses are streamed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from catalogs.launch.arguments import Arguments
from catalogs.launch.images import ENGINE_ROUTER, ROUTER
from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.local_servers import local_addresses, local_servers, router_package, router_words
from planner.deploy.serving import HEALTH, PORT, Serving

#: Port of the router in its container or pod.
ROUTER_CONTAINER_PORT: Final = 8080

_SECRET: Final = "/run/secrets/hf_token"


def write(*pools: Serving) -> DeploymentFiles:
    """Return compose.yaml for one machine."""
    return _replicas(*pools) if len(pools) == 1 else _disaggregated(pools)


def _disaggregated(pools: Sequence[Serving]) -> DeploymentFiles:
    """Return compose.yaml of prefill and decode servers, which use the network of the machine, and their router."""
    s, found = pools[-1], local_servers(pools, FIRST_PORT)
    services: dict[str, Any] = {}
    for server in found:
        made = _engine(server.serving, server.arguments, server.port, server.first)
        services[server.name] = made | {"network_mode": "host"}
    words = shlex.join(router_words(local_addresses(found), s.family, PORT))
    services["router"] = {
        "image": ENGINE_ROUTER,
        "command": ["sh", "-c", f"pip install --no-cache-dir {router_package(s.family)} && exec {words}"],
        "network_mode": "host",
        "depends_on": {server.name: {"condition": "service_healthy"} for server in found},
        "restart": "unless-stopped",
    }
    whole = {"name": s.name, "services": services, **_SHARED}
    notes = ["the servers and their router use the network of the machine, on which their ports must be free"]
    return DeploymentFiles({"compose.yaml": to_yaml(whole)}, _STEPS, notes, token_prompts=s.family == "vllm")


#: What every engine but llama.cpp shares: the volume of the weights and the Hugging Face token.
_SHARED: Final[dict[str, Any]] = {"volumes": {"weights": {}}, "secrets": {"hf_token": {"environment": "HF_TOKEN"}}}

_STEPS: Final = (
    "export HF_TOKEN=...   # for gated models",
    "docker compose up --detach --wait --wait-timeout 3600",
)

#: Port of the first of several servers on one machine; the others have the next ones.
FIRST_PORT: Final = 8001


def _replicas(s: Serving) -> DeploymentFiles:
    names = [f"engine-{i}" for i in range(s.replicas)]
    services = {name: _engine(s, s.listening(), PORT, i * s.accelerators) for i, name in enumerate(names)}
    whole: dict[str, Any] = {"name": s.name, "services": services}
    if s.replicas == 1:
        services[names[0]]["ports"] = [f"8000:{PORT}"]
    else:
        services["router"] = {
            "image": ROUTER,
            "ports": [f"8000:{ROUTER_CONTAINER_PORT}"],
            "configs": [{"source": "router", "target": "/etc/nginx/conf.d/default.conf"}],
            "depends_on": {name: {"condition": "service_healthy"} for name in names},
            "restart": "unless-stopped",
        }
        config = nginx_config([f"{name}:{PORT}" for name in names], ROUTER_CONTAINER_PORT)
        whole["configs"] = {"router": {"content": config.replace("$", "$$")}}
    if s.family != "llama.cpp":
        whole |= _SHARED
    notes = ["put the GGUF files into ./models"] if s.family == "llama.cpp" else []
    return DeploymentFiles({"compose.yaml": to_yaml(whole)}, _STEPS, notes)


def _engine(s: Serving, arguments: Arguments, port: int, first: int) -> dict[str, Any]:
    """Return the service of one server, which has accelerators of its own, from number `first`."""
    program, *rest = arguments.words
    environment = dict(arguments.environment)
    found: dict[str, Any] = {"image": s.image, "entrypoint": [program], "command": rest, "ipc": "host"}
    url = f"http://localhost:{port}{HEALTH}"
    if s.family == "llama.cpp":  # its image has curl and no Python
        found["volumes"] = ["./models:/models:ro"]
        test = ["CMD", "curl", "-f", url]
    else:
        found |= {"volumes": ["weights:/root/.cache/huggingface"], "secrets": ["hf_token"]}
        environment["HF_TOKEN_PATH"] = _SECRET
        test = ["CMD", "python3", "-c", f"import urllib.request as u; u.urlopen('{url}', timeout=5)"]
    ids = [str(first + n) for n in range(s.accelerators)]
    if s.device.maker == "nvidia":
        device = {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}
        found["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    elif s.device.maker == "amd":
        found |= {"devices": ["/dev/kfd", "/dev/dri"], "group_add": ["video"]}
        environment["HIP_VISIBLE_DEVICES"] = ",".join(ids)
    if environment:
        found["environment"] = environment
    found["healthcheck"] = {"test": test, "interval": "10s", "timeout": "10s", "retries": 6, "start_period": "3600s"}
    return found | {"restart": "unless-stopped"}


#: Longer than any response takes; by default nginx closes a connection that is silent for 60 s.
_TIMEOUT: Final = "3600s"


def nginx_config(servers: Sequence[str], port: int, resolver: str | None = None) -> str:
    """Return the configuration of nginx as a round-robin router.

    With max_fails=0, a slow replica stays in the rotation, as in the simulation.

    Args:
        servers: host:port of each replica, or one name that stands for all of them.
        port: Port of the router.
        resolver: DNS server that resolves such a name every five seconds; None for host:port.
    """
    again = " resolve" if resolver else ""
    lines = [f"resolver {resolver} valid=5s;"] if resolver else []
    lines += ["upstream replicas {", "    zone replicas 64k;"]
    lines += [f"    server {server} max_fails=0{again};" for server in servers]
    lines += ["    keepalive 256;", "}", "server {", f"    listen {port};", "    client_max_body_size 64m;"]
    lines += ["    location / {", "        proxy_pass http://replicas;", "        proxy_http_version 1.1;"]
    lines += ['        proxy_set_header Connection "";', "        proxy_buffering off;"]
    lines += [f"        proxy_read_timeout {_TIMEOUT};", f"        proxy_send_timeout {_TIMEOUT};", "    }", "}"]
    return "\n".join(lines) + "\n"
