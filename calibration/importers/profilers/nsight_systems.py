"""Reads the SQLite export of Nsight Systems (`nsys export --type sqlite`).

Kernels, copies and launches are in the tables CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY, _MEMSET and _RUNTIME, ranges in
NVTX_EVENTS, names in StringIds, sampled metrics in GPU_METRICS (Nsight Systems user guide, "SQLite Schema Reference").
Tables without events are absent. Times are nanoseconds since the start of the session, whose time is in
TARGET_INFO_SESSION_START_TIME. A kernel has the correlation of the call that launched it, in the same process:
globalPid is globalTid without its low 24 bits. torch writes its operators as NVTX ranges with their sizes
(`torch.autograd.profiler.emit_nvtx(record_shapes=True)`; torch/csrc/autograd/profiler_legacy.cpp).
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.importers.profilers.trace import (
    COPY,
    KERNEL,
    ON_DEVICE,
    TO_DEVICE,
    TO_HOST,
    CallsOfThreads,
    DeviceWork,
    NamedRange,
    ProfiledCall,
    ProfilerTrace,
    SampledMetric,
    Sizes,
)
from catalogs.errors import InputError

NAME: Final = "Nsight Systems"

MAGIC: Final = b"SQLite format 3\0"

#: Seconds of a nanosecond.
_NS: Final = 1e-9

#: Numbers of cudaMemcpyKind in CUPTI (CUpti_ActivityMemcpyKind).
_DIRECTIONS: Final = {1: TO_DEVICE, 2: TO_HOST, 8: ON_DEVICE, 10: ON_DEVICE}

#: NVTX events that are ranges of one thread (NvtxPushPopRange), and of a process (NvtxStartEndRange).
_PUSH_POP, _START_END = 59, 60

_SIZES: Final = re.compile(r", sizes = (\[.*?\])(?:, input_op_ids|$)")


def read_nsight_systems(path: Path) -> ProfilerTrace:
    """Return the trace of a file.

    Raises:
        InputError: The file is no such export, is damaged, or has no kernel.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            return _Export(database, path).trace()
    except InputError:
        raise
    except (sqlite3.Error, IndexError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"this export of Nsight Systems cannot be read ({error})", str(path)) from None


class _Export:
    """The tables of one export, read through an open connection; times are in seconds from the start of the session."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        database.row_factory = sqlite3.Row
        self._database, self._path = database, path
        names = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self._tables = {str(row[0]) for row in names}
        self._strings = {int(row["id"]): str(row["value"]) for row in self._rows("StringIds")}

    def trace(self) -> ProfilerTrace:
        """Return the calls, kernels, copies, ranges and sampled metrics of the export.

        Raises:
            InputError: It has no kernel.
        """
        if "CUPTI_ACTIVITY_KIND_KERNEL" not in self._tables:
            rule = "this export of Nsight Systems has no kernels (table CUPTI_ACTIVITY_KIND_KERNEL)"
            raise InputError(rule, str(self._path), hint="profile with --trace=cuda,nvtx")
        calls, ranges = self._nvtx()
        work = tuple(self._work(calls))
        if not work:
            raise InputError("this export of Nsight Systems has no kernels", str(self._path))
        metrics = tuple(self._metrics())
        ends = [c.end_s for c in calls] + [w.end_s for w in work] + [r.end_s for r in ranges]
        notes = []
        if not calls:
            hint = "torch.autograd.profiler.emit_nvtx(record_shapes=True)"
            notes.append(f"no NVTX range is a torch operator with sizes: profile under {hint} for operator rows")
        return ProfilerTrace(
            NAME, self._path.name, calls, work, ranges, metrics, max(ends), self._began(), notes=tuple(notes)
        )

    def _rows(self, table: str) -> Iterator[sqlite3.Row]:
        """Yield the rows of a table in the order of the file; none if the export has no such table."""
        if table in self._tables:
            yield from self._database.execute(f'SELECT * FROM "{table}"')

    def _began(self) -> float | None:
        for row in self._rows("TARGET_INFO_SESSION_START_TIME"):
            if "utcEpochNs" in row.keys():  # noqa: SIM118 (a Row iterates over its values)
                return int(row["utcEpochNs"]) * _NS
        return None

    def _nvtx(self) -> tuple[tuple[ProfiledCall, ...], tuple[NamedRange, ...]]:
        """Return the ranges of torch's operators as calls, and all other ranges."""
        calls, ranges = [], []
        for row in self._rows("NVTX_EVENTS"):
            if row["eventType"] not in (_PUSH_POP, _START_END) or row["end"] is None:
                continue
            text = row["text"] or self._strings.get(_field(row, "textId"), "")
            start_s, end_s = row["start"] * _NS, row["end"] * _NS
            sizes = torch_sizes(text)
            if sizes is not None and row["eventType"] == _PUSH_POP:
                name = text.partition(",")[0]
                calls.append(ProfiledCall(name, str(row["globalTid"]), start_s, end_s, sizes))
            else:
                ranges.append(NamedRange(text, start_s, end_s))
        return tuple(calls), tuple(ranges)

    def _work(self, calls: tuple[ProfiledCall, ...]) -> Iterator[DeviceWork]:
        threads = CallsOfThreads(calls)
        launches = {
            (row["globalTid"] >> 24, row["correlationId"]): (str(row["globalTid"]), row["start"] * _NS)
            for row in self._rows("CUPTI_ACTIVITY_KIND_RUNTIME")
            if row["correlationId"] is not None and row["globalTid"] is not None
        }

        def call_of(row: sqlite3.Row) -> int | None:
            launch = launches.get(((_field(row, "globalPid") or 0) >> 24, row["correlationId"]))
            return None if launch is None else threads.innermost(*launch)

        for row in self._rows("CUPTI_ACTIVITY_KIND_KERNEL"):
            number = _field(row, "demangledName")
            name = self._strings.get(number if number is not None else _field(row, "shortName"), "kernel")
            yield DeviceWork(KERNEL, name, int(row["deviceId"]), row["start"] * _NS, row["end"] * _NS, call_of(row))
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMSET"):
            yield DeviceWork(KERNEL, "memset", int(row["deviceId"]), row["start"] * _NS, row["end"] * _NS, call_of(row))
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMCPY"):
            direction = _DIRECTIONS.get(row["copyKind"], "")
            yield DeviceWork(
                COPY,
                f"copy {direction.replace('_', ' ')}".strip(),
                int(row["deviceId"]),
                row["start"] * _NS,
                row["end"] * _NS,
                call_of(row),
                float(row["bytes"]),
                direction,
            )

    def _metrics(self) -> Iterator[SampledMetric]:
        """Yield the sampled metrics; the low 32 bits of a type are the number of the accelerator."""
        names = {
            (row["typeId"], row["metricId"]): str(row["metricName"]) for row in self._rows("TARGET_INFO_GPU_METRICS")
        }
        found: dict[tuple[Any, Any], list[tuple[float, float]]] = {}
        for row in self._rows("GPU_METRICS"):
            key = row["typeId"], row["metricId"]
            if "%" in names.get(key, ""):
                found.setdefault(key, []).append((row["timestamp"] * _NS, float(row["value"])))
        for key, samples in found.items():
            at_s, values = np.array(sorted(samples), dtype=np.float64).T
            yield SampledMetric(int(key[0]) & 0xFFFFFFFF, names[key], at_s, values)


def _field(row: sqlite3.Row, name: str) -> Any:
    """Return a column that older exports lack; None if it is absent."""
    return row[name] if name in row.keys() else None  # noqa: SIM118 (a Row iterates over its values)


def torch_sizes(text: str) -> tuple[Sizes, ...] | None:
    """Return the sizes of the arguments in the text of an NVTX range that torch wrote; None if it is another range.

    The text is "aten::addmm, seq = 5, op_id = 9, sizes = [[64], [8, 32], [32, 64], [], []], input_op_ids = [...]".
    """
    found = _SIZES.search(text)
    if found is None:
        return None
    try:
        listed = json.loads(found[1])
    except ValueError:
        return None
    return tuple(tuple(s) if isinstance(s, list) and all(isinstance(n, int) for n in s) else () for s in listed)
