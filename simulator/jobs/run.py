"""The record of a run of jobs: arrays for each job, one row for each batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.workloads.jobs import JobSet
from simulator.core.outcomes import ByStatus
from simulator.jobs.batch_log import BatchLog
from simulator.jobs.cluster import JobServing
from simulator.jobs.compiled import CompiledJobs


@dataclass(frozen=True)
class JobRun(ByStatus):
    """The record of a run of jobs.

    Arrays have shape (jobs,) and are in workload order. Times are in seconds and nan if the event did not happen.
    """

    serving: JobServing
    compiled: CompiledJobs | None  # None: a run of bare prices
    jobs: JobSet
    arrival_s: FloatArray
    started_s: FloatArray
    ended_s: FloatArray
    replica: IntArray  # -1: none
    batch: IntArray  # row in `batches`; -1: none
    status: IntArray  # codes of outcomes.STATUS
    batches: BatchLog
    n_states_moved: int = 0  # how often the state of a session was copied to an accelerator
    n_networks_loaded: int = 0  # how often the weights of a network were copied to an accelerator
    horizon_s: float | None = None

    @property
    def e2e_s(self) -> FloatArray:
        """Return the seconds from arrival to end of each job. Shape (jobs,)."""
        return self.ended_s - self.arrival_s

    @property
    def queue_s(self) -> FloatArray:
        """Return the seconds from arrival to the start of the job's batch. Shape (jobs,)."""
        return self.started_s - self.arrival_s

    @property
    def service_s(self) -> FloatArray:
        """Return the seconds of the batch of each job. Shape (jobs,)."""
        return self.ended_s - self.started_s

    @cached_property
    def span_s(self) -> tuple[float, float]:
        """Return the times of the first arrival and the last end; the horizon where jobs are unfinished there."""
        if not self.arrived.any():
            return 0.0, 0.0
        ends_s = self.ended_s[self.completed]
        last_s = float(ends_s.max()) if len(ends_s) else float(np.nanmax(self.arrival_s))
        if self.unfinished.any() and self.horizon_s is not None:
            last_s = self.horizon_s
        return float(np.nanmin(self.arrival_s)), last_s
