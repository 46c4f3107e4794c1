"""Parallel simulation of independent replicas.

A stateless router (round robin, random, by session) uses no replica signals, so the replica of each request is known
before the run. If the replicas also exist for the whole run and serve complete requests, each replica can be simulated
separately. The results are identical, number for number, to those of one run of all replicas.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray, IntArray
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import Pool
from simulator.cluster.run import INSTANTS, ReplicaRun, Run
from simulator.core.outcomes import NOT_SENT, UNFINISHED
from simulator.core.request import Request

#: The fields of a Run with one row per request that are the same in the run of one replica.
_COLUMNS: Final = (*INSTANTS, "cached_tokens", "preemptions", "status")


def independent_cluster(pools: Sequence[Pool], requests: RequestSet, options: RunOptions) -> Cluster | None:
    """Return the cluster of a run with independent replicas, not started; None if replicas may interact.

    The result is also None if the replicas would be simulated one after another in this process, unless each of them
    takes the fast path, which is for single replicas.
    """
    in_turn = options.processes < 2 and options.spread is None
    if (
        options.controllers
        or options.event_log is not None
        or requests.concurrency is not None
        or requests.graph is not None
        or any(pool.role != "both" or pool.rules.speculation for pool in pools)  # drafts are drawn by workload row
        or any(pool.rules.offload is not None and pool.rules.offload.shared for pool in pools)
        or (not in_turn and options.spread is None and "fork" not in multiprocessing.get_all_start_methods())
    ):
        return None
    cluster = Cluster(pools, requests, options)
    return cluster if cluster.routes_ahead and (cluster.is_plain or not in_turn) else None


class _ReplicaResult(NamedTuple):
    """The results of one replica; `columns` holds the values of its requests by name, each of shape (requests,)."""

    columns: dict[str, npt.NDArray[Any]]
    gaps_s: FloatArray
    replica: ReplicaRun


@dataclass(frozen=True, slots=True)
class _ReplicaSimulation:
    """Simulates single replicas of a fleet. It can be sent to another machine.

    Attributes:
        pools: The pools of the fleet.
        pool_of: The pool of each replica.
        requests: The requests of the fleet.
        arrival_s: When each request reaches the router, in seconds. Shape (requests,).
        rows: The requests of each replica.
        options: The options of the run of one replica.
    """

    pools: tuple[Pool, ...]
    pool_of: tuple[int, ...]
    requests: RequestSet
    arrival_s: FloatArray
    rows: tuple[IntArray, ...]
    options: RunOptions

    def __call__(self, i: int) -> _ReplicaResult:
        """Return the results of one replica."""
        number, rows = self.pool_of[i], self.rows[i]
        pool, declared = self.pools[number], int(self.requests.output_tokens.max()) if self.requests.n else 0
        rules = replace(pool.rules, max_output_tokens=max(pool.rules.max_output_tokens, declared))
        part = Cluster([replace(pool, rules=rules, replicas=1)], self.requests.taken(rows), self.options)
        part.known_arrivals_s = self.arrival_s[rows]
        part.run()
        run = Run.of(part)
        columns = {name: getattr(run, name) for name in (*_COLUMNS, "replica")}
        return _ReplicaResult(columns, run.gaps_s, replace(run.replicas[0], pool=number))


Forked = TypeVar("Forked")
Local = TypeVar("Local")

_simulate_one: Callable[[int], _ReplicaResult] | None = None  # set before processes fork, which inherit it


def _result(i: int) -> _ReplicaResult:
    assert _simulate_one is not None
    return _simulate_one(i)


def run_independent(cluster: Cluster) -> Run:
    """Run a cluster that `independent_cluster` returned, one replica at a time, here or in other processes."""
    requests, options = cluster.requests, cluster.options
    arrival_s = cluster.router_arrivals_s()
    assigned, refused = _assign(cluster, np.argsort(arrival_s, kind="stable"))
    order = np.argsort(assigned, kind="stable")
    n = len(cluster.replicas)
    rows = [order[a:b] for a, b in pairwise(np.searchsorted(assigned[order], np.arange(n + 1)))]
    work = _ReplicaSimulation(
        tuple(opened.pool for opened in cluster.pools),
        tuple(replica.pool for replica in cluster.replicas),
        requests,
        arrival_s,
        tuple(rows),
        replace(options, processes=1, spread=None, router="round_robin"),
    )
    horizon_s = np.inf if options.horizon_s is None else options.horizon_s
    status = np.where(requests.arrival_s <= horizon_s, UNFINISHED, NOT_SENT)
    status = np.where((refused > 0) & (arrival_s <= horizon_s), refused, status).astype(np.int64)
    routed_s = np.where(arrival_s <= horizon_s, arrival_s, np.nan)
    sent_s = np.array(requests.arrival_s)
    whole = replace(Run.of(cluster), arrival_s=sent_s, routed_s=routed_s, status=status)  # no request was served yet
    if options.spread is not None:
        results = list(options.spread(work, n))
    else:
        results = _forked(work, n, options.processes) if options.processes > 1 else list(map(work, range(n)))
    columns = {name: getattr(whole, name) for name in (*_COLUMNS, "replica")}
    for i, (mine, result) in enumerate(zip(rows, results, strict=True)):
        for name in _COLUMNS:
            columns[name][mine] = result.columns[name]
        columns["replica"][mine[result.columns["replica"] >= 0]] = i
    gaps_s = np.sort(np.concatenate([result.gaps_s for result in results]))
    return replace(whole, gaps_s=gaps_s, replicas=tuple(result.replica for result in results), **columns)


def _forked(work: _ReplicaSimulation, n: int, processes: int) -> list[_ReplicaResult]:
    """Return the results of all replicas, simulated in processes that inherit the work."""
    global _simulate_one
    _simulate_one = work
    try:
        with multiprocessing.get_context("fork").Pool(min(processes, max(1, n))) as workers:
            return list(workers.imap(_result, range(n), chunksize=max(1, n // (8 * processes))))
    finally:
        _simulate_one = None


def run_both(processes: int, forked: Callable[[], Forked], local: Callable[[], Local]) -> tuple[Forked, Local]:
    """Return the results of two functions, of which `forked` runs in a second process if several may be used."""
    if processes < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return forked(), local()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    worker = context.Process(target=lambda: sender.send(forked()), daemon=True)
    worker.start()
    sender.close()
    mine = local()
    try:
        theirs: Forked = receiver.recv()
    except EOFError:  # it failed: here the error reaches the caller
        theirs = forked()
    worker.join()
    return theirs, mine


def _assign(cluster: Cluster, order: IntArray) -> tuple[IntArray, IntArray]:
    """Return the replica of each request and the code of its rejection.

    Args:
        cluster: The cluster, not started.
        order: The rows of the requests in the order in which they arrive at the router. Shape (n,).

    Returns:
        (index of the replica, -1 if the request is rejected; code of the rejection, 0 if it is accepted). Each has
        shape (n,), in workload order.
    """
    assigned, refused = np.full(len(order), -1), np.zeros(len(order), dtype=np.int64)
    input_tokens = cluster.requests.input_tokens.tolist()
    for index in order.tolist():
        refusal, replica = cluster.route(Request(index, input_tokens[index]))
        if replica is None:
            refused[index] = refusal
        else:
            assigned[index] = replica.index
    return assigned, refused
