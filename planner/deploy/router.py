"""nginx as the router a plan assumes: round robin over the replicas, request by request, streams passed through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
