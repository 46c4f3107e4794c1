"""The output files of a run, each written completely or not at all, and the optional outputs that a user requests."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from catalogs.deployments.schema import SHARED_KEYS, Deployment
from catalogs.errors import InputError
from catalogs.io.output_files import write_atomically
from catalogs.workloads.workload import Workload
from simulator.analysis.metrics import fleet_metrics, streaming_notice, summarise
from simulator.analysis.time_series import check_time_series, write_time_series
from simulator.cluster.compiled import CompiledDeployment
from simulator.cluster.run import Run
from simulator.core.outcomes import STATUS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulator.engine.event_log import EventLog


def blocks_notice(plant: CompiledDeployment, kv_blocks: int) -> str:
    """Return a notice if the cache of a run has another number of blocks than the deployment's, else ""."""
    memory = plant.memory
    if kv_blocks == memory.kv_blocks * memory.data_parallel:
        return ""
    return (
        f"{plant.resolved.model.name} caches less of long sequences: for these lengths its cache is simulated "
        f"as {kv_blocks} blocks of {memory.block_size} tokens, {memory.kv_blocks * memory.data_parallel} at 2048 tokens"
    )


SCHEMA_VERSION = 1


def document(run: Run, deployment: Deployment, workload: Workload) -> dict[str, Any]:
    """Return OUT.json as a dictionary of plain values."""
    summary = summarise(run)
    summary["metrics"] |= fleet_metrics(run)
    per_s = summary["metrics"]["output_tokens_per_s"]
    notices = [
        streaming_notice(run.plants[-1].resolved, per_s),  # the last pool streams all tokens except the first
        *(notice for compiled in run.plants for notice in compiled.notices),
        *(blocks_notice(pool.plant, pool.rules.kv_blocks) for pool in run.pools if pool.plant),
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "deployment": resolved_deployment(run, deployment),
        "workload": {
            "name": workload.name,
            "source": workload.source,
            "requests": run.requests.n,
            "concurrency": run.requests.concurrency,
        },
        "seed": run.requests.seed,
        "notices": list(dict.fromkeys(filter(None, [*notices, *workload.notices]))),
        **summary,
    }


def resolved_deployment(run: Run, deployment: Deployment) -> dict[str, Any]:
    """Return deployment.yaml with every null filled in, and derived values."""
    parts = deployment.slices
    blocks = [_pool(plant, part.written) for plant, part in zip(run.plants, parts, strict=True)]
    shared = {key: getattr(deployment, key) for key in SHARED_KEYS if key not in ("disaggregation", "pools")}
    if len(blocks) == 1:
        return blocks[0] | shared
    whole = {**blocks[0], "hardware": deployment.hardware, "replicas": len(run.replicas), **shared}
    if deployment.disaggregation is None:
        return whole | {"pools": [{"role": part.role} | block for part, block in zip(parts, blocks, strict=True)]}
    disaggregated = deployment.disaggregation.model_dump()
    return whole | {"disaggregation": disaggregated | {part.role: b for part, b in zip(parts, blocks, strict=True)}}


def _pool(plant: CompiledDeployment, written: Deployment) -> dict[str, Any]:
    resolved = plant.resolved
    return {
        **resolved.filled_in(written),
        "engine_version": resolved.engine.version,
        "model_id": resolved.model.hf_id,
        "kv_cache": plant.memory.equation,
        "host_times": asdict(resolved.engine.host),
    }


_TIMES: Final = ("arrival_s", "ttft_s", "tpot_s", "e2e_s", "queue_s")


def write_csv(run: Run, path: Path) -> None:
    """Write one row per request in workload order; cells are empty if a time does not exist."""
    requests = run.requests
    times = {name: [None if x != x else x for x in getattr(run, name).tolist()] for name in _TIMES}
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
    }
    rows = (",".join("" if x is None else str(x) for x in row) + "\n" for row in zip(*columns.values(), strict=True))
    write_atomically(path, (",".join(columns) + "\n", *rows))


_UNITS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}

_TIME: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*")


@dataclass(frozen=True, slots=True)
class RequestedOutputs:
    """The outputs of a run that a user requests in addition to its summary.

    `trace_window` is (from, to) in seconds, or None for the whole run.
    """

    chrome_trace: Path | None
    trace_window: tuple[float, float] | None
    time_series: Path | None
    time_step_s: float
    explain: bool

    @classmethod
    def of(
        cls, chrome_trace: Path | None, window: str | None, time_series: Path | None, step_s: float, explain: bool
    ) -> RequestedOutputs:
        """Return the requested outputs.

        Raises:
            InputError: The window is invalid or given without a trace, or the time series has an unknown format or
                step.
        """
        if window is not None and chrome_trace is None:
            raise InputError("--trace-window selects a part of a trace", window, "with --chrome-trace T.json")
        check_time_series(time_series or Path("series.csv"), step_s)
        return cls(chrome_trace, None if window is None else parse_window(window), time_series, step_s, explain)

    def journal(self) -> EventLog | None:
        """Return the event log that the run must fill for these outputs; None if they need none."""
        if self.chrome_trace is None and self.time_series is None and not self.explain:
            return None
        from simulator.engine.event_log import EventLog

        return EventLog()

    def write(self, run: Run, document: dict[str, Any]) -> list[str]:
        """Write the files and add the explanation to the document; return notices about them."""
        notices = []
        if self.chrome_trace is not None:
            from simulator.analysis.chrome_trace import TraceWindow, write_chrome_trace

            notices += write_chrome_trace(run, self.chrome_trace, TraceWindow(*self.trace_window or ()))
        if self.time_series is not None:
            write_time_series(run, self.time_series, self.time_step_s)
        if self.explain:
            from simulator.analysis.explain import explain

            document["explain"] = explain(run)
        return notices


def parse_window(text: str) -> tuple[float, float]:
    """Return a window such as "10s..20s" as (from, to) in seconds.

    Bare numbers are seconds, and a missing end is that of the run.

    Raises:
        InputError: The text is not a window.
    """
    ends = text.split("..")
    if len(ends) != 2 or not text.strip(" ."):
        raise InputError("a trace window has the form FROM..TO", text, "10s..20s")
    from_s = _seconds(ends[0], text) if ends[0].strip() else 0.0
    to_s = _seconds(ends[1], text) if ends[1].strip() else float("inf")
    if not to_s > from_s:
        raise InputError("a trace window must end after it begins", text, "10s..20s")
    return from_s, to_s


def _seconds(text: str, window: str) -> float:
    found = _TIME.fullmatch(text)
    if found is None or found[2] not in _UNITS:
        rule = "a trace window has the form FROM..TO, with times such as 10s, 1.5m or 200ms"
        raise InputError(rule, window, "10s..20s")
    return float(found[1]) * _UNITS[found[2]]
