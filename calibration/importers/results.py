"""The one door for files of engine steps: a server log, or a benchmark of single forwards.

The one door for result files of load clients: the format is recognised by its content.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibration.accuracy.measured_run import MeasuredRun
from calibration.importers import aiperf, guidellm, inference_perf, vllm_bench
from calibration.importers.forward_bench import read_forward_bench
from calibration.importers.iteration_log import read_iteration_log
from catalogs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class ImportedEngineSteps:
    """rows: one per step, with `seconds` and the batch's contents (iteration_log.py, forward_bench.py say which
    columns); what: the rows' noun; notes: what was left out, in words."""

    rows: pd.DataFrame
    what: str
    notes: tuple[str, ...]


def read_steps(path: Path) -> ImportedEngineSteps:
    """A file of either kind, recognised by its content. InputError where it is unreadable or holds no step."""
    try:
        with path.open("rb") as file:
            start = file.read(64).lstrip()
    except OSError as error:
        raise InputError(f"file of engine steps cannot be read ({type(error).__name__})", str(path)) from None
    if start[:1] == b"[" and start[1:].lstrip()[:1] in (b"{", b"]", b""):
        bench = read_forward_bench(path)
        return ImportedEngineSteps(bench.rows, "forwards", bench.notes)
    log = read_iteration_log(path)
    return ImportedEngineSteps(log.steps, "engine steps", log.notes)


#: What each client writes that can be read here.
CLIENTS: Final = (
    "vllm bench serve --save-result --save-detailed, guidellm benchmarks.json, aiperf profile_export.jsonl, "
    "inference-perf per_request_lifecycle_metrics.json"
)


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
    if all(aiperf.recognises(d) for d in documents):
        return [aiperf.read_aiperf(documents, path.name)]
    only: Any = documents[0] if len(documents) == 1 else None
    if guidellm.recognises(only):
        return guidellm.read_guidellm(only, path.name)
    if inference_perf.recognises(only):
        return [inference_perf.read_inference_perf(only, path.name)]
    if aiperf.is_summary(only):
        raise InputError("AIPerf's summary keeps no requests", str(path), "profile_export.jsonl beside it")
    raise InputError("not a result of a known load client", str(path), CLIENTS)


def _source(path: Path, i: int, documents: list[Any]) -> str:
    return path.name if len(documents) == 1 else f"{path.name} run {i + 1}"


def _documents(path: Path) -> list[Any]:
    """The JSON document of a file, or one per line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"result cannot be read ({type(error).__name__})", str(path)) from None
    try:
        return [json.loads(text, parse_int=_whole)]
    except ValueError as error:
        whole = str(error)
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        documents = [json.loads(line, parse_int=_whole) for line in lines]
    except ValueError:
        raise InputError(f"result is cut short or not JSON ({whole})", str(path)) from None
    if not documents:
        raise InputError("result file is empty", str(path))
    return documents


def _whole(text: str) -> float:
    """An integer; as a float, perhaps infinite, where no counter or clock would be that long."""
    return int(text) if len(text) < 30 else float(text)
