"""What an answer tells of latencies beyond its objectives: the curve over the rate, the distribution at the rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from planner.observation import Verdict
from planner.slo import Slo, statistic_s

#: Metrics of a curve point and of a distribution; itl only where an objective asks for it.
METRICS: Final = ("ttft", "tpot", "itl", "e2e")
CURVE_STATS: Final = ("mean", "p50", "p90", "p95", "p99")
#: Quantiles of a distribution: every per cent, and finer where objectives lie.
QUANTILES: Final = (*(q / 100 for q in range(100)), 0.995, 0.999)
_DIGITS: Final = 6


def curve_block(seen: Iterable[Verdict]) -> list[dict[str, object]]:
    """One point per rate simulated, ascending; of equal rates the one with most seeds. Seconds.

    whole_cluster: all replicas behind their router; otherwise one replica under its share of the requests.
    """
    points: dict[tuple[float, bool], Verdict] = {}
    for verdict in sorted(seen, key=lambda v: len(v.observations)):
        points[verdict.requests_per_s, verdict.observations[0].load.whole_cluster] = verdict
    return [_point(points[key], key[1]) for key in sorted(points)]


def _point(verdict: Verdict, whole_cluster: bool) -> dict[str, object]:
    metrics = [m for m in METRICS if m in verdict.observations[0].samples_s]
    return {
        "requests_per_s": verdict.requests_per_s,
        "whole_cluster": whole_cluster,
        "n_seeds": len(verdict.observations),
        "n_measured": sum(o.n_measured for o in verdict.observations),
        "stable": verdict.stable,
        "met": verdict.met,
        **{f"{m}_s": {s: short(verdict.value_s(Slo(m, s, 1.0))) for s in CURVE_STATS} for m in metrics},
    }


def cdf_block(verdict: Verdict) -> dict[str, list[float]]:
    """Quantiles of each latency over all seeds of the verdict: {"quantiles": [...], "ttft_s": [...], ...}. Seconds."""
    found: dict[str, list[float]] = {"quantiles": list(QUANTILES)}
    for metric in METRICS:
        if metric in verdict.observations[0].samples_s:
            samples = np.sort(np.concatenate([o.samples_s[metric] for o in verdict.observations]))
            found[f"{metric}_s"] = [short(statistic_s(samples, q)) for q in QUANTILES]
    return found


def short(value: float) -> float:
    """Six digits: more than any of these figures is known to."""
    return float(f"{value:.{_DIGITS}g}")
