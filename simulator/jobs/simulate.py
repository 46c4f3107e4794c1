"""`simulate_jobs`: serve the jobs of a workload with a deployment of a network."""

from __future__ import annotations

from functools import cache
from math import inf

import numpy as np

from catalogs.deployments.network_deployment import NetworkDeployment
from catalogs.deployments.routing import parse_router
from catalogs.errors import InputError
from catalogs.units import GIB, MIB
from catalogs.workloads.jobs import JobSet, JobWorkload
from simulator.core import outcomes
from simulator.jobs.batchers.base import BatchRules
from simulator.jobs.cluster import JobCluster, JobServing, KindRules
from simulator.jobs.compiled import BATCH, BatchPrice, CompiledJobs, compile_jobs
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
    serving: JobServing, jobs: JobSet, horizon_s: float | None = None, compiled: CompiledJobs | None = None
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
        n_networks_loaded=cluster.weights.n_loaded if cluster.weights else 0,
        horizon_s=horizon_s,
    )


def serving_of(compiled: CompiledJobs, jobs: JobSet) -> JobServing:
    """Return how a deployment serves these jobs.

    Raises:
        InputError: A size or the router is invalid, or the states of running sessions do not fit in the memory.
    """
    written = compiled.deployment
    shapes: dict[tuple[int, tuple[tuple[str, int], ...]], int] = {}
    kinds = []
    for kind in jobs.kinds:
        sizes = tuple(sorted((name, value) for name, value in compiled.sizes_of(kind).items() if name != BATCH))
        model = written.models.index(compiled.name_of(kind))
        shape = shapes.setdefault((model, sizes), len(shapes))
        kinds.append(KindRules(compiled.items_of(kind), shape, model))

    @cache
    def price(kind: int, items: int) -> BatchPrice:
        return compiled.price(jobs.kinds[kind], items)

    several = len(written.models) > 1
    return JobServing(
        engine=written.engine,
        rules=rules_of(written),
        price=price,
        kinds=tuple(kinds),
        replicas=written.replicas,
        router=parse_router(written.router),
        router_staleness_s=written.router_staleness_s,
        state_bytes=written.session_state.mib * MIB if written.session_state else 0.0,
        states_bytes=_states_bytes(compiled, jobs),
        weights_bytes=tuple(map(compiled.weights_bytes, written.models)) if several else (),
        all_weights_bytes=compiled.all_weights_bytes(jobs.kinds) if several else inf,
        host_bytes_per_s=compiled.hardware.node.host_bytes_per_s,
    )


def _states_bytes(compiled: CompiledJobs, jobs: JobSet) -> float:
    """Return the memory of one accelerator for the states of sessions.

    Raises:
        InputError: It is too small for the sessions of all running batches.
    """
    written, state = compiled.deployment, compiled.deployment.session_state
    if state is None:
        return inf
    fitting = state.mib * MIB * state.resident if state.resident else compiled.spare_bytes(jobs.kinds)
    running = written.max_batch * written.instances
    least = state.mib * MIB * running
    if fitting < least:
        rule = f"the states of {running} running sessions need {least / GIB:.1f} GiB on each accelerator"
        raise InputError(rule, f"{max(0.0, fitting) / GIB:.1f} GiB", hint="use a smaller max_batch or state")
    return fitting


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
