"""The step log as a Chrome trace (chrome://tracing, Perfetto): steps per replica, batch counters, transfers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from catalogs.files import write_whole
from simulator.run_record import Run
from simulator.step_log import COLUMNS, StepLog


def write_chrome_trace(run: Run, path: Path) -> None:
    """JSON array format, microseconds. A run of decode steps that was simulated as one event is one slice."""
    write_whole(path, _parts(run))


def _parts(run: Run) -> Iterator[str]:
    yield '{"displayTimeUnit":"ms","traceEvents":['
    separator = ""
    for replica, did in enumerate(run.replicas):
        name = {"name": "process_name", "ph": "M", "pid": replica, "args": {"name": f"replica {replica}"}}
        yield separator + json.dumps(name)
        separator = ",\n"
        for lane, log in enumerate(did.logs):
            for event in _events(replica, lane, log):
                yield separator + json.dumps(event, separators=(",", ":"))
    for event in _transfers(run):
        yield separator + json.dumps(event, separators=(",", ":"))
    yield "]}\n"


def _transfers(run: Run) -> Iterator[dict[str, object]]:
    """In the sender's process, on a thread of its own for each receiver; those that wait for a port overlap."""
    for number, (request, source, target, start_s, end_s) in enumerate(run.handovers.tolist()):
        name = f"KV of request {int(request)} to replica {int(target)}"
        place = {"cat": "transfer", "id": number, "pid": int(source), "tid": int(target)}
        yield {"name": name, "ph": "b", "ts": start_s * 1e6, **place}
        yield {"name": name, "ph": "e", "ts": end_s * 1e6, **place}


def _events(replica: int, lane: int, log: StepLog) -> Iterator[dict[str, object]]:
    for values in log.table().tolist():
        row = dict(zip(COLUMNS, values, strict=True))
        start_us, total_us = row["start_s"] * 1e6, row["total_s"] * 1e6
        steps, chunks, tokens, decodes = (
            int(row[key]) for key in ("steps", "prefill_chunks", "prefill_tokens", "decodes")
        )
        parts = [f"{tokens} prompt tokens in {chunks}"] if chunks else []
        parts += [f"{decodes} decodes"] if decodes else []
        name = " + ".join(parts) + (f" x {steps} steps" if steps > 1 else "")
        args = {key: row[key] for key in ("context_sum", "context_max", "logits", "first_s", "slope_s")}
        yield {"name": name, "ph": "X", "pid": replica, "tid": lane, "ts": start_us, "dur": total_us, "args": args}
        counts = {"decodes": decodes, "prompts": chunks}
        yield {"name": "batch", "ph": "C", "pid": replica, "ts": start_us, "args": counts}
        contexts = {"tokens": row["context_sum"]}
        yield {"name": "decode context", "ph": "C", "pid": replica, "ts": start_us, "args": contexts}
