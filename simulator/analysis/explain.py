"""The explanation of a run (`simulate --explain`): the phases of its requests and the resource that limited it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import numpy as np

from catalogs.arrays import FloatArray
from simulator.analysis.bottleneck import api_server_busy, bottleneck
from simulator.analysis.metrics import BUSY_API_FRACTION, speculative_metrics
from simulator.analysis.request_phases import PHASES, Phases, phases
from simulator.cluster.run import Run

#: The bound of a run whose API servers are busy for at least BUSY_API_FRACTION of the time, whatever replicas do.
API_SERVER: Final = "api_server"

#: Percentiles shown in addition to the mean of all requests.
PERCENTILES: Final = {"p50": 50.0, "p99": 99.0}

#: Share of all requests whose phases explain a percentile: those nearest to it by rank, at least one.
BAND: Final = 0.01


def explain(run: Run) -> dict[str, Any]:
    """Return the block `explain` of OUT.json.

    Raises:
        ValueError: The run has no compiled deployment or no event log.
    """
    bound, busy = bottleneck(run), max(api_server_busy(run))
    return {
        "latency": latency_block(phases(run)),
        "bound_by": API_SERVER if busy >= BUSY_API_FRACTION else bound.bound_by,
        "api_server_busy_fraction": busy,
        **asdict(bound),
        **speculative_metrics(run),
    }


def latency_block(found: Phases) -> dict[str, Any]:
    """Return seconds, number of requests, and seconds and shares by phase, for each metric and statistic.

    The seconds are the statistic as in the block `metrics` (linear interpolation). The shares are those of all
    requests, or of the requests nearest to the percentile; the seconds by phase are the statistic times the shares.
    """
    if not len(found.requests):
        return {}
    blocks = {}
    for metric, seconds in (("ttft", found.ttft_s), ("e2e", found.e2e_s)):
        latency_s = seconds.sum(axis=1)
        order = np.argsort(latency_s, kind="stable")
        blocks[metric] = {"mean": _block(seconds, float(latency_s.mean()))}
        for name, percent in PERCENTILES.items():
            near = order[band(len(order), percent)]
            blocks[metric][name] = _block(seconds[near], float(np.percentile(latency_s, percent)))
    return blocks


def band(n: int, percent: float) -> slice:
    """Return the ranks (0-based) of the requests that represent a percentile of `n` requests."""
    width = max(1, round(BAND * n))
    first = min(max(round(percent / 100.0 * (n - 1) - (width - 1) / 2.0), 0), n - width)
    return slice(first, first + width)


def _block(seconds: FloatArray, statistic_s: float) -> dict[str, Any]:
    """Return the block of a statistic, with the phases of the requests that explain it.

    Args:
        seconds: Seconds of these requests by phase. Shape (requests, phases).
        statistic_s: The statistic of all requests, seconds.
    """
    total_s = float(seconds.sum())
    by_phase = dict(zip(PHASES, seconds.sum(axis=0).tolist(), strict=True))
    shares = {name: value / total_s if total_s else 0.0 for name, value in by_phase.items()}
    phases_s = {name: share * statistic_s for name, share in shares.items()}
    return {"seconds": statistic_s, "requests": len(seconds), "phases_s": phases_s, "shares": shares}
