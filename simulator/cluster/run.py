"""What a run leaves behind: arrays per request, logs per replica. Statistics are computed elsewhere (metrics.py)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from catalogs.arrays import BoolArray, FloatArray, IntArray
from catalogs.workloads.request_set import RequestSet
from simulator.cache.offload import OffloadUse
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import CompiledDeployment, Pool
from simulator.core.outcomes import (
    COMPLETED,
    FAILED,
    NOT_SENT,
    QUEUE_FULL,
    TIMED_OUT,
    TOO_LARGE,
    TOO_LONG,
    TOO_WIDE,
    UNFINISHED,
)
from simulator.core.step_log import StepLog
from simulator.engine.replica import Replica
from simulator.schedulers.base import Headroom

_REJECTED = (TOO_LONG, TOO_LARGE, TOO_WIDE, QUEUE_FULL)


@dataclass(frozen=True, slots=True)
class ReplicaRun:
    """What one replica did, and while it lived."""

    pool: int  # its place in Run.pools
    logs: tuple[StepLog, ...]  # one per batch in flight: more than one where it is a pipeline
    kv_peak_fraction: float
    offload: OffloadUse | None = None
    adapters: tuple[int, int] | None = None  # brought to the device, read from disk
    born_s: float = 0.0
    died_s: float = inf  # it outlived the run
    reach: Headroom | None = None  # None: unknown

    def alive_fraction(self, first_s: float, last_s: float) -> float:
        """Of the time between the two."""
        if self.born_s <= first_s and self.died_s >= last_s:
            return 1.0
        if last_s <= first_s:
            return 0.0  # nothing ever happened, and it was not there
        return max(0.0, min(self.died_s, last_s) - max(self.born_s, first_s)) / (last_s - first_s)

    @classmethod
    def of(cls, replica: Replica) -> ReplicaRun:
        kv = replica.scheduler.kv
        peak = (kv.total - kv.min_available) / max(1, kv.total)
        host = replica.scheduler.host
        offload = OffloadUse.of(host) if host else None
        slots = replica.scheduler.slots
        adapters = (slots.n_from_host, slots.n_from_disk) if slots else None
        lived = replica.born_s, replica.died_s
        return cls(replica.pool, replica.logs, peak, offload, adapters, *lived, replica.scheduler.reach)


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
    gaps_s: FloatArray  # inter-token gaps made by preemptions, ascending; all others follow from the logs
    waits_s: FloatArray  # of hand-overs (n, 2): the first decode step at the new replica, the wait before it
    openings_s: FloatArray  # decode steps that gave a first token
    handovers: FloatArray  # (n, 5): request, from replica, to replica, start and end in seconds (nan: cut off)
    restarts: int  # of requests whose replica died, or whose blocks nobody was left to take
    orders: FloatArray  # (n, 3): pool, when a replica was asked for, when it was born or given up (inf: not yet)
    replicas: tuple[ReplicaRun, ...]  # in order of birth
    pools: tuple[Pool, ...]
    n_truncated: int = 0  # requests that were longer; `requests` holds what ran

    @classmethod
    def of(cls, cluster: Cluster) -> Run:
        """The record of a cluster that has run."""
        results = cluster.results
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
            gaps_s=np.sort(np.array(results.gaps_s)),
            waits_s=np.array(results.waits_s).reshape(-1, 2),
            openings_s=np.array(results.openings_s),
            handovers=np.array(results.handovers).reshape(-1, 5),
            restarts=cluster.retries.n,
            orders=np.array([(o.pool, o.ordered_s, o.ended_s) for o in cluster.orders.given], dtype=float).reshape(
                -1, 3
            ),
            replicas=tuple(map(ReplicaRun.of, cluster.replicas)),
            pools=tuple(opened.pool for opened in cluster.pools),
        )

    @property
    def span_s(self) -> tuple[float, float]:
        """First arrival and last token, or the horizon where requests are still open; zeros where nothing arrived."""
        if not self.arrived.any():
            return 0.0, 0.0
        ends = self.last_token_s[self.completed]
        last_s = float(ends.max()) if len(ends) else float(self.arrival_s[self.arrived].max())
        if self.unfinished.any() and self.options.horizon_s is not None:
            last_s = self.options.horizon_s
        return float(self.arrival_s[self.arrived].min()), last_s

    def starting_s(self, pool: int) -> float:
        """Seconds that replicas of a pool were on their way within the span, all together."""
        first_s, last_s = self.span_s
        mine = self.orders[self.orders[:, 0] == pool]
        return float(np.clip(np.minimum(mine[:, 2], last_s) - np.maximum(mine[:, 1], first_s), 0.0, None).sum())

    @property
    def logs(self) -> tuple[StepLog, ...]:
        """One per replica, or per batch that a pipeline has in flight."""
        return tuple(log for r in self.replicas for log in r.logs)

    @property
    def kv_peak_fraction(self) -> float:
        """Of the fullest replica."""
        return max(r.kv_peak_fraction for r in self.replicas)

    @property
    def offloads(self) -> tuple[OffloadUse, ...]:
        """Of replicas that keep KV blocks beside the device."""
        return tuple(r.offload for r in self.replicas if r.offload)

    @property
    def plants(self) -> tuple[CompiledDeployment, ...]:
        """One per pool; none where bare timers ran."""
        return tuple(pool.plant for pool in self.pools if pool.plant is not None)

    @property
    def completed(self) -> BoolArray:
        return np.equal(self.status, COMPLETED)

    @property
    def rejected(self) -> BoolArray:
        return np.isin(self.status, _REJECTED)

    @property
    def timed_out(self) -> BoolArray:
        """Given up by their clients."""
        return np.equal(self.status, TIMED_OUT)

    @property
    def failed(self) -> BoolArray:
        """Given up after they were lost too often."""
        return np.equal(self.status, FAILED)

    @property
    def unfinished(self) -> BoolArray:
        """Sent and neither completed, rejected nor failed: the run was cut off, or no replica was left."""
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
