"""The record of a run: arrays per request and logs per replica (simulator/analysis computes statistics from it)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np

from catalogs.arrays import BoolArray, FloatArray, IntArray
from catalogs.workloads.request_set import RequestSet
from simulator.cache.offload import OffloadUse
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import CompiledDeployment, Pool
from simulator.core import outcomes
from simulator.core.outcomes import ByStatus
from simulator.core.step_log import StepLog
from simulator.engine.replica import Replica
from simulator.schedulers.rules import PeakUse

#: The instants of a request after its arrival, seconds.
INSTANTS: Final = ("routed_s", "started_s", "prefilled_s", "first_token_s", "decoded_s", "last_token_s")


#: The columns of `Run.encodings`: row of the request, index of the encoder replica and of the replica to which it sends
#: the embeddings (-1: none), instants in seconds (`arrived_s` is nan if they never arrived), and the embeddings.
ENCODINGS: Final = ("request", "encoder", "target", "reached_s", "began_s", "encoded_s", "arrived_s", "embeddings")


@dataclass(frozen=True, slots=True)
class ReplicaRun:
    """The record of one replica."""

    pool: int  # index of its pool in Run.pools
    logs: tuple[StepLog, ...]  # one per batch in flight: several for a pipeline
    kv_peak_fraction: float
    offload: OffloadUse | None = None
    adapters: tuple[int, int] | None = None  # number of adapters loaded to the device, and of those read from disk
    media: tuple[int, int] | None = None  # number of items encoded, and of items found in the encoder cache
    created_s: float = 0.0
    removed_s: float = inf  # inf: the replica existed until the end of the run
    peak_use: PeakUse | None = None  # None: unknown

    def alive_fraction(self, first_s: float, last_s: float) -> float:
        """Return the fraction of the time from first_s to last_s during which the replica existed."""
        if self.created_s <= first_s and self.removed_s >= last_s:
            return 1.0
        if last_s <= first_s:
            return 0.0  # the interval is empty and the replica did not exist then
        return max(0.0, min(self.removed_s, last_s) - max(self.created_s, first_s)) / (last_s - first_s)

    @classmethod
    def of(cls, replica: Replica) -> ReplicaRun:
        """Return the record of a replica after the run."""
        scheduler = replica.scheduler
        peak = (scheduler.kv.total - scheduler.kv.min_available) / max(1, scheduler.kv.total)
        offload = OffloadUse.of(scheduler.host) if scheduler.host else None
        adapters = (scheduler.slots.n_from_host, scheduler.slots.n_from_disk) if scheduler.slots else None
        limits, cache = replica.rules.encoder_limits, scheduler.encoders
        encodes = cache is not None and (limits is None or limits.where != "elsewhere")
        media = (cache.n_encoded, cache.n_hits) if cache is not None and encodes else None
        existed = replica.created_s, replica.removed_s
        return cls(replica.pool, replica.logs, peak, offload, adapters, media, *existed, scheduler.peak_use)


@dataclass(frozen=True, slots=True)
class Run(ByStatus):
    """The record of a run.

    Arrays have shape (requests,) and are in workload order unless stated otherwise. Times are in seconds as the client
    observes them, and nan if the event did not happen.
    """

    requests: RequestSet
    options: RunOptions
    arrival_s: FloatArray
    routed_s: FloatArray  # the first time at the router, after the API server has read and tokenised the prompt
    started_s: FloatArray  # start of the first step that holds the request
    prefilled_s: FloatArray  # end of the step that computed the first token
    decoded_s: FloatArray  # end of the step that computed the last token
    first_token_s: FloatArray
    last_token_s: FloatArray
    cached_tokens: IntArray
    preemptions: IntArray
    replica: IntArray  # -1: none
    status: IntArray  # codes of outcomes.STATUS
    gaps_s: FloatArray  # inter-token gaps caused by preemptions, ascending; all other gaps follow from the logs
    waits_s: FloatArray  # (n, 2) per hand-over: the first decode step on the decode replica and the wait before it
    openings_s: FloatArray  # durations of decode steps that produced a first token
    handovers: FloatArray  # (n, 5): request, source replica, target replica, start and end in seconds (nan: cut off)
    encodings: FloatArray  # (n, 8): columns ENCODINGS, of each pass of a request through an encoder pool
    restarts: int  # number of restarts of requests that lost their replica or had no replica to decode them
    orders: FloatArray  # (n, 3): pool, time of a replica's order, time it was ready or cancelled (inf: pending)
    replicas: tuple[ReplicaRun, ...]  # in order of creation
    pools: tuple[Pool, ...]
    n_truncated: int = 0  # number of requests that were truncated; `requests` holds the truncated requests

    @classmethod
    def of(cls, cluster: Cluster) -> Run:
        """Return the record of a cluster that has run."""
        results = cluster.results
        times = ("arrival_s", *INSTANTS, "openings_s")
        counts = ("cached_tokens", "preemptions", "replica", "status")
        columns: dict[str, Any] = {name: np.array(getattr(results, name)) for name in times}
        columns |= {name: np.array(getattr(results, name), dtype=np.int64) for name in counts}
        orders = [(order.pool, order.ordered_s, order.ended_s) for order in cluster.orders.placed]
        return cls(
            requests=cluster.requests,
            options=cluster.options,
            gaps_s=np.sort(np.array(results.gaps_s)),
            waits_s=np.array(results.waits_s).reshape(-1, 2),
            handovers=np.array(results.handovers).reshape(-1, 5),
            encodings=np.array(results.encodings).reshape(-1, len(ENCODINGS)),
            restarts=cluster.retries.n,
            orders=np.array(orders, dtype=float).reshape(-1, 3),
            replicas=tuple(map(ReplicaRun.of, cluster.replicas)),
            pools=tuple(opened.pool for opened in cluster.pools),
            **columns,
        )

    @property
    def span_s(self) -> tuple[float, float]:
        """Return the times of the first arrival and the last token, in seconds.

        The end is the horizon if requests are unfinished there. Both are zero if no request arrived.
        """
        if not self.arrived.any():
            return 0.0, 0.0
        ends = self.last_token_s[self.completed]
        last_s = float(ends.max()) if len(ends) else float(self.arrival_s[self.arrived].max())
        if self.unfinished.any() and self.options.horizon_s is not None:
            last_s = self.options.horizon_s
        return float(self.arrival_s[self.arrived].min()), last_s

    def starting_s(self, pool: int) -> float:
        """Return the total seconds within the span during which replicas of a pool were pending."""
        first_s, last_s = self.span_s
        mine = self.orders[self.orders[:, 0] == pool]
        return float(np.clip(np.minimum(mine[:, 2], last_s) - np.maximum(mine[:, 1], first_s), 0.0, None).sum())

    @property
    def logs(self) -> tuple[StepLog, ...]:
        """Return the step logs of all replicas: one per replica, or several for a pipeline."""
        return tuple(log for r in self.replicas for log in r.logs)

    @property
    def kv_peak_fraction(self) -> float:
        """Return the peak KV cache usage of the fullest replica, as a fraction of its cache."""
        return max(r.kv_peak_fraction for r in self.replicas)

    def is_encoder(self, replica: int) -> bool:
        """Return whether a replica belongs to an encoder pool."""
        return self.pools[self.replicas[replica].pool].role == "encode"

    def encoding_times(self) -> FloatArray:
        """Return the instants of the last completed pass of each request through an encoder pool, in seconds.

        Shape (requests, 4): reached the encoder, began, encoded, arrived; nan for requests that passed none.
        """
        found = np.full((self.requests.n, 4), np.nan)
        rows = self.encodings[np.isfinite(self.encodings[:, 6])]
        found[rows[:, 0].astype(np.int64)] = rows[:, 3:7]  # the last row of a request counts
        return found

    @property
    def offloads(self) -> tuple[OffloadUse, ...]:
        """Return the offloading record of each replica that offloads KV blocks."""
        return tuple(r.offload for r in self.replicas if r.offload)

    @property
    def compiled_pools(self) -> tuple[CompiledDeployment, ...]:
        """Return the compiled deployment of each pool; empty for a run of bare timers."""
        return tuple(pool.compiled for pool in self.pools if pool.compiled is not None)

    @property
    def failed(self) -> BoolArray:
        """Return whether each request failed because it was lost more often than it is retried. Shape (requests,)."""
        return np.equal(self.status, outcomes.FAILED)

    @property
    def ttft_s(self) -> FloatArray:
        """Return the time to first token of each request, seconds. Shape (requests,)."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> FloatArray:
        """Return the time per output token of each request, seconds. Shape (requests,).

        It is (last token - first token) / (output tokens - 1), and nan for outputs of one token.
        """
        gaps = self.requests.output_tokens - 1
        return np.where(gaps > 0, (self.last_token_s - self.first_token_s) / np.maximum(gaps, 1), np.nan)

    @property
    def e2e_s(self) -> FloatArray:
        """Return the time from arrival to the last token of each request, seconds. Shape (requests,)."""
        return self.last_token_s - self.arrival_s

    @property
    def queue_s(self) -> FloatArray:
        """Time from arrival to the start of the first step that contains the request, seconds. Shape (requests,)."""
        return self.started_s - self.arrival_s
