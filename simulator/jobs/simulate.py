"""`simulate_jobs`: serve the jobs of a workload with a deployment of a network."""

from __future__ import annotations

from catalogs.deployments.networks import NetworkDeployment
from catalogs.workloads.jobs import JobSet, JobWorkload
from simulator.jobs.compiled import CompiledJobs, compile_jobs
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
    raise NotImplementedError(f"{compiled.network.name}: {jobs.n} jobs, horizon {horizon_s}")
