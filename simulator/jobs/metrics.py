"""Statistics of a run of jobs, by the definitions of requests (simulator/analysis): from first arrival to last end.

Latencies are those of completed jobs. Power and energy count all the hardware of the deployment: kernels, idle
accelerators (also in the gaps in which the host launches), and hosts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.operators.cost import evidence_shares
from catalogs.arrays import FloatArray, IntArray
from catalogs.statistics import statistics
from catalogs.ui.words import counted
from simulator.jobs.batch_log import BatchLog
from simulator.jobs.compiled import CompiledJobs
from simulator.jobs.run import JobRun

#: Completed jobs below which the p99 is close to the maximum. With 100, one job lies beyond it.
FEW: Final = 100


@dataclass(frozen=True, slots=True)
class JobEnergy:
    """What the hardware did from the first arrival to the last end.

    Attributes:
        duration_s: The seconds between them.
        kernel_j: Joules of kernels, on all accelerators.
        gpu_j: Joules of all accelerators, idle ones included.
        total_j: The same with the hosts.
        busy_fraction: Share of the replicas' time in which kernels or collectives ran.
        serving_fraction: Share of the replicas' time in which at least one batch was in progress.
    """

    duration_s: float
    kernel_j: float
    gpu_j: float
    total_j: float
    busy_fraction: float
    serving_fraction: float

    @classmethod
    def of(cls, run: JobRun, compiled: CompiledJobs) -> JobEnergy:
        """Return the energy of a run of a compiled deployment."""
        first_s, last_s = run.span_s
        duration_s, log = last_s - first_s, run.batches
        done = executed(log, last_s)
        hardware, replicas, ranks = compiled.hardware, compiled.deployment.replicas, compiled.ranks
        kernel_j, kernel_s = float(done @ log.kernel_j), float(done @ log.busy_s)
        serving_s = sum(covered_s(log, replica, last_s) for replica in range(replicas))
        idle_s = hardware.n_accelerators * duration_s - ranks * kernel_s
        gpu_j = kernel_j + hardware.accelerator.idle_w * max(0.0, idle_s)
        node = hardware.node
        host_j = node.host_idle_w * hardware.n_accelerators / node.max_accelerators * duration_s
        host_j += node.host_w_per_accelerator * ranks * serving_s
        time_s = max(replicas * duration_s, 1e-300)
        return cls(duration_s, kernel_j, gpu_j, gpu_j + host_j, kernel_s / time_s, serving_s / time_s)


def executed(log: BatchLog, until_s: float) -> FloatArray:
    """Return the share of each batch that was executed until a time. Shape (batches,)."""
    length_s = np.where(np.isfinite(log.end_s), log.end_s - log.start_s, log.alone_s)
    passed_s = np.minimum(until_s, log.start_s + length_s) - log.start_s
    return np.asarray(np.clip(np.where(length_s > 0.0, passed_s / np.maximum(length_s, 1e-300), 1.0), 0.0, 1.0))


def covered_s(log: BatchLog, replica: int, until_s: float) -> float:
    """Return the seconds in which a replica had at least one batch in progress."""
    mine = log.replica == replica
    starts, ends = log.start_s[mine], np.minimum(log.end_s[mine], until_s)
    if not len(starts):
        return 0.0
    before = np.concatenate([[-np.inf], np.maximum.accumulate(ends)[:-1]])  # starts are in order
    return float(np.clip(ends - np.maximum(starts, before), 0.0, None).sum())


def summarise_jobs(run: JobRun) -> dict[str, Any]:
    """Return the blocks `metrics` and `calibration` of a run of a compiled deployment. Missing statistics are None.

    Raises:
        ValueError: The run has no compiled deployment (use `job_metrics`).
    """
    if run.compiled is None:
        raise ValueError("a run of bare prices has no energy and no calibration")
    energy, n_done = JobEnergy.of(run, run.compiled), int(run.completed.sum())
    accelerators = run.compiled.hardware.n_accelerators
    duration_s = energy.duration_s
    return {
        "metrics": {
            **job_metrics(run),
            "busy_fraction": energy.busy_fraction,
            "serving_fraction": energy.serving_fraction,
            "power": {
                "gpu_w_mean": energy.gpu_j / accelerators / duration_s if duration_s else None,
                "node_w_mean": energy.total_j / duration_s if duration_s else None,
            },
            "energy": {
                "gpu_j": energy.gpu_j,
                "gpu_j_per_job": energy.gpu_j / n_done if n_done else None,
                "total_j_per_job": energy.total_j / n_done if n_done else None,
            },
        },
        "calibration": run.compiled.bundle.source_block() | _origins(run, run.compiled),
    }


def job_metrics(run: JobRun) -> dict[str, Any]:
    """Return the metrics of a run except power and energy."""
    done, (first_s, last_s) = run.completed, run.span_s
    per_s, log = 1.0 / (last_s - first_s) if last_s > first_s else 0.0, run.batches
    items = int(items_of(run)[done].sum())
    found: dict[str, Any] = {
        "n_arrived": int(run.arrived.sum()),
        "n_completed": int(done.sum()),
        "n_rejected": int(run.rejected.sum()),
        "n_timed_out": int(run.timed_out.sum()),
        "n_unfinished": int(run.unfinished.sum()),
        "duration_s": last_s - first_s,
        "e2e_s": statistics(run.e2e_s[done]),
        "queue_s": statistics(run.queue_s[done]),
        "service_s": statistics(run.service_s[done]),
        "jobs_per_s": int(done.sum()) * per_s,
        "items_per_s": items * per_s,
        "batches": len(log.start_s),
        "jobs_per_batch": float(log.jobs.mean()) if len(log.start_s) else None,
        "items_per_batch": float(log.items.mean()) if len(log.start_s) else None,
    }
    if run.serving.state_bytes:
        found["states_moved"] = run.n_states_moved
    if len(run.serving.weights_bytes) > 1:
        found["networks_loaded"] = run.n_networks_loaded
    return found


def items_of(run: JobRun) -> IntArray:
    """Return the number of items of each job. Shape (jobs,)."""
    return np.array([kind.items for kind in run.serving.kinds], dtype=np.int64)[run.jobs.kind]


def _origins(run: JobRun, compiled: CompiledJobs) -> dict[str, float]:
    """Return the shares of kernel time by their evidence (EVIDENCE_SHARES)."""
    parts_s, total_s = np.zeros(3), 0.0
    counts = Counter(zip(run.batches.kind.tolist(), run.batches.items.tolist(), strict=True))
    for (kind, items), n in counts.items():
        price = compiled.price(run.jobs.kinds[kind], items)
        total_s += n * price.busy_s
        parts_s += n * price.busy_s * np.array([price.measured, price.interpolated, price.borrowed])
    return evidence_shares(parts_s.tolist(), total_s)


def caveats(run: JobRun) -> list[str]:
    """Return notices on jobs without latencies, and on too few jobs for a percentile."""
    lost = {
        "were rejected: the queue was full": int(run.rejected.sum()),
        "timed out before they started": int(run.timed_out.sum()),
    }
    lines = [f"{n:,} of {counted(run.jobs.n, 'job')} {text}" for text, n in lost.items() if n]
    n_done = int(run.completed.sum())
    if not n_done:
        lines.append("no job was completed, so there are no latencies")
    elif n_done == 1:
        lines.append("one job has no percentiles; simulate more jobs")
    elif n_done < FEW:
        lines.append(f"the p99 of {n_done} jobs is close to their maximum; simulate more jobs")
    terms, rules = run.jobs.terms, run.serving.rules
    if terms is not None and bool((terms.priority != 0).any()) and not rules.priorities:
        lines.append("the priorities of jobs are not used: the deployment has no priority levels")
    if terms is not None and bool(np.isfinite(terms.deadline_s).any()):
        lines.append("the deadlines of jobs are not used: no engine of networks reads them")
    return lines
