"""The output files of a run, each written completely or not at all, and the optional outputs that a user requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import inf, isnan
from pathlib import Path
from typing import Any, Final

from calibration.complexity.comparison import compare
from calibration.complexity.summary import complexity_of
from catalogs.deployments.schema import SHARED_KEYS, Deployment
from catalogs.errors import InputError
from catalogs.io.output_files import write_atomically
from catalogs.ui.words import counted
from catalogs.workloads.length_statistics import LengthStatistics
from catalogs.workloads.workload import Workload
from simulator.analysis.chrome_trace import TraceWindow, write_chrome_trace
from simulator.analysis.complexity import latency_parts, latency_records
from simulator.analysis.explain import explain
from simulator.analysis.metrics import fleet_metrics, streaming_notice, summarise
from simulator.analysis.sessions import session_metrics
from simulator.analysis.time_series import check_time_series, write_time_series
from simulator.cluster.compiled import CompiledDeployment
from simulator.cluster.run import Run
from simulator.core.outcomes import STATUS
from simulator.engine.event_log import EventLog


def blocks_notice(compiled: CompiledDeployment, kv_blocks: int) -> str:
    """Return a notice if the cache of a run has another number of blocks than the deployment's, else ""."""
    memory = compiled.memory
    if kv_blocks == memory.kv_blocks * memory.data_parallel:
        return ""
    return (
        f"{compiled.resolved.model.name} caches less of long sequences: for these lengths its cache is simulated "
        f"as {kv_blocks} blocks of {memory.block_size} tokens, {memory.kv_blocks * memory.data_parallel} at 2048 tokens"
    )


SCHEMA_VERSION = 1


def document(run: Run, deployment: Deployment, workload: Workload) -> dict[str, Any]:
    """Return OUT.json as a dictionary of plain values."""
    summary = summarise(run)
    summary["metrics"] |= fleet_metrics(run) | session_metrics(run)
    last = run.compiled_pools[-1].resolved  # the last pool streams all tokens except the first
    notices = [
        streaming_notice(last, summary["metrics"]["output_tokens_per_s"]),
        *(notice for compiled in run.compiled_pools for notice in compiled.notices),
        *(blocks_notice(pool.compiled, pool.rules.kv_blocks) for pool in run.pools if pool.compiled),
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "deployment": resolved_deployment(run, deployment),
        "workload": {
            "name": workload.name,
            "source": workload.source,
            "requests": run.requests.n,
            "concurrency": run.requests.concurrency,
            **LengthStatistics.of(run.requests.input_tokens, run.requests.output_tokens).block(),
        },
        "seed": run.requests.seed,
        "notices": list(dict.fromkeys(filter(None, [*notices, *workload.notices]))),
        **summary,
    }


def resolved_deployment(run: Run, deployment: Deployment) -> dict[str, Any]:
    """Return deployment.yaml with every null filled in, and derived values."""
    parts = deployment.slices
    blocks = [
        {
            **compiled.resolved.filled_in(part.written),
            "engine_version": compiled.resolved.engine.version,
            "model_id": compiled.resolved.model.hf_id,
            "kv_cache": compiled.memory.equation,
            "host_times": asdict(compiled.resolved.engine.host),
        }
        for compiled, part in zip(run.compiled_pools, parts, strict=True)
    ]
    shared = {key: getattr(deployment, key) for key in SHARED_KEYS if key not in ("disaggregation", "pools")}
    if deployment.encoder_pool is not None:
        shared["encoder_pool"] = deployment.encoder_pool.model_dump() | {"encode": blocks.pop(0)}
        parts = parts[1:]
    if len(blocks) == 1:
        return blocks[0] | shared
    whole = {**blocks[0], "hardware": deployment.hardware, "replicas": len(run.replicas), **shared}
    if deployment.disaggregation is None:
        return whole | {"pools": [{"role": part.role} | block for part, block in zip(parts, blocks, strict=True)]}
    disaggregated = deployment.disaggregation.model_dump()
    return whole | {"disaggregation": disaggregated | {part.role: b for part, b in zip(parts, blocks, strict=True)}}


_TIMES: Final = ("arrival_s", "ttft_s", "tpot_s", "e2e_s", "queue_s")


def write_csv(run: Run, path: Path) -> None:
    """Write one row per request in workload order; cells are empty if a time does not exist.

    The last columns are the parts of the end-to-end time, which add up to it.
    """
    requests = run.requests
    times = {name: [None if isnan(x) else x for x in getattr(run, name).tolist()] for name in _TIMES}
    columns: dict[str, Iterable[object]] = {
        "request_id": range(requests.n),
        "arrival_s": times.pop("arrival_s"),
        "input_tokens": requests.input_tokens.tolist(),
        "output_tokens": requests.output_tokens.tolist(),
        "cached_tokens": run.cached_tokens.tolist(),
        **times,
        "preemptions": run.preemptions.tolist(),
        "replica": [index if index >= 0 else None for index in run.replica.tolist()],
        "status": [STATUS[code] for code in run.status.tolist()],
        **{
            f"part_{name}_s": [None if isnan(x) else x for x in seconds.tolist()]
            for name, seconds in latency_parts(run).items()
        },
    }
    rows = (",".join("" if x is None else str(x) for x in row) + "\n" for row in zip(*columns.values(), strict=True))
    write_atomically(path, (",".join(columns) + "\n", *rows))


_UNITS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}

_TIME: Final = r"\s*(?:(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min|m|h|))?\s*"

WHOLE_RUN: Final = "0s.."

_WINDOW: Final = re.compile(rf"{_TIME}\.\.{_TIME}")


@dataclass(frozen=True, slots=True)
class RequestedOutputs:
    """The outputs of a run that a user requests in addition to its summary.

    `trace_window` is the text of a window (see `parse_window`), or None for the whole run.
    """

    chrome_trace: Path | None
    trace_window: str | None
    time_series: Path | None
    time_step_s: float
    explain: bool
    compare: Path | None = None
    by_length: bool = False  # the key `complexity`, a regression over all requests

    def __post_init__(self) -> None:
        """Check the outputs before the run.

        Raises:
            InputError: The window is invalid or given without a trace, or the time series has an unknown format or
                step.
        """
        if self.trace_window is not None and self.chrome_trace is None:
            rule = "--trace-window selects a part of a trace"
            raise InputError(rule, self.trace_window, hint="give --chrome-trace T.json")
        parse_window(WHOLE_RUN if self.trace_window is None else self.trace_window)
        check_time_series(self.time_series or Path("series.csv"), self.time_step_s)
        if self.compare is not None:
            from simulator.cli.other_run import other_records

            other_records(self.compare)

    def event_log(self) -> EventLog | None:
        """Return the event log that the run must fill for these outputs; None if they need none."""
        return EventLog() if self.chrome_trace or self.time_series or self.explain else None

    def write(self, run: Run, document: dict[str, Any]) -> list[str]:
        """Write the files and add what the user requested to the document; return notices about them."""
        notices = []
        if self.chrome_trace is not None:
            window = TraceWindow(*parse_window(self.trace_window or WHOLE_RUN))
            notices += write_chrome_trace(run, self.chrome_trace, window)
        if self.time_series is not None:
            write_time_series(run, self.time_series, self.time_step_s)
        if self.explain:
            document["explain"] = explain(run)
        if self.by_length:
            document["complexity"] = complexity_of(latency_records(run)).block()
        if self.compare is not None:
            from simulator.cli.other_run import other_records

            other = other_records(self.compare)
            words = f"{self.compare.name} ({counted(other.n, 'request')})"
            document["comparison"] = {"with": words, **compare(other, latency_records(run)).block()}
        return notices


def parse_window(text: str) -> tuple[float, float]:
    """Return a window such as "10s..20s" as (from, to) in seconds.

    Bare numbers are seconds, and a missing end is that of the run.

    Raises:
        InputError: The text is not a window.
    """
    found = _WINDOW.fullmatch(text)
    if found is None or not text.strip(" ."):
        rule = "a trace window has the form FROM..TO, with times such as 10s, 1.5m or 200ms"
        raise InputError(rule, text, "10s..20s")
    from_s = float(found[1]) * _UNITS[found[2]] if found[1] else 0.0
    to_s = float(found[3]) * _UNITS[found[4]] if found[3] else inf
    if not to_s > from_s:
        raise InputError("a trace window must end after it begins", text, "10s..20s")
    return from_s, to_s
