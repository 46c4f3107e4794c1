"""Measured rows from the result files of load clients, and from the JSON rows that InferenceX publishes.

The result of a load client does not name the engine behind the address, so the deployment is given with the file:
`results.json=deployment.yaml`. Its workload has the lengths of the finished requests as quantile tables, with output
lengths by classes of input length, and the load that the client was set to offer. A result without single requests has
their mean lengths only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun, Metric, OfferedLoad
from calibration.accuracy.measured_summary import MeasuredSummary
from calibration.importers.load_clients.results import measured_results, read_documents
from catalogs.deployments.schema import Deployment, load_deployment
from catalogs.errors import InputError
from catalogs.io.input_files import exists
from catalogs.workloads.fit import fit_workload
from catalogs.workloads.traces import Trace
from planner.matrix.published_rows import MeasuredPoint, closed_loop, read_measured
from planner.problem.latency_metrics import E2E, TPOT, TTFT

#: The compared statistics: means, which results of few requests give best.
_METRICS: Final = tuple(metric for metric in get_args(Metric) if metric in (TTFT.name, TPOT.name, E2E.name))

#: Keys by which a row of InferenceX is recognised (utils/process_result.py of its repository).
_PUBLISHED: Final = {"hw", "framework", "conc", "isl", "osl", "mean_ttft"}

_START_BYTES: Final = 64


def read_points(path: Path) -> list[MeasuredPoint]:
    """Return the points of a table of measurements, or of results of a load client.

    Args:
        path: A table, JSON rows of InferenceX, or `results.json=deployment.yaml`.

    Raises:
        InputError: The file is of no known kind, it needs a deployment, or the deployment is not valid.
    """
    results, equals, deployment = str(path).rpartition("=")
    divided = bool(equals) and not exists(path)
    file = Path(results) if divided else path
    if _is_json(file):
        return _read_results(file, Path(deployment) if divided else None)
    if divided:
        raise InputError("a table of measurements states its deployments itself", str(path), str(file))
    return read_measured(file)


def _is_json(path: Path) -> bool:
    """Return whether a file holds JSON, one document or one a line, and not a table."""
    try:
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
    except (OSError, ValueError) as error:
        raise InputError(f"measurements cannot be read ({type(error).__name__})", str(path)) from None
    return start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def _read_results(path: Path, deployment: Path | None) -> list[MeasuredPoint]:
    published = _published_rows(path)
    if published:
        return [point for row in published if (point := _published(row, path)) is not None]
    if deployment is None:
        rule = "results of a load client do not state what served them: give their deployment"
        raise InputError(rule, str(path), f"{path}=deployment.yaml")
    served = load_deployment(deployment)
    return [_point(result, served) for result in measured_results(path)]


def _published_rows(path: Path) -> list[Mapping[str, Any]]:
    """Return the rows of InferenceX in a file; [] if it is another one."""
    documents = read_documents(path)
    rows = documents[0] if len(documents) == 1 and isinstance(documents[0], list) else documents
    return rows if rows and all(isinstance(row, dict) and row.keys() >= _PUBLISHED for row in rows) else []


def _published(row: Mapping[str, Any], path: Path) -> MeasuredPoint | None:
    """Return a row of InferenceX; one of several pools or nodes has an engine that the catalog does not know."""
    divided = bool(row.get("is_multinode") or row.get("disagg"))
    framework = str(row["framework"])
    ranks = row.get("tp", 1) if str(row.get("dp_attention", "")).lower() in ("true", "1") else 1
    columns: dict[str, str] = {
        "system": str(row["hw"]).lower(),
        "backend": f"{framework} on several nodes" if divided else {"trt": "trtllm"}.get(framework, framework),
        "backend_version": str(row.get("image", "")),
        "model": str(row.get("model", "")),
        "precision": str(row.get("precision", "")),
        "gpus": str(row.get("tp", 1)),
        "tensor_parallel": str(1 if ranks != 1 else row.get("tp", 1)),
        "pipeline_parallel": "1",
        "attention_data_parallel": str(ranks),
        "expert_parallel": str(float(row.get("ep") or 1) > 1).lower(),
        "concurrency": str(row["conc"]),
        "input_tokens_max": str(row["isl"]),
        "output_tokens_max": str(row["osl"]),
        "ttft_mean_ms": str(float(row["mean_ttft"]) * 1e3),
        "tpot_mean_ms": str(float(row["mean_tpot"]) * 1e3),
        "source": path.name,
    }
    try:
        return closed_loop(columns)
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{path.name} has a row that is not a measurement ({error})") from None


def _point(result: MeasuredRun | MeasuredSummary, served: Deployment) -> MeasuredPoint:
    keys = served.model_dump(mode="json", exclude_unset=True)
    inputs, outputs = _mean_lengths(result)
    if isinstance(result, MeasuredSummary):
        workload: dict[str, Any] = {"input_tokens": round(inputs), "output_tokens": round(outputs)}
        found = {f"{m}_s.mean": result.value_s(m, "mean") for m in _METRICS}
    else:
        order = np.argsort(result.arrival_s, kind="stable")
        lengths = [getattr(result, name)[order].astype(np.int64) for name in ("input_tokens", "output_tokens")]
        workload = fit_workload(Trace(None, lengths[0], lengths[1], None, 16, result.client), own_arrivals=False)
        found = {f"{m}_s.mean": float(result.stat(m, "mean")) for m in _METRICS}
    values = {name: value for name, value in found.items() if value is not None and np.isfinite(value) and value > 0}
    offered = result.offered
    return MeasuredPoint(
        model=Path(served.model).name,
        engine=served.engine,
        hardware=served.hardware,
        workload=f"{inputs:.0f}/{outputs:.0f} tokens by {result.client}",
        batch=offered.concurrency or result.n,
        deployment=keys,
        keys={**workload, "arrivals": _arrivals(offered), "requests": result.n},
        values=values,
        source=result.source,
    )


def _mean_lengths(result: MeasuredRun | MeasuredSummary) -> tuple[float, float]:
    if isinstance(result, MeasuredSummary):
        return max(result.input_mean_tokens, 1.0), max(result.output_mean_tokens, 1.0)
    return float(result.input_tokens.mean()), float(result.output_tokens.mean())


def _arrivals(offered: OfferedLoad) -> Any:
    """Return the arrivals that a client was set to: a rate, a number of clients, or all requests at once."""
    if offered.requests_per_s is not None:
        return {"poisson": {"requests_per_s": offered.requests_per_s}}
    if offered.concurrency is not None:
        return {"closed_loop": {"concurrency": offered.concurrency}}
    return "all_at_once"
