"""The explanation of a run (`simulate --explain`): the phases of its requests and the resource that limited it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import numpy as np

from catalogs.arrays import FloatArray
from simulator.analysis.bottleneck import bottleneck
from simulator.analysis.metrics import speculative_metrics
from simulator.analysis.request_phases import PHASES, Phases, phases
from simulator.cluster.run import Run

#: Percentiles shown in addition to the mean of all requests.
PERCENTILES: Final = {"p50": 50.0, "p99": 99.0}

#: Share of all requests that represents a percentile: those nearest to it by rank, at least one.
BAND: Final = 0.01


def explain(run: Run) -> dict[str, Any]:
    """Return the block `explain` of OUT.json.

    Raises:
        ValueError: The run has no compiled deployment or no event log.
    """
    bound = bottleneck(run)
    return {
        "latency": latency_block(phases(run)),
        "bound_by": bound.bound_by,
        **asdict(bound),
        **speculative_metrics(run),
    }


def latency_block(found: Phases) -> dict[str, Any]:
    """Return seconds, number of requests, and seconds and shares by phase, for each metric and statistic."""
    if not len(found.requests):
        return {}
    blocks = {}
    for metric, seconds in (("ttft", found.ttft_s), ("e2e", found.e2e_s)):
        order = np.argsort(seconds.sum(axis=1), kind="stable")
        bands = {name: _block(seconds[order[band(len(order), percent)]]) for name, percent in PERCENTILES.items()}
        blocks[metric] = {"mean": _block(seconds), **bands}
    return blocks


def band(n: int, percent: float) -> slice:
    """Return the ranks (0-based) of the requests that represent a percentile of `n` requests."""
    width = max(1, round(BAND * n))
    first = min(max(round(percent / 100.0 * (n - 1) - (width - 1) / 2.0), 0), n - width)
    return slice(first, first + width)


def _block(seconds: FloatArray) -> dict[str, Any]:
    mean_s = seconds.mean(axis=0)
    total_s = float(mean_s.sum())
    by_phase = dict(zip(PHASES, mean_s.tolist(), strict=True))
    shares = {name: value / total_s if total_s else 0.0 for name, value in by_phase.items()}
    return {"seconds": total_s, "requests": len(seconds), "phases_s": by_phase, "shares": shares}
