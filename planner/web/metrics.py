"""Counts and times of requests, in the text format of Prometheus."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Upper bounds of the histogram of response times, seconds.
BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Labels = tuple[tuple[str, str], ...]


class RequestMetrics:
    """Counts requests by method, address and status, and their times until the response begins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[Labels] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request and the seconds until its response began."""
        labels = (("method", method), ("route", route), ("status", str(status)))
        with self._lock:
            self._requests[labels] += 1
            self._seconds[route] += seconds  # type: ignore[assignment]
            for bound in BUCKETS_S:
                self._buckets[route, bound] += seconds <= bound

    def lines(self) -> list[str]:
        """Return the lines of the text format."""
        with self._lock:
            requests, buckets, seconds = dict(self._requests), dict(self._buckets), dict(self._seconds)
        counts: Counter[str] = Counter()
        for labels, n in requests.items():
            counts[dict(labels)["route"]] += n
        found = series("planner_http_requests_total", "counter", "Requests.", requests.items())
        name = "planner_http_request_seconds"
        found += [f"# HELP {name} Time until the response begins.", f"# TYPE {name} histogram"]
        for route, total in sorted(counts.items()):
            for bound in BUCKETS_S:
                label = _shown((("route", route), ("le", f"{bound:g}")))
                found.append(f"{name}_bucket{label} {buckets.get((route, bound), 0)}")
            found.append(f"{name}_bucket{_shown((('route', route), ('le', '+Inf')))} {total}")
            found.append(f"{name}_sum{_shown((('route', route),))} {seconds[route]:.6f}")
            found.append(f"{name}_count{_shown((('route', route),))} {total}")
        return found


class Measured:
    """An ASGI middleware that counts the requests of an application."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, begun = time.perf_counter(), False

        async def note_start(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start" and not begun:
                begun = True
                route = str(getattr(scope.get("route"), "path", "") or "other")
                self._metrics.add(scope["method"], route, message["status"], time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, note_start)


def series(name: str, kind: str, text: str, values: Iterable[tuple[Labels, float]]) -> list[str]:
    """Return the lines of one metric with its help text and type."""
    rows = [f"{name}{_shown(labels)} {value!r}" for labels, value in sorted(values)]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *rows]


def label_values(label: str, values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    """Return values with their keys as one label."""
    return [(((label, key),), value) for key, value in values.items()]


def _shown(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = ((name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
