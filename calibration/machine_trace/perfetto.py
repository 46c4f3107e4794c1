"""A trace of the machine as counters under a run's requests, in the format that Perfetto and chrome://tracing read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.machine_trace.disturbances import cause_of, disturbances
from calibration.machine_trace.readings import quantity
from calibration.machine_trace.sampler import MachineTrace
from catalogs.io.output_files import write_atomically

#: Process number of the machine, behind those of replicas.
_MACHINE: Final = 1_000_000

#: Process number of the requests.
_REQUESTS: Final = _MACHINE + 1

#: Microseconds of a second.
_US: Final = 1e6


def events(trace: MachineTrace, shift_s: float = 0.0) -> Iterator[dict[str, Any]]:
    """Yield the signals as counters, the phases and the disturbances as slices, in the order of their times.

    Args:
        trace: The trace.
        shift_s: Seconds that are added to its times, to bring them onto the clock of another trace.
    """
    yield {"ph": "M", "pid": _MACHINE, "name": "process_name", "args": {"name": "machine"}}
    found: list[dict[str, Any]] = []
    for name, values in trace.signals().items():
        label = f"{name} ({quantity(name).unit})"
        for at_s, value in zip(trace.at_s.tolist(), values.tolist(), strict=False):
            if np.isfinite(value):
                ts = (at_s + shift_s) * _US
                found.append({"ph": "C", "pid": _MACHINE, "name": label, "ts": ts, "args": {"value": value}})
    found += [_slice(_MACHINE, 1, p.name, p.start_s, p.end_s, shift_s, {}) for p in trace.phases]
    for i, each in enumerate(disturbances(trace)):
        cause = cause_of(each.signal)
        words = each.signal if cause is None else f"{cause.words} ({each.signal})"
        found.append(_slice(_MACHINE, 100 + i, words, each.start_s, each.end_s, shift_s, each.block()))
    yield from sorted(found, key=lambda event: event["ts"])


def _slice(
    pid: int, thread: int, name: str, start_s: float, end_s: float, shift_s: float, args: Mapping[str, Any]
) -> dict[str, Any]:
    times = {"ts": (start_s + shift_s) * _US, "dur": max(end_s - start_s, 0.0) * _US}
    return {"ph": "X", "pid": pid, "tid": thread, "name": name, **times, "args": dict(args)}


def request_events(requests: Sequence[Mapping[str, float]]) -> Iterator[dict[str, Any]]:
    """Yield requests with their phases as slices; requests that overlap are on different threads."""
    yield {"ph": "M", "pid": _REQUESTS, "name": "process_name", "args": {"name": "requests"}}
    free_s: list[float] = []
    for i, request in enumerate(sorted(requests, key=lambda r: r["start_s"])):
        thread = next((k for k, end_s in enumerate(free_s) if end_s <= request["start_s"]), len(free_s))
        free_s[thread : thread + 1] = [request["end_s"]]
        name = f"request {i}"
        yield _slice(_REQUESTS, thread + 1, name, request["start_s"], request["end_s"], 0.0, request)
        first_s = request.get("first_token_s", np.nan)
        if request["start_s"] <= first_s <= request["end_s"]:
            yield _slice(_REQUESTS, thread + 1, "until the first token", request["start_s"], first_s, 0.0, {})
            yield _slice(_REQUESTS, thread + 1, "after the first token", first_s, request["end_s"], 0.0, {})


def write_perfetto(trace: MachineTrace, requests: Sequence[Mapping[str, float]], path: Path) -> None:
    """Write the requests and the signals below them."""
    every = [*request_events(requests), *events(trace)]
    document = {"traceEvents": every, "displayTimeUnit": "ms"}
    write_atomically(path, [json.dumps(document)])
