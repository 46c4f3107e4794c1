"""Simulated against measured latencies: statistics with the noise of the measurement, and times by request length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np

from calibration.accuracy.measured_run import METRICS, STATS, MeasuredRun
from calibration.complexity.comparison import ComplexityComparison, compare
from calibration.complexity.linear_fit import LatencyLaw, mean_law
from calibration.complexity.records import LatencyRecords
from simulator.analysis.complexity import latency_records
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


@dataclass(frozen=True, slots=True)
class LengthComparison:
    """End-to-end times of one trial at equal complexity: simulated over measured, of all repeats together.

    Attributes:
        trial: The name of the trial.
        way: The way of calibration.
        ratios: The ratios by bin of lengths, and the ratio over all of them.
        measured: The linear law of the measured times; None if there are too few requests.
        simulated: The same of the simulated times.
    """

    trial: str
    way: str
    ratios: ComplexityComparison
    measured: LatencyLaw | None
    simulated: LatencyLaw | None

    @property
    def words(self) -> str:
        """Return the comparison as a sentence."""
        found = [each.ratio for each in self.ratios.bins if each.ratio is not None]
        span = f" ({min(found):.2f} to {max(found):.2f} in {len(found)} bins of length)" if len(found) > 1 else ""
        times = f"{self.ratios.ratio:.2f} times the measured ones{span}"
        return f"{self.trial}, {self.way}: at equal length, simulated end-to-end times are {times}"

    def block(self) -> dict[str, Any]:
        """Return the comparison as a block of JSON."""
        laws = {"measured": self.measured, "simulated": self.simulated}
        fits = {name: None if law is None else law.block() for name, law in laws.items()}
        return {"trial": self.trial, "way": self.way, **self.ratios.block(), "fit": fits}


def by_length(trial: str, runs: Sequence[MeasuredRun], simulated: Mapping[str, Run]) -> list[LengthComparison]:
    """Return the comparisons of a trial at equal complexity, one for each way of calibration."""
    measured = LatencyRecords.pooled([LatencyRecords.measured(run) for run in runs])
    found = []
    for way, run in simulated.items():
        records = latency_records(run)
        if measured.n and records.n:
            laws = mean_law(measured), mean_law(records)
            found.append(LengthComparison(trial, way, compare(measured, records), *laws))
    return found
