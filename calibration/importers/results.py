"""The one door for result files of load clients: the format is recognised by its content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from calibration.importers import vllm_bench
from calibration.measured_run import MeasuredRun
from catalogs.errors import InputError


def measured_run_file(path: Path) -> MeasuredRun:
    """The run in a result file; InputError where it is unreadable, unknown, or holds several runs."""
    runs = measured_runs(path)
    if len(runs) > 1:
        raise InputError(f"this result holds {len(runs)} runs where one is wanted", str(path))
    return runs[0]


def measured_runs(path: Path) -> list[MeasuredRun]:
    """All runs of a result file, in the order written. InputError where it is unreadable or of no known client."""
    documents = _documents(path)
    if all(vllm_bench.recognises(d) for d in documents):
        return [vllm_bench.read_vllm_bench(d, _source(path, i, documents)) for i, d in enumerate(documents)]
    raise InputError("not a result of a known load client", str(path), "vllm bench serve --save-detailed")


def _source(path: Path, i: int, documents: list[Any]) -> str:
    return path.name if len(documents) == 1 else f"{path.name} run {i + 1}"


def _documents(path: Path) -> list[Any]:
    """The JSON document of a file, or one per line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"result cannot be read ({type(error).__name__})", str(path)) from None
    try:
        return [json.loads(text)]
    except ValueError as error:
        whole = str(error)
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        documents = [json.loads(line) for line in lines]
    except ValueError:
        raise InputError(f"result is cut short or not JSON ({whole})", str(path)) from None
    if not documents:
        raise InputError("result file is empty", str(path))
    return documents
