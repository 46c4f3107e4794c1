"""Find the model that a result file measured: the name in the clients' requests, where the client kept it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibration.importers.load_clients.results import read_documents
from catalogs.errors import InputError
from catalogs.io.json_files import load_json

#: Number of requests to read: all requests of a run name the same model.
_INSPECTED = 3


def measured_model(path: Path) -> str | None:
    """Return the model, or None where the file names none (AIPerf's records) or several.

    A file that cannot be read names none.
    """
    try:
        documents = read_documents(path)
    except InputError:
        return None
    found = {name for document in documents[:_INSPECTED] for name in _names(document)}
    return found.pop() if len(found) == 1 else None


def _names(document: Any) -> list[str]:
    """Return the model names in a document: vllm bench writes model_id.

    Inference-perf and GuideLLM keep request bodies.
    """
    if isinstance(document, dict) and isinstance(document.get("model_id"), str):
        return [document["model_id"]]
    bodies: list[Any] = []
    if isinstance(document, list):
        bodies = [entry.get("request") for entry in document[:_INSPECTED] if isinstance(entry, dict)]
    elif isinstance(document, dict):
        for benchmark in _items(document.get("benchmarks")):
            requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
            done = _items(requests.get("successful") if isinstance(requests, dict) else None)
            bodies += [entry.get("request_args") for entry in done[:_INSPECTED] if isinstance(entry, dict)]
    return [name for body in bodies if (name := _named(body)) is not None]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(body: Any) -> str | None:
    """Return the model of a request as it was sent; GuideLLM wraps the body."""
    if isinstance(body, str):
        try:
            body = load_json(body)
        except ValueError:
            return None
    if not isinstance(body, dict):
        return None
    for holder in (body, body.get("body"), body.get("json")):
        if isinstance(holder, dict) and isinstance(holder.get("model"), str):
            return str(holder["model"])
    return None
