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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf, isfinite, isnan
from pathlib import Path
from typing import Any, Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.io.output_files import write_atomically
from simulator.analysis.time_series import series
from simulator.cluster.compiled import CompiledDeployment
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
        starts = np.sort(np.concatenate([_inside(log, requested)[0] for log in run.logs] or [np.zeros(0)]))
        nested = len(starts) * (N_CLASSES + 2) <= MOST_SLICES
        notices = []
        if not nested:
            notices.append(
                "the trace shows steps without operator classes; --trace-window A..B shows a part of the run in detail"
            )
        if len(starts) > MOST_SLICES:
            last_s = float(starts[MOST_SLICES])
            notices.append(
                f"the trace ends at {last_s:.3f} s, after {MOST_SLICES:,} steps; use --trace-window for a later part"
            )
            requested = TraceWindow(requested.from_s, last_s)
        if any(float(_inside(log, requested)[1].max(initial=0.0)) > 1 for log in run.logs):
            notices.append(
                "the trace shows decode steps that were simulated as one event as one slice with their number"
            )
        return cls(run, requested, nested, notices)

    def parts(self) -> Iterator[str]:
        """Yield the text of the file."""
        yield '{"displayTimeUnit":"ms","traceEvents":[\n'
        separator = ""
        for event in (*self._names(), *sorted(self._events(), key=lambda e: (e["ts"], -e.get("dur", 0)))):
            if "ts" in event:
                event["ts"] /= 1000
            if "dur" in event:
                event["dur"] /= 1000
            yield separator + json.dumps(event, separators=(",", ":"))
            separator = ",\n"
        yield "\n]}\n"

    def _names(self) -> Iterator[Event]:
        several = len(self.run.pools) > 1
        for index, replica in enumerate(self.run.replicas):
            role = self.run.pools[replica.pool].role
            pool = f" (pool {replica.pool}{'' if role == 'both' else ', ' + role})" if several else ""
            yield _meta("process_name", index, 0, {"name": f"replica {index}{pool}"})
            yield _meta("process_sort_index", index, 0, {"sort_index": index})
            for lane in range(len(replica.logs)):
                name = "steps" if len(replica.logs) == 1 else f"steps of batch {lane}"
                yield _meta("thread_name", index, lane, {"name": name})

    def _events(self) -> Iterator[Event]:
        happened = _by_lane(self.run)
        for index, replica in enumerate(self.run.replicas):
            plant = self.run.pools[replica.pool].plant
            for lane, log in enumerate(replica.logs):
                yield from self._steps(index, lane, log, plant, happened.get((index, lane), {}))
        yield from self._counters()
        yield from self._transfers()
        yield from self._fetches()
        yield from self._instants()

    def _steps(
        self,
        pid: int,
        tid: int,
        log: StepLog,
        plant: CompiledDeployment | None,
        happened: dict[float, dict[str, list[int]]],
    ) -> Iterator[Event]:
        if not len(log):
            return
        here = _inside(log, self.window)[2]
        table, classes = log.table()[here], None
        if plant is not None and self.nested:
            stages = plant.resolved.layout.pipeline_parallel
            classes = np.concatenate([p.device[:, :N_CLASSES] for p in priced(plant.cost.tables, log)])[here] * stages
        last = 0
        for i, values in enumerate(table.tolist()):
            row = dict(zip(COLUMNS, values, strict=True))
            begin = max(last, _ns(row["start_s"]))
            last = max(begin, _ns(row["start_s"] + row["total_s"]))
            events = happened.get(row["start_s"] + row["total_s"], {})
            place = {"ph": "X", "pid": pid, "tid": tid}
            yield {
                "name": _name(row),
                "cat": "step",
                "ts": begin,
                "dur": last - begin,
                "args": _args(row, events),
                **place,
            }
            if classes is not None:
                for name, ts, dur in _parts_of(classes[i], row["total_s"], begin, last):
                    yield {"name": name, "cat": "operators", "ts": ts, "dur": dur, **place}

    def _counters(self) -> Iterator[Event]:
        first_s, last_s = self._bounds_s()
        replicas = len(self.run.replicas)
        points = int(min(MOST_POINTS, max(10, MOST_COUNTS // (len(COUNTERS) * replicas))))
        if not last_s > first_s:
            return
        edges_s = np.linspace(first_s, last_s, points + 1)
        for part in series(self.run, edges_s):
            if part.replica < 0 or part.replica * len(COUNTERS) * points > MOST_COUNTS:
                continue
            for name, (figure, factor) in COUNTERS.items():
                yield from _changes(part.replica, name, edges_s, part.figures[figure] * factor)

    def _bounds_s(self) -> tuple[float, float]:
        """Return the first and the last second that the trace shows."""
        ends = [float((log.start_s + log.total_s).max()) for log in self.run.logs if len(log)]
        first_s, last_s = self.run.span_s
        last_s = max([last_s, *ends])
        return max(self.window.from_s, min(first_s, last_s)), min(self.window.to_s, last_s)

    def _transfers(self) -> Iterator[Event]:
        last_s = self._bounds_s()[1]
        for number, (request, source, target, start_s, end_s) in enumerate(self.run.handovers.tolist()):
            name = f"KV of request {int(request)} to replica {int(target)}"
            end_s = last_s if isnan(end_s) else end_s  # not complete when the run was cut off
            yield from self._under_way(name, {"cat": "transfer", "id": number, "pid": int(source)}, start_s, end_s)

    def _fetches(self) -> Iterator[Event]:
        assert self.run.options.journal is not None
        for number, (request, replica, start_s, end_s) in enumerate(self.run.options.journal.fetches().tolist()):
            name = f"KV of request {int(request)} from the host"
            yield from self._under_way(name, {"cat": "fetch", "id": number, "pid": int(replica)}, start_s, end_s)

    def _under_way(self, name: str, place: Event, start_s: float, end_s: float) -> Iterator[Event]:
        """Yield an asynchronous slice, if it overlaps the window."""
        if end_s >= self.window.from_s and start_s <= self.window.to_s:
            place = {"name": name, "tid": 0} | place
            yield {"ph": "b", "ts": _ns(start_s), **place}
            yield {"ph": "e", "ts": max(_ns(start_s), _ns(end_s)), **place}

    def _instants(self) -> Iterator[Event]:
        shown = self.window
        assert self.run.options.journal is not None
        for now, kind, request, replica, lane in self.run.options.journal.events().tolist():
            if kind == PREEMPTED and shown.from_s <= now <= shown.to_s:
                name = f"request {int(request)} preempted"
                yield {"name": name, "ph": "i", "s": "t", "ts": _ns(now), "pid": int(replica), "tid": int(lane)}
        for index, did in enumerate(self.run.replicas):
            for name, now in (("started", did.born_s), ("stopped", did.died_s)):
                if isfinite(now) and now > 0.0 and shown.from_s <= now <= shown.to_s:
                    yield {"name": f"replica {name}", "ph": "i", "s": "p", "ts": _ns(now), "pid": index, "tid": 0}


def _meta(name: str, pid: int, tid: int, args: Event) -> Event:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _inside(log: StepLog, window: TraceWindow) -> tuple[FloatArray, FloatArray, np.ndarray]:
    """Return (starts, step counts, indices) of the rows that overlap a window. Each has shape (rows,)."""
    start_s, steps = log.start_s, log.steps
    here = np.flatnonzero((start_s < window.to_s) & (start_s + log.total_s > window.from_s))
    return start_s[here], steps[here], here


def _by_lane(run: Run) -> dict[tuple[int, int], dict[float, dict[str, list[int]]]]:
    """Return the requests whose prompt was completed, or that ended, by lane and by the end of the step."""
    if run.options.journal is None:
        raise ValueError("a trace needs the event log of the run, which has none")
    kinds = {PROMPTED: "prompts_done", FINISHED: "requests_done"}
    found: dict[tuple[int, int], dict[float, dict[str, list[int]]]] = {}
    for now, kind, request, replica, lane in run.options.journal.events().tolist():
        if kind in kinds:
            names = found.setdefault((int(replica), int(lane)), {}).setdefault(now, {})
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
    args |= {"first_step_ms": row["first_s"] * 1e3, "last_step_ms": 1e3 * _last_s(row)}
    for kind, requests in events.items():
        args[kind] = requests[:MOST_NAMES] + ([f"{len(requests)} in total"] if len(requests) > MOST_NAMES else [])
    return args


def _last_s(row: dict[str, float]) -> float:
    return row["first_s"] + row["slope_s"] * (row["steps"] - 1.0)


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


def _changes(pid: int, name: str, edges_s: FloatArray, values: Iterable[float]) -> Iterator[Event]:
    """Yield a counter where it changes, and its end."""
    before: float | None = None
    for at_s, value in zip(edges_s[:-1].tolist(), values, strict=True):
        shown = round(float(value), 3)
        if shown != before:
            yield {"name": name, "ph": "C", "ts": _ns(at_s), "pid": pid, "tid": 0, "args": {"value": shown}}
            before = shown
    yield {"name": name, "ph": "C", "ts": _ns(float(edges_s[-1])), "pid": pid, "tid": 0, "args": {"value": 0}}
