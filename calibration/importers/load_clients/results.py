"""Read the result file of any load client that is known; its contents tell which client wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from calibration.accuracy.measured_run import MeasuredRun
from calibration.accuracy.measured_summary import MeasuredSummary
from calibration.importers.load_clients import aiperf, guidellm, inference_perf, vllm_bench
from catalogs.errors import InputError
from catalogs.io.input_files import MOST_DATA_BYTES, read_text
from catalogs.io.json_files import load_json

#: The readable result files of each client.
CLIENTS: Final = (
    "vllm bench serve --save-result, guidellm benchmarks.json, aiperf profile_export.jsonl or its summary, "
    "inference-perf per_request_lifecycle_metrics.json"
)


def measured_run_file(path: Path) -> MeasuredRun:
    """Return the only measured run in a result file.

    Raises:
        InputError: The file is unreadable or of an unknown client, or holds several runs.
    """
    runs = measured_runs(path)
    if len(runs) > 1:
        raise InputError(f"this result holds {len(runs)} runs, not one", str(path))
    return runs[0]


def measured_runs(path: Path) -> list[MeasuredRun]:
    """Return all runs of a result file in the order written.

    Raises:
        InputError: The file is unreadable, of an unknown client, or holds only summaries.
    """
    runs = measured_results(path)
    found = [run for run in runs if isinstance(run, MeasuredRun)]
    if len(found) < len(runs):
        summary = next(run for run in runs if isinstance(run, MeasuredSummary))
        rule = "this result has no per-request lists, which this command needs"
        raise InputError(rule, str(path), hint=summary.notes[0])
    return found


def measured_results(path: Path) -> list[MeasuredRun | MeasuredSummary]:
    """Return all runs of a result file in the order written: with their requests, or else as summaries.

    Raises:
        InputError: The file is unreadable or of an unknown client.
    """
    documents = read_documents(path)
    several = len(documents) > 1
    sources = [f"{path.name} run {i + 1}" if several else path.name for i in range(len(documents))]
    if all(vllm_bench.recognises(d) for d in documents):
        pairs = zip(documents, sources, strict=True)
        return [_of_vllm_bench(document, source) for document, source in pairs]
    if all(aiperf.recognises(d) for d in documents):
        return [aiperf.read_aiperf(documents, path.name)]
    only: Any = documents[0] if len(documents) == 1 else None
    if guidellm.recognises(only):
        return [*guidellm.read_guidellm(only, path.name)]
    if inference_perf.recognises(only):
        return [inference_perf.read_inference_perf(only, path.name)]
    if aiperf.is_summary(only):
        return [aiperf.read_summary(only, path.name)]
    raise InputError("not a result of a known load client", str(path), CLIENTS)


def _of_vllm_bench(document: dict[str, Any], source: str) -> MeasuredRun | MeasuredSummary:
    if vllm_bench.is_summary(document):
        return vllm_bench.read_summary(document, source)
    return vllm_bench.read_vllm_bench(document, source)


def read_documents(path: Path) -> list[Any]:
    """Return the JSON document of a file, or one document per line.

    Raises:
        InputError: The file cannot be read or is not JSON.
    """
    text = read_text(path, "result cannot be read", MOST_DATA_BYTES)
    try:
        return [load_json(text)]
    except ValueError as error:
        whole = str(error)
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        documents = [load_json(line) for line in lines]
    except ValueError:
        raise InputError(f"result is cut short or not JSON ({whole})", str(path)) from None
    if not documents:
        raise InputError("result file is empty", str(path))
    return documents
