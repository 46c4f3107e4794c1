"""`simulate_jobs`: serve the jobs of a workload with a deployment of a network."""

from __future__ import annotations

from functools import cache
from math import inf

import numpy as np

from catalogs.deployments.networks import NetworkDeployment
from catalogs.deployments.routing import RouterOptions, parse_router
from catalogs.workloads.jobs import JobSet, JobWorkload
from simulator.core import outcomes
from simulator.jobs.batchers.base import BatchRules
from simulator.jobs.cluster import JobCluster, KindRules, Serving
from simulator.jobs.compiled import BATCH, CompiledJobs, compile_jobs
from simulator.jobs.run import JobRun


def simulate_jobs(
    deployment: NetworkDeployment | CompiledJobs,
    load: JobWorkload | JobSet,
    seed: int | None = None,
    horizon_s: float | None = None,
) -> JobRun:
    """Serve the jobs of a workload.

    Args:
        deployment: The deployment, or the same compiled, which keeps its prices for further runs.
        load: The workload, or the jobs drawn from it.
        seed: Seed of the jobs; None: that of the workload. Drawn jobs keep theirs.
        horizon_s: The time at which the run stops, even if jobs are unfinished; None: when all jobs have ended.

    Raises:
        InputError: A name or a value is invalid, or a job does not fit in the memory.
    """
    compiled = compile_jobs(deployment) if isinstance(deployment, NetworkDeployment) else deployment
    jobs = load.draw(seed) if isinstance(load, JobWorkload) else load
    for kind in jobs.kinds:
        compiled.check_memory(kind)
    return run_jobs(serving_of(compiled, jobs), jobs, horizon_s, compiled)


def run_jobs(
    serving: Serving, jobs: JobSet, horizon_s: float | None = None, compiled: CompiledJobs | None = None
) -> JobRun:
    """Serve jobs with any prices, without a deployment, a network or a calibration.

    Raises:
        InputError: The router is not one for jobs.
    """
    cluster = JobCluster(serving, jobs, horizon_s)
    cluster.run()
    results = cluster.results
    status = np.array(results.status, dtype=np.int64)
    arrival_s = np.array(results.arrival_s)
    if horizon_s is not None and jobs.concurrency is None:  # the run may stop before their events at the same time
        sent = (status == outcomes.NOT_SENT) & (jobs.arrival_s <= horizon_s)
        status[sent], arrival_s[sent] = outcomes.UNFINISHED, jobs.arrival_s[sent]
    return JobRun(
        serving=serving,
        compiled=compiled,
        jobs=jobs,
        arrival_s=arrival_s,
        started_s=np.array(results.started_s),
        ended_s=np.array(results.ended_s),
        replica=np.array(results.replica, dtype=np.int64),
        batch=np.array(results.batch, dtype=np.int64),
        status=status,
        batches=cluster.recorder.log(),
        n_states_moved=cluster.states.n_moved if cluster.states else 0,
        horizon_s=horizon_s,
    )


def serving_of(compiled: CompiledJobs, jobs: JobSet) -> Serving:
    """Return how a deployment serves these jobs.

    Raises:
        InputError: A size, a priority or the router is invalid.
    """
    written = compiled.deployment
    shapes: dict[tuple[tuple[str, int], ...], int] = {}
    kinds = []
    for kind in jobs.kinds:
        sizes = tuple(sorted((k, v) for k, v in compiled.sizes_of(kind).items() if k != BATCH))
        kinds.append(KindRules(compiled.items_of(kind), shapes.setdefault(sizes, len(shapes))))

    @cache
    def price(kind: int, items: int):  # type: ignore[no-untyped-def]
        return compiled.price(jobs.kinds[kind], items)

    return Serving(
        engine=written.engine,
        rules=rules_of(written),
        price=price,
        kinds=tuple(kinds),
        replicas=written.replicas,
        router=router_of(written),
        router_staleness_s=written.router_staleness_s,
    )


def rules_of(written: NetworkDeployment) -> BatchRules:
    """Return the options of the batcher of a deployment."""
    return BatchRules(
        max_batch=written.max_batch,
        preferred=tuple(sorted(set(written.preferred_batches))),
        delay_s=written.queue_delay_s,
        instances=written.instances,
        priorities=written.priorities,
        default_priority=written.default_priority or written.priorities,
        timeout_s=inf if written.timeout_s is None else written.timeout_s,
        timeout_action=written.timeout_action,
        max_waiting=written.max_waiting,
    )


def router_of(written: NetworkDeployment) -> RouterOptions:
    """Return the router of a deployment.

    Raises:
        InputError: The router or an option is unknown.
    """
    return parse_router(written.router)
