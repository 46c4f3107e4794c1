"""Docker Compose: one service for each replica on its own accelerators, and nginx in front of several replicas.

nginx is the router that a plan assumes: each request goes to the next replica in turn, and responses are streamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from catalogs.launch.images import ROUTER
from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.serving import HEALTH, PORT, Serving

_ROUTER_PORT: Final = 8080

_SECRET: Final = "/run/secrets/hf_token"


def write(s: Serving) -> DeploymentFiles:
    """Return compose.yaml for one machine."""
    names = [f"engine-{i}" for i in range(s.replicas)]
    services = {name: _engine(s, i) for i, name in enumerate(names)}
    whole: dict[str, Any] = {"name": s.name, "services": services}
    if s.replicas == 1:
        services[names[0]]["ports"] = [f"8000:{PORT}"]
    else:
        services["router"] = {
            "image": ROUTER,
            "ports": [f"8000:{_ROUTER_PORT}"],
            "configs": [{"source": "router", "target": "/etc/nginx/conf.d/default.conf"}],
            "depends_on": {name: {"condition": "service_healthy"} for name in names},
            "restart": "unless-stopped",
        }
        config = nginx_config([f"{name}:{PORT}" for name in names], _ROUTER_PORT)
        whole["configs"] = {"router": {"content": config.replace("$", "$$")}}
    if s.family != "llama.cpp":
        whole["volumes"] = {"weights": {}}
        whole["secrets"] = {"hf_token": {"environment": "HF_TOKEN"}}
    steps = ["export HF_TOKEN=...   # for gated models", "docker compose up --detach --wait --wait-timeout 3600"]
    notes = ["put the GGUF files into ./models"] if s.family == "llama.cpp" else []
    return DeploymentFiles({"compose.yaml": to_yaml(whole)}, steps, notes)


def _engine(s: Serving, i: int) -> dict[str, Any]:
    """Return the service of replica `i`, which has accelerators of its own."""
    program, *rest = s.listening().words
    environment = dict(s.arguments.environment)
    found: dict[str, Any] = {"image": s.image, "entrypoint": [program], "command": rest, "ipc": "host"}
    url = f"http://localhost:{PORT}{HEALTH}"
    if s.family == "llama.cpp":  # its image has curl and no Python
        found["volumes"] = ["./models:/models:ro"]
        test = ["CMD", "curl", "-f", url]
    else:
        found |= {"volumes": ["weights:/root/.cache/huggingface"], "secrets": ["hf_token"]}
        environment["HF_TOKEN_PATH"] = _SECRET
        test = ["CMD", "python3", "-c", f"import urllib.request as u; u.urlopen('{url}', timeout=5)"]
    ids = [str(i * s.accelerators + n) for n in range(s.accelerators)]
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
