"""A run as a Chrome trace (Trace Event Format, JSON object form), for https://ui.perfetto.dev and chrome://tracing.

There is one process per replica. A thread per batch in flight holds its steps, and each step holds the time of operator
classes and the host one after the other. This shows how long they took, not their order, because layers alternate.
Counters are means over equal times (`simulator.analysis.time_series`). A KV transfer is an asynchronous slice of the
sender, or of the replica whose host it comes from. Preemptions, starts and ends of replicas are instants. A run of
decode steps that was simulated as one event is one slice, whose name contains the number of steps.

Timestamps are whole nanoseconds, written in microseconds as the format requires, so that slices nest exactly. Events
ascend in time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite, isnan
from pathlib import Path
from typing import Any, Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.io.output_files import write_atomically
from simulator.analysis.time_series import series
from simulator.cluster.run import Run
from simulator.core.step_log import COLUMNS, StepLog
from simulator.costs.pricing import N_CLASSES
from simulator.costs.totals import priced
from simulator.engine.event_log import FINISHED, PREEMPTED, PROMPTED
from simulator.layers.operator_call import CLASSES

Event = dict[str, Any]

#: Approximate maximum number of slices of a file, of some 200 bytes each.
MOST_SLICES: Final = 200_000

#: Maximum number of counter values, over all replicas and counters.
MOST_COUNTS: Final = 100_000

#: Maximum number of points of a counter along the trace.
MOST_POINTS: Final = 2_000

#: Maximum number of requests named in the arguments of a step, of each kind.
MOST_NAMES: Final = 8

#: Trace counter: (figure of a time series, factor).
COUNTERS: Final = {
    "queue (requests)": ("queue", 1.0),
    "running (sequences)": ("running", 1.0),
    "KV use (%)": ("kv_fraction", 100.0),
    "power (W)": ("power_w", 1.0),
}


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """The part of a run that a trace shows, in seconds."""

    from_s: float = 0.0
    to_s: float = inf


def write_chrome_trace(run: Run, path: Path, window: TraceWindow | None = None) -> list[str]:
    """Write the trace of a run; return one sentence for each thing that the file leaves out.

    Raises:
        ValueError: The run has no event log.
    """
    trace = _Trace.of(run, window or TraceWindow())
    write_atomically(path, trace.parts())
    return trace.notices


@dataclass(frozen=True, slots=True)
class _Trace:
    """A trace with the window and the detail that the size limits allow."""

    run: Run
    window: TraceWindow
    nested: bool  # whether steps are divided into operator classes
    notices: list[str]

    @classmethod
    def of(cls, run: Run, requested: TraceWindow) -> _Trace:
        """Return as much of the requested trace as the size limits allow."""
        starts = np.sort(np.concatenate([np.zeros(0), *(log.start_s[_inside(log, requested)] for log in run.logs)]))
        nested = len(starts) * (N_CLASSES + 2) <= MOST_SLICES
        notices = []
        if not nested:
            notices.append("the trace omits operator classes; --trace-window A..B shows a part of the run in detail")
        if len(starts) > MOST_SLICES:
            last_s = float(starts[MOST_SLICES])
            ends = f"the trace ends at {last_s:.3f} s, after {MOST_SLICES:,} steps"
            notices.append(f"{ends}; use --trace-window for a later part")
            requested = TraceWindow(requested.from_s, last_s)
        if any(float(log.steps[_inside(log, requested)].max(initial=0.0)) > 1 for log in run.logs):
            notices.append("decode steps that were simulated as one event are one slice, with their number in its name")
        return cls(run, requested, nested, notices)

    def parts(self) -> Iterator[str]:
        """Yield the text of the file."""
        yield '{"displayTimeUnit":"ms","traceEvents":[\n'
        separator = ""
        for event in (*self._names(), *sorted(self._events(), key=lambda e: (e["ts"], -e.get("dur", 0)))):
            event |= {key: event[key] / 1000 for key in ("ts", "dur") if key in event}  # microseconds
            yield separator + json.dumps(event, separators=(",", ":"))
            separator = ",\n"
        yield "\n]}\n"

    def _names(self) -> Iterator[Event]:
        several = len(self.run.pools) > 1
        for index, replica in enumerate(self.run.replicas):
            role = self.run.pools[replica.pool].role
            pool = f" (pool {replica.pool}{'' if role == 'both' else ', ' + role})" if several else ""
            place: Event = {"ph": "M", "pid": index, "tid": 0}
            yield {"name": "process_name", **place, "args": {"name": f"replica {index}{pool}"}}
            yield {"name": "process_sort_index", **place, "args": {"sort_index": index}}
            for batch in range(len(replica.logs)):
                name = "steps" if len(replica.logs) == 1 else f"steps of batch {batch}"
                yield {"name": "thread_name", **place, "tid": batch, "args": {"name": name}}

    def _events(self) -> Iterator[Event]:
        outputs = _outputs(self.run)
        for index, replica in enumerate(self.run.replicas):
            for batch, log in enumerate(replica.logs):
                if len(log):
                    yield from self._steps({"ph": "X", "pid": index, "tid": batch}, log, outputs)
        yield from self._counters()
        yield from self._transfers()
        yield from self._instants()

    def _steps(self, place: Event, log: StepLog, outputs: Outputs) -> Iterator[Event]:
        here, compiled = _inside(log, self.window), self.run.pools[self.run.replicas[place["pid"]].pool].compiled
        table, classes = log.table()[here], None
        if compiled is not None and self.nested:
            device_s = np.concatenate([part.device[:, :N_CLASSES] for part in priced(compiled.cost.tables, log)])
            classes = device_s[here] * compiled.resolved.batches_in_flight
        last = 0
        for i, values in enumerate(table.tolist()):
            row = dict(zip(COLUMNS, values, strict=True))
            end_s = row["start_s"] + row["total_s"]
            begin = max(last, _ns(row["start_s"]))
            last = max(begin, _ns(end_s))
            args = _args(row, outputs.get((place["pid"], place["tid"], end_s), {}))
            yield {"name": _name(row), "cat": "step", "ts": begin, "dur": last - begin, "args": args, **place}
            if classes is not None:
                for name, ts, dur in _parts_of(classes[i], row["total_s"], begin, last):
                    yield {"name": name, "cat": "operators", "ts": ts, "dur": dur, **place}

    def _counters(self) -> Iterator[Event]:
        first_s, last_s = self._bounds_s()
        points = min(MOST_POINTS, max(10, MOST_COUNTS // (len(COUNTERS) * len(self.run.replicas))))
        if not last_s > first_s:
            return
        edges_s = np.linspace(first_s, last_s, points + 1)
        for part in series(self.run, edges_s):
            if part.replica < 0 or part.replica * len(COUNTERS) * points > MOST_COUNTS:
                continue
            place: Event = {"ph": "C", "pid": part.replica, "tid": 0}
            for name, (figure, factor) in COUNTERS.items():
                shown = [round(float(value), 3) for value in part.figures[figure] * factor]
                for at_s, value, before in zip(edges_s.tolist(), [*shown, 0], [None, *shown], strict=True):
                    if value != before or at_s == last_s:
                        yield {"name": name, "ts": _ns(at_s), **place, "args": {"value": value}}

    def _bounds_s(self) -> tuple[float, float]:
        """Return the first and the last second that the trace shows."""
        first_s, last_s = self.run.span_s
        last_s = max([last_s, *(float((log.start_s + log.total_s).max()) for log in self.run.logs if len(log))])
        return max(self.window.from_s, min(first_s, last_s)), min(self.window.to_s, last_s)

    def _transfers(self) -> Iterator[Event]:
        """Yield the transfers between replicas and from hosts that overlap the window, as asynchronous slices."""
        assert self.run.options.event_log is not None
        rows = [
            ("transfer", number, source, f"KV of request {int(request)} to replica {int(target)}", start_s, end_s)
            for number, (request, source, target, start_s, end_s) in enumerate(self.run.handovers.tolist())
        ]
        for number, (request, source, target, _, _, start_s, end_s, _) in enumerate(self.run.encodings.tolist()):
            name = f"embeddings of request {int(request)} to replica {int(target)}"
            rows += [("embeddings", number, source, name, start_s, end_s)] if target >= 0 else []
        rows += [
            ("fetch", number, replica, f"KV of request {int(request)} from the host", start_s, end_s)
            for number, (request, replica, start_s, end_s) in enumerate(self.run.options.event_log.fetches().tolist())
        ]
        cut_s = self._bounds_s()[1]  # the end of transfers that were not complete when the run was cut off
        for category, number, replica, name, start_s, end_s in rows:
            last_s = cut_s if isnan(end_s) else end_s
            if last_s >= self.window.from_s and start_s <= self.window.to_s:
                place = {"name": name, "tid": 0, "cat": category, "id": number, "pid": int(replica)}
                yield {"ph": "b", "ts": _ns(start_s), **place}
                yield {"ph": "e", "ts": max(_ns(start_s), _ns(last_s)), **place}

    def _instants(self) -> Iterator[Event]:
        assert self.run.options.event_log is not None
        rows = [
            (now, f"request {int(request)} preempted", "t", int(replica), int(batch))
            for now, kind, request, replica, batch in self.run.options.event_log.events().tolist()
            if kind == PREEMPTED
        ]
        for index, record in enumerate(self.run.replicas):
            times = (("started", record.created_s), ("stopped", record.removed_s))
            rows += [(now, f"replica {name}", "p", index, 0) for name, now in times if isfinite(now) and now > 0.0]
        for now, name, scope, pid, tid in rows:
            if self.window.from_s <= now <= self.window.to_s:
                yield {"name": name, "ph": "i", "s": scope, "ts": _ns(now), "pid": pid, "tid": tid}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _inside(log: StepLog, window: TraceWindow) -> IntArray:
    """Return the indices of the rows that overlap a window. Shape (rows in the window,)."""
    return np.flatnonzero((log.start_s < window.to_s) & (log.start_s + log.total_s > window.from_s))


#: (replica, batch in flight, end of the step): the requests whose prompt was completed then, or that ended.
Outputs = dict[tuple[int, int, float], dict[str, list[int]]]


def _outputs(run: Run) -> Outputs:
    if run.options.event_log is None:
        raise ValueError("a trace needs the event log of the run, which has none")
    kinds = {PROMPTED: "prompts_done", FINISHED: "requests_done"}
    found: Outputs = {}
    for now, kind, request, replica, batch in run.options.event_log.events().tolist():
        if kind in kinds:
            names = found.setdefault((int(replica), int(batch), now), {})
            names.setdefault(kinds[int(kind)], []).append(int(request))
    return found


def _name(row: dict[str, float]) -> str:
    steps, chunks, tokens, decodes = (int(row[k]) for k in ("steps", "prefill_chunks", "prefill_tokens", "decodes"))
    parts = [f"{tokens} prompt tokens in {chunks}"] if chunks else []
    parts += [f"{decodes} decodes"] if decodes else []
    return " + ".join(parts) + (f" x {steps} steps" if steps > 1 else "")


def _args(row: dict[str, float], events: dict[str, list[int]]) -> Event:
    """Return the contents of a batch; contexts are those of the first step."""
    counts = ("steps", "prefill_tokens", "prefill_chunks", "decodes", "logits", "context_max")
    args: Event = {name: int(row[name]) for name in counts}
    if row["accepted"]:
        args["accepted_drafts"] = int(row["accepted"])
    args["context_mean"] = row["context_sum"] / row["decodes"] if row["decodes"] else 0.0
    last_s = row["first_s"] + row["slope_s"] * (row["steps"] - 1.0)
    args |= {"first_step_ms": row["first_s"] * 1e3, "last_step_ms": 1e3 * last_s}
    for kind, requests in events.items():
        args[kind] = requests[:MOST_NAMES] + ([f"{len(requests)} in total"] if len(requests) > MOST_NAMES else [])
    return args


def _parts_of(classes: FloatArray, total_s: float, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Yield (class, start, duration) in nanoseconds: device time by class, then host time.

    Together they fill the step.
    """
    device = float(classes.sum())
    scale = (end - begin) / max(total_s, device)
    at, reached = begin, 0.0
    for name, seconds in sorted(zip(CLASSES, classes.tolist(), strict=True), key=lambda part: -part[1]):
        reached += seconds
        until = min(end, begin + round(reached * scale))
        if until > at:
            yield name, at, until - at
        at = until
    if end > at:
        yield "host", at, end - at
