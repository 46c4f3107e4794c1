"""Parallel simulation of independent replicas, and the reuse of runs under other limits.

A blind router (round robin, random, by session) uses no replica signals, so the replica of each request is known
before the run. If the replicas also exist for the whole run and serve complete requests, each replica can be simulated
separately. The results are identical, number for number, to those of one run of all replicas.

A run can be reused for other limits if it reached neither its own limits nor the others.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray, IntArray
from catalogs.deployments.queueing import FCFS
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import Pool
from simulator.cluster.run import ReplicaRun, Run
from simulator.core.outcomes import NOT_SENT, UNFINISHED
from simulator.core.request import Request
from simulator.core.step_log import COLUMNS, OWN, StepLog

#: Fields of a Run with one row per request, but for who served it and what became of it.
_ROWS: Final = ("started_s", "first_token_s", "last_token_s", "cached_tokens", "preemptions", "status")


def apart(pools: Sequence[Pool], requests: RequestSet, options: RunOptions) -> Cluster | None:
    """Return the cluster of a run with independent replicas, not started; None if replicas may interact."""
    alone = all(pool.role == "both" for pool in pools) and requests.concurrency is None
    alone = alone and all(pool.rules.speculation is None for pool in pools)  # drafts are drawn by row of the workload
    if options.processes < 2 or not alone or options.controllers or options.journal is not None:
        return None
    if "fork" not in multiprocessing.get_all_start_methods():
        return None
    cluster = Cluster(pools, requests, options)
    return cluster if cluster.blind else None


@dataclass(frozen=True, slots=True)
class _Work:
    """The data shared by all processes; `rows[i]` are the requests of replica i."""

    pools: Sequence[Pool]
    pool_of: Sequence[int]
    requests: RequestSet
    options: RunOptions
    reach_s: FloatArray
    rows: Sequence[IntArray]


@dataclass(frozen=True, slots=True)
class _Share:
    """The results of one replica; `columns` holds the values of its requests by name."""

    columns: dict[str, npt.NDArray[Any]]
    gaps_s: FloatArray
    replica: ReplicaRun


_work: _Work | None = None  # set before processes fork off: they see it without a copy


def run_apart(cluster: Cluster) -> Run:
    """Run a cluster that `apart` returned, one replica at a time, on several processes."""
    global _work
    pools, requests, options = [opened.pool for opened in cluster.pools], cluster.requests, cluster.options
    reach_s = cluster.reach_times_s()
    assigned, refused = _assign(cluster, np.argsort(reach_s, kind="stable"))
    order = np.argsort(assigned, kind="stable")
    n = len(cluster.replicas)
    bounds = np.searchsorted(assigned[order], np.arange(n + 1))
    rows = [order[a:b] for a, b in pairwise(bounds)]
    declared = int(requests.output_tokens.max()) if requests.n else 0
    told = [
        replace(p, rules=replace(p.rules, max_output_tokens=max(p.rules.max_output_tokens, declared))) for p in pools
    ]
    _work = _Work(told, [r.pool for r in cluster.replicas], requests, replace(options, processes=1), reach_s, rows)
    whole = _blank(Run.of(cluster), refused, reach_s)
    shares: list[_Share | None] = [None] * n
    try:
        with multiprocessing.get_context("fork").Pool(min(options.processes, max(1, n))) as workers:
            for i, share in workers.imap_unordered(_one, range(n), chunksize=max(1, n // (8 * options.processes))):
                shares[i] = share
    finally:
        _work = None
    return _joined(whole, rows, [share for share in shares if share is not None])


def _assign(cluster: Cluster, order: IntArray) -> tuple[IntArray, IntArray]:
    """(replica of each request, -1 where it is refused; why it is refused, 0 where it is not), in workload order."""
    assigned, refused = np.full(len(order), -1), np.zeros(len(order), dtype=np.int64)
    input_tokens = cluster.requests.input_tokens.tolist()
    for index in order.tolist():
        refusal, replica = cluster.route(Request(index, input_tokens[index]))
        if replica is None:
            refused[index] = refusal
        else:
            assigned[index] = replica.index
    return assigned, refused


def _one(i: int) -> tuple[int, _Share]:
    """Simulate replica `i` with its requests separately."""
    assert _work is not None
    pool, rows = _work.pools[_work.pool_of[i]], _work.rows[i]
    options = replace(_work.options, router="round_robin")
    cluster = Cluster([replace(pool, replicas=1)], _work.requests.taken(rows), options)
    cluster.given_reach_s = _work.reach_s[rows]
    cluster.run()
    run = Run.of(cluster)
    did = replace(run.replicas[0], pool=_work.pool_of[i])
    return i, _Share({name: getattr(run, name) for name in (*_ROWS, "replica")}, run.gaps_s, did)


def _blank(run: Run, refused: IntArray, reach_s: FloatArray) -> Run:
    """Return the run with arrivals and rejections but without any served request."""
    horizon_s = np.inf if run.options.horizon_s is None else run.options.horizon_s
    arrival_s = run.requests.arrival_s
    status = np.where(arrival_s <= horizon_s, UNFINISHED, NOT_SENT)
    status = np.where((refused > 0) & (reach_s <= horizon_s), refused, status)
    return replace(run, arrival_s=np.array(arrival_s), status=status.astype(np.int64))


def _joined(whole: Run, rows: Sequence[IntArray], shares: Sequence[_Share]) -> Run:
    columns = {name: getattr(whole, name) for name in (*_ROWS, "replica")}
    for i, (mine, share) in enumerate(zip(rows, shares, strict=True)):
        for name in _ROWS:
            columns[name][mine] = share.columns[name]
        sent = share.columns["replica"] >= 0
        columns["replica"][mine[sent]] = i
    gaps_s = np.sort(np.concatenate([share.gaps_s for share in shares]))
    return replace(whole, gaps_s=gaps_s, replicas=tuple(share.replica for share in shares), **columns)


OWN_TOKENS: Final = [COLUMNS.index(name) - OWN.start for name in ("prefill_tokens", "decodes")]


def reusable_run(run: Run, pool: Pool) -> Run | None:
    """Return the run of the same requests on the single replica of another pool, if it is certain without simulation.

    It is certain if the rules and costs are the same and the limits differ only where neither run reaches them.
    Otherwise the result is None.
    """
    if len(run.pools) != 1 or len(run.replicas) != 1 or pool.replicas != 1 or pool.timer is not run.pools[0].timer:
        return None
    did, rules, other = run.replicas[0], run.pools[0].rules, pool.rules
    same = {name: getattr(rules, name) for name in ("max_num_seqs", "max_num_batched_tokens", "kv_blocks")}
    if did.reach is None or replace(other, **same) != rules or other.queueing != FCFS or not run.completed.all():
        return None
    if run.requests.block_hashes is not None and rules.prefix_caching:
        return None  # what is still cached depends on how many blocks there are
    longest = int((run.requests.input_tokens + run.requests.output_tokens).max())
    rank = other.of_rank() if other.in_lockstep else other
    step_tokens = max(map(_step_tokens, did.logs))
    if longest - 1 > rank.kv_blocks * rank.block_size or not did.reach.same_under(rules, other, step_tokens):
        return None
    held = round(did.kv_peak_fraction * max(1, rules.kv_blocks))
    did = replace(did, kv_peak_fraction=held / max(1, other.kv_blocks))
    return replace(run, pools=(pool,), replicas=(did,))


def _step_tokens(log: StepLog) -> int:
    """Return the maximum number of tokens in a step."""
    if log.n_ranks:
        held = log.shares[:, :, OWN_TOKENS].sum(axis=2)
        return log.n_ranks * int(held.max(initial=0.0))
    return int((log.prefill_tokens + log.decodes).max(initial=0.0))
