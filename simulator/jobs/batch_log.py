"""The batches of a run: one row for each, from which statistics, power and energy are computed afterwards."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from simulator.jobs.batchers.base import QueuedJob
from simulator.jobs.compiled import BatchPrice


@dataclass(frozen=True)
class BatchLog:
    """The batches of a run in the order of their starts; arrays have shape (batches,).

    Attributes:
        replica: Index of the replica.
        kind: Index of the kind of job in `JobSet.kinds`.
        jobs: Number of jobs.
        items: Number of items: the sum of the jobs' sizes `batch`.
        start_s: When the batch began.
        end_s: When it ended; later than its own seconds where instances shared the accelerator. inf: cut off.
        alone_s: Its seconds on an idle accelerator.
        busy_s: Seconds of kernels and collectives.
        kernel_j: Joules of its kernels on all accelerators, without their idle power in gaps of the host.
    """

    replica: IntArray
    kind: IntArray
    jobs: IntArray
    items: IntArray
    start_s: FloatArray
    end_s: FloatArray
    alone_s: FloatArray
    busy_s: FloatArray
    kernel_j: FloatArray


class BatchRecorder:
    """The rows of a BatchLog, in the order of the starts of batches."""

    def __init__(self) -> None:
        """Create an empty log."""
        self._counts = {name: array("q") for name in ("replica", "kind", "jobs", "items")}
        self._times = {name: array("d") for name in ("start_s", "end_s", "alone_s", "busy_s", "kernel_j")}

    def started(self, replica: int, jobs: Sequence[QueuedJob], now_s: float, price: BatchPrice) -> int:
        """Add a batch that starts now and return its row."""
        items = sum(job.items for job in jobs)
        counts = (replica, jobs[0].kind, len(jobs), items)
        times = (now_s, inf, price.seconds, price.busy_s, price.kernel_j)
        for column, count in zip(self._counts.values(), counts, strict=True):
            column.append(count)
        for series, value in zip(self._times.values(), times, strict=True):
            series.append(value)
        return len(self._times["start_s"]) - 1

    def ended(self, row: int, now_s: float) -> None:
        """Record the end of a batch."""
        self._times["end_s"][row] = now_s

    def log(self) -> BatchLog:
        """Return the log as arrays."""
        columns: dict[str, Any] = {name: np.array(column, dtype=np.int64) for name, column in self._counts.items()}
        columns |= {name: np.array(series) for name, series in self._times.items()}
        return BatchLog(**columns)
