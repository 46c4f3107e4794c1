"""Small worlds of jobs: prices by table, workloads by list, and a run of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from catalogs.deployments.network_deployment import NetworkEngine
from catalogs.workloads.jobs import JobSet, NetworkJob
from catalogs.workloads.service_classes import ServiceLevels
from simulator.jobs.batchers.base import BatchRules
from simulator.jobs.cluster import JobServing, KindRules
from simulator.jobs.compiled import BatchPrice
from simulator.jobs.run import JobRun
from simulator.jobs.simulate import run_jobs


def alone(seconds: float) -> BatchPrice:
    """Return the price of a batch that leaves the accelerator to other instances all the time."""
    return BatchPrice(seconds, 0.0)


def table(seconds: dict[int, float]) -> Callable[[int, int], BatchPrice]:
    """Return prices by number of items that do not slow down other instances."""
    return lambda _, items: alone(seconds[items])


def constant(seconds: float, busy: float = 1.0) -> Callable[[int, int], BatchPrice]:
    """Return one price for every batch, whose kernels run for a share `busy` of it."""
    return lambda _kind, _items: BatchPrice(seconds, busy * seconds, 100.0 * seconds)


def job_set(
    arrival_s: Sequence[float],
    kind: Sequence[int] | None = None,
    priority: Sequence[int] | None = None,
    timeout_s: Sequence[float] | None = None,
    **more: Any,
) -> JobSet:
    """Return jobs at given times."""
    n = len(arrival_s)
    kinds = [0] * n if kind is None else list(kind)
    terms = None
    if priority is not None or timeout_s is not None:
        levels = np.array(priority if priority is not None else [0] * n)
        limits = np.array(timeout_s if timeout_s is not None else [inf] * n)
        terms = ServiceLevels(levels, np.full(n, inf), limits)
    named = tuple(NetworkJob() for _ in range(max(kinds, default=0) + 1))
    return JobSet(np.array(arrival_s, dtype=float), np.array(kinds), named, terms=terms, **more)


def run(
    jobs: JobSet,
    price: Callable[[int, int], BatchPrice],
    engine: NetworkEngine = "torch",
    replicas: int = 1,
    kinds: Sequence[tuple[int, int]] | None = None,
    router: str = "round_robin",
    horizon_s: float | None = None,
    more: dict[str, Any] | None = None,
    **rules: Any,
) -> JobRun:
    """Serve jobs; `kinds` holds (items, shape) of each kind, and `more` further attributes of JobServing."""
    known = tuple(KindRules(*each) for each in kinds or [(1, i) for i in range(len(jobs.kinds))])
    serving = JobServing(engine, BatchRules(**rules), price, known, replicas, router, **(more or {}))
    return run_jobs(serving, jobs, horizon_s)


def batches(found: JobRun) -> list[tuple[float, float, list[int]]]:
    """Return (start, end, jobs) of each batch in order of start."""
    log, members = found.batches, [list[int]() for _ in found.batches.start_s]
    for job, row in enumerate(found.batch.tolist()):
        if row >= 0:
            members[row].append(job)
    return [
        (start, end, jobs) for start, end, jobs in zip(log.start_s.tolist(), log.end_s.tolist(), members, strict=True)
    ]
