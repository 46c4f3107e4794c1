"""Which model a result file says it measured: the name clients asked for, where the client kept it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Requests looked at: all of a run ask for the same model.
_LOOKED_AT = 3


def measured_model(path: Path) -> str | None:
    """None where the file does not say (AIPerf's records), or says several. Never raises for a readable file."""
    found = {name for document in _documents(path) for name in _names(document)}
    return found.pop() if len(found) == 1 else None


def _documents(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    try:
        return [json.loads(text)]
    except ValueError:
        pass
    found = []
    for line in text.splitlines()[:_LOOKED_AT]:
        try:
            found.append(json.loads(line))
        except ValueError:
            return found
    return found


def _names(document: Any) -> list[str]:
    """vllm bench writes model_id; inference-perf and GuideLLM keep the body of each request."""
    if isinstance(document, dict) and isinstance(document.get("model_id"), str):
        return [document["model_id"]]
    bodies: list[Any] = []
    if isinstance(document, list):
        bodies = [entry.get("request") for entry in document[:_LOOKED_AT] if isinstance(entry, dict)]
    elif isinstance(document, dict):
        for benchmark in document.get("benchmarks") or ():
            requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
            done = (requests.get("successful") if isinstance(requests, dict) else None) or []
            bodies += [entry.get("request_args") for entry in done[:_LOOKED_AT] if isinstance(entry, dict)]
    return [name for body in bodies if (name := _named(body)) is not None]


def _named(body: Any) -> str | None:
    """The model of a request as it was sent; GuideLLM wraps the body."""
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except ValueError:
            return None
    if not isinstance(body, dict):
        return None
    for holder in (body, body.get("body"), body.get("json")):
        if isinstance(holder, dict) and isinstance(holder.get("model"), str):
            return str(holder["model"])
    return None
