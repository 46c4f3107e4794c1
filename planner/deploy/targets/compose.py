"""Docker Compose: one service for each replica on its own accelerators, and nginx before several.

nginx as the router a plan assumes: round robin over the replicas, request by request, streams passed through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.images import ROUTER
from planner.deploy.serving import PORT, Serving

_ROUTER_PORT: Final = 8080

_SECRET: Final = "/run/secrets/hf_token"


def write(s: Serving) -> DeploymentFiles:
    """compose.yaml for one machine."""
    names = [f"engine-{i}" for i in range(s.replicas)]
    services = {name: _engine(s, i) for i, name in enumerate(names)}
    whole: dict[str, Any] = {"name": s.name, "services": services}
    if s.replicas == 1:
        services[names[0]]["ports"] = [f"8000:{PORT}"]
    else:
        services["router"] = _router(names)
        config = nginx_config([f"{name}:{PORT}" for name in names], _ROUTER_PORT)
        whole["configs"] = {"router": {"content": config.replace("$", "$$")}}
    if s.family != "llama.cpp":
        whole["volumes"] = {"weights": {}}
        whole["secrets"] = {"hf_token": {"environment": "HF_TOKEN"}}
    steps = ["export HF_TOKEN=...   # for gated models", "docker compose up --detach --wait --wait-timeout 3600"]
    notes = ["put the GGUF files into ./models"] if s.family == "llama.cpp" else []
    return DeploymentFiles({"compose.yaml": to_yaml(whole)}, steps, "http://localhost:8000", notes)


def _engine(s: Serving, i: int) -> dict[str, Any]:
    """Replica i on accelerators of its own."""
    program, *rest = s.listening().words
    environment: dict[str, str] = dict(s.arguments.environment)
    found: dict[str, Any] = {"image": s.image, "entrypoint": [program], "command": rest, "ipc": "host"}
    if s.family == "llama.cpp":
        found["volumes"] = ["./models:/models:ro"]
    else:
        found["volumes"] = ["weights:/root/.cache/huggingface"]
        found["secrets"] = ["hf_token"]
        environment["HF_TOKEN_PATH"] = _SECRET
    first = i * s.accelerators
    ids = [str(n) for n in range(first, first + s.accelerators)]
    if s.device.maker == "nvidia":
        device = {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}
        found["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    elif s.device.maker == "amd":
        found["devices"] = ["/dev/kfd", "/dev/dri"]
        found["group_add"] = ["video"]
        environment["HIP_VISIBLE_DEVICES"] = ",".join(ids)
    if environment:
        found["environment"] = environment
    get = f"import urllib.request as u; u.urlopen('http://localhost:{PORT}{s.health}', timeout=5)"
    test = ["CMD", "python3", "-c", get]
    if s.family == "llama.cpp":  # its image has curl and no Python
        test = ["CMD", "curl", "-f", f"http://localhost:{PORT}{s.health}"]
    found["healthcheck"] = {"test": test, "interval": "10s", "timeout": "10s", "retries": 6, "start_period": "3600s"}
    return found | {"restart": "unless-stopped"}


def _router(engines: list[str]) -> dict[str, Any]:
    return {
        "image": ROUTER,
        "ports": [f"8000:{_ROUTER_PORT}"],
        "configs": [{"source": "router", "target": "/etc/nginx/conf.d/default.conf"}],
        "depends_on": {name: {"condition": "service_healthy"} for name in engines},
        "restart": "unless-stopped",
    }


#: Longer than any answer takes; nginx cuts a silent upstream after 60 s otherwise.
_TIMEOUT: Final = "3600s"


def nginx_config(servers: Sequence[str], port: int, resolver: str | None = None) -> str:
    """`servers`: host:port of each replica, or one name that stands for all of them, with a resolver to ask again.

    max_fails=0: a slow replica is not taken out of the rotation, as in the simulation.
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
