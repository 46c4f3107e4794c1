"""The folder of a trace: samples, requests and a Perfetto trace; and the document that the screen prints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from calibration.machine_trace.advice import PageFaultCosts, advice
from calibration.machine_trace.disturbances import disturbances, until_first_token, while_slow
from calibration.machine_trace.perfetto import write_perfetto
from calibration.machine_trace.readings import quantity
from calibration.machine_trace.sampler import MachineTrace, facts_of
from catalogs.errors import InputError
from catalogs.hardware.specs import HostCopyRate
from catalogs.io.output_files import make_folder, write_atomically

SAMPLES: Final = "machine.parquet"

REQUESTS: Final = "requests.jsonl"

PERFETTO: Final = "machine.perfetto.json"

#: Signals and disturbances in the document.
_MOST: Final = 40

#: Numbers of a request, and those that it may have.
_NEEDED, _FURTHER = ("start_s", "end_s", "latency_s"), ("first_token_s",)

Requests = Sequence[Mapping[str, float]]


def check_new_trace(folder: Path | None) -> None:
    """Check that a trace can be written to a folder; None is no folder.

    Raises:
        InputError: The folder holds a trace already, or is a file.
    """
    if folder is not None and ((folder / SAMPLES).exists() or folder.is_file()):
        raise InputError("a trace is written into a folder that holds none", str(folder))


def write_trace(folder: Path, trace: MachineTrace, requests: Requests) -> None:
    """Write the samples of a trace, the requests that were served, and both as a Perfetto trace.

    Args:
        folder: The folder; it is made if it does not exist.
        trace: The trace.
        requests: `start_s`, `end_s` (since the start of the trace) and `latency_s` of each request; with
            `first_token_s`, since the start of the trace as well, its time is split into two phases.
    """
    make_folder(folder)
    trace.write(folder / SAMPLES)
    write_atomically(folder / REQUESTS, [json.dumps(dict(request)) + "\n" for request in requests])
    write_perfetto(trace, requests, folder / PERFETTO)


def read_trace(folder: Path) -> tuple[MachineTrace, list[dict[str, float]]]:
    """Return the trace and the requests of a folder.

    Raises:
        InputError: The folder holds no trace, or a request is not one.
    """
    if not (folder / SAMPLES).is_file():
        raise InputError(f"the folder of a trace has a file {SAMPLES}", str(folder))
    trace, path = MachineTrace.read(folder / SAMPLES), folder / REQUESTS
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        requests = [
            {name: float(row[name]) for name in (*_NEEDED, *(n for n in _FURTHER if n in row))}
            for row in map(json.loads, lines)
        ]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError("a line of this file is not a request with start_s, end_s and latency_s", str(path)) from None
    return trace, requests


def document(
    trace: MachineTrace, requests: Requests, costs: PageFaultCosts, copies: Sequence[HostCopyRate] = ()
) -> dict[str, Any]:
    """Return what a trace shows: disturbances, the signals while the slowest requests were served, and advice.

    The last two arguments are those of `advice`.
    """
    slow, limit_s = while_slow(trace, requests)
    waiting, first_limit_s = while_slow(trace, until_first_token(requests))
    signals = trace.signals()
    return {
        "schema_version": 1,
        **facts_of(trace),
        "requests": len(requests),
        "slow_from_s": limit_s,
        "signals": {name: {"unit": quantity(name).unit, "meaning": quantity(name).words} for name in signals},
        "disturbances": [each.block() for each in disturbances(trace)[:_MOST]],
        "while_slow": [asdict(each) | {"unit": quantity(each.signal).unit} for each in slow[:_MOST]],
        "first_token_slow_from_s": first_limit_s,
        "while_first_token_slow": [asdict(each) | {"unit": quantity(each.signal).unit} for each in waiting[:_MOST]],
        "page_fault_s": asdict(costs),
        "advice": [asdict(each) for each in advice(trace, costs, copies)],
    }
