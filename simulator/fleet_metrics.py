"""How many replicas there were, what became of requests whose replica died, and what each pool did."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.metrics import statistics
from simulator.run_record import Run

FloatArray = npt.NDArray[np.float64]

HOUR_S = 3600.0


def fleet_metrics(run: Run) -> dict[str, Any]:
    """The keys n_failed, n_retries, replicas and accelerator_hours of `metrics`, and pools where there are several."""
    first_s, last_s = run.span_s
    found: dict[str, Any] = {
        "n_failed": int(run.failed.sum()),
        "n_retries": run.restarts - int(run.failed.sum()),
        "replicas": _counts(run, first_s, last_s),
        "accelerator_hours": _accelerator_s(run, first_s, last_s) / HOUR_S,
    }
    if len(run.pools) > 1:
        found["pools"] = [_pool(run, number, last_s - first_s) for number in range(len(run.pools))]
    return found


def _counts(run: Run, first_s: float, last_s: float) -> dict[str, float]:
    """Of replicas that lived: mean over the run, fewest, most, and at its end."""
    if last_s <= first_s:
        n = len(run.replicas)
        return {"mean": float(n), "min": n, "max": n, "end": n}
    born = np.sort([max(r.born_s, first_s) for r in run.replicas])
    died = np.sort([r.died_s for r in run.replicas])
    times = np.unique(np.concatenate([[first_s], born, died]))
    times = times[(times >= first_s) & (times < last_s)]
    counts = np.searchsorted(born, times, side="right") - np.searchsorted(died, times, side="right")
    mean = float(counts @ np.diff(np.append(times, last_s))) / (last_s - first_s)
    return {"mean": mean, "min": int(counts.min()), "max": int(counts.max()), "end": int(counts[-1])}


def _accelerator_s(run: Run, first_s: float, last_s: float) -> float:
    """That somebody pays for: from the order of a replica to its death."""
    total = 0.0
    for number, pool in enumerate(run.pools):
        each = pool.plant.resolved.accelerators_per_replica if pool.plant else 1
        alive_s = sum(r.alive_fraction(first_s, last_s) for r in run.replicas if r.pool == number) * (last_s - first_s)
        total += each * (alive_s + run.starting_s(number))
    return total


def _pool(run: Run, number: int, duration_s: float) -> dict[str, Any]:
    """Of requests that ended there."""
    members = np.array([r.pool == number for r in run.replicas] + [False])  # replica -1: none
    done = run.completed & members[run.replica]
    return {
        "n_completed": int(done.sum()),
        "requests_per_s": int(done.sum()) / duration_s if duration_s > 0.0 else 0.0,
        "ttft_s": statistics(run.ttft_s[done]),
        "tpot_s": statistics(run.tpot_s[done]),
        "e2e_s": statistics(run.e2e_s[done]),
    }
