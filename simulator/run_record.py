"""What a run leaves behind: arrays per request, logs per replica. Statistics are computed elsewhere (metrics.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from catalogs.request_set import RequestSet
from simulator.cluster import Cluster, RunOptions
from simulator.plant import Plant
from simulator.results import COMPLETED, NOT_SENT, TOO_LARGE, TOO_LONG, TOO_WIDE, UNFINISHED
from simulator.step_log import StepLog

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_REJECTED = (TOO_LONG, TOO_LARGE, TOO_WIDE)


@dataclass(frozen=True, slots=True)
class Run:
    """Arrays of shape (requests,) in workload order; seconds as the client sees them, nan until they happen."""

    requests: RequestSet
    options: RunOptions
    arrival_s: FloatArray
    started_s: FloatArray  # start of the first step that holds the request
    first_token_s: FloatArray
    last_token_s: FloatArray
    cached_tokens: IntArray
    preemptions: IntArray
    replica: IntArray  # -1: none
    status: IntArray  # codes of results.STATUS
    gaps_s: FloatArray  # inter-token gaps made by preemptions; all others follow from the logs
    logs: tuple[StepLog, ...]  # one per replica
    kv_peak_fraction: float  # of the fullest replica
    plant: Plant | None = None  # None where a bare timer ran

    @classmethod
    def of(cls, cluster: Cluster, plant: Plant | None = None) -> Run:
        """The record of a cluster that has run."""
        results = cluster.results
        peaks = [(kv.total - kv.min_available) / max(1, kv.total) for kv in (r.scheduler.kv for r in cluster.replicas)]
        return cls(
            requests=cluster.requests,
            options=cluster.options,
            arrival_s=np.array(results.arrival_s),
            started_s=np.array(results.started_s),
            first_token_s=np.array(results.first_token_s),
            last_token_s=np.array(results.last_token_s),
            cached_tokens=np.array(results.cached_tokens, dtype=np.int64),
            preemptions=np.array(results.preemptions, dtype=np.int64),
            replica=np.array(results.replica, dtype=np.int64),
            status=np.array(results.status, dtype=np.int64),
            gaps_s=np.array(results.gaps_s),
            logs=tuple(r.log for r in cluster.replicas),
            kv_peak_fraction=max(peaks),
            plant=plant,
        )

    @property
    def completed(self) -> BoolArray:
        return np.equal(self.status, COMPLETED)

    @property
    def rejected(self) -> BoolArray:
        return np.isin(self.status, _REJECTED)

    @property
    def unfinished(self) -> BoolArray:
        """Sent and neither completed nor rejected: the run was cut off."""
        return np.equal(self.status, UNFINISHED)

    @property
    def arrived(self) -> BoolArray:
        return np.not_equal(self.status, NOT_SENT)

    @property
    def ttft_s(self) -> FloatArray:
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> FloatArray:
        """(last token - first token) / (output tokens - 1); nan for one-token outputs."""
        gaps = self.requests.output_tokens - 1
        return np.where(gaps > 0, (self.last_token_s - self.first_token_s) / np.maximum(gaps, 1), np.nan)

    @property
    def e2e_s(self) -> FloatArray:
        return self.last_token_s - self.arrival_s

    @property
    def queue_s(self) -> FloatArray:
        """From true arrival to the start of the first step that holds the request."""
        return self.started_s - self.arrival_s
