"""Simulated against measured statistics, line by line, with the noise of the measurement next to the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from calibration.accuracy.measured_run import METRICS, STATS, MeasuredRun
from simulator.analysis.metrics import duration_s, latency_metrics
from simulator.cluster.run import Run

BOTTOM_UP: Final = "bottom-up"  # operators and host times

ENGINE_LEVEL: Final = "engine-level"  # whole steps

THROUGHPUT: Final = "tokens/s"

Bars = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class ComparisonLine:
    """One statistic of one trial, in seconds, or in tokens per second for throughput.

    Attributes:
        trial: The name of the trial.
        metric: The latency metric, or THROUGHPUT.
        stat: The statistic.
        measured: Mean over repeats.
        noise: Half the spread of repeats, divided by their mean.
        simulated: The value for each way of calibration.
        bar: The largest relative error that passes, in addition to the noise; None if the line is not judged.
    """

    trial: str
    metric: str
    stat: str
    measured: float
    noise: float
    simulated: Mapping[str, float]
    bar: float | None

    def error(self, way: str) -> float:
        """Return simulated / measured - 1."""
        return self.simulated[way] / self.measured - 1.0

    def met(self, way: str) -> bool | None:
        """Return whether the error is within the bar; None if the line is not judged."""
        return None if self.bar is None else abs(self.error(way)) - self.noise <= self.bar


@dataclass(frozen=True, slots=True)
class Standard:
    """The requirements on a comparison: relative errors by metric and statistic, and the judged way of calibration."""

    bars: Bars
    judged: str

    @classmethod
    def of(cls, tpot: float, e2e: float, ttft: float, tail: float, judged: str) -> Standard:
        """Return a standard with bars for means (and the p90 of E2E), and one bar for every p99."""
        means = {("tpot", "mean"): tpot, ("e2e", "mean"): e2e, ("e2e", "p90"): e2e, ("ttft", "mean"): ttft}
        return cls(means | {(metric, "p99"): tail for metric in ("ttft", "tpot", "e2e")}, judged)


STANDARD: Final = Standard.of(0.08, 0.10, 0.15, 0.25, BOTTOM_UP)

#: Engines with kernels unlike the profiled ones are judged by their own steps.
STANDARDS: Final = {"llama.cpp": Standard.of(0.15, 0.15, 0.25, 0.35, ENGINE_LEVEL)}


def lines(trial: str, runs: Sequence[MeasuredRun], simulated: Mapping[str, Run], bars: Bars) -> list[ComparisonLine]:
    """Return all lines of a trial: repeats of the measurement against one simulation per way of calibration."""
    summaries = {way: latency_metrics(run) for way, run in simulated.items()}
    found = []
    for metric, stat in product(METRICS, STATS):
        own = {way: float(summary[f"{metric}_s"][stat]) for way, summary in summaries.items()}
        found.append((metric, stat, [run.stat(metric, stat) for run in runs], own, bars.get((metric, stat))))
    # From the first sent request to the last token; the client's own figure refers to another time.
    rates = [float(run.output_tokens.sum()) / float(np.nanmax(run.arrival_s + run.e2e_s)) for run in runs]
    own = {way: float(run.requests.output_tokens.sum()) / duration_s(run) for way, run in simulated.items()}
    return [
        ComparisonLine(trial, metric, stat, float(np.mean(data)), float(np.ptp(data) / np.mean(data) / 2), own, bar)
        for metric, stat, data, own, bar in [*found, (THROUGHPUT, "mean", rates, own, None)]
    ]
