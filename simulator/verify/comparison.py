"""Simulated against measured, line by line, with the noise of the measurement beside the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from calibration.accuracy.measured_run import METRICS, STATS, MeasuredRun
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.metrics import duration_s, latency_metrics
from simulator.cluster.run import Run

BOTTOM_UP: Final = "bottom-up"  # operators and host times

ENGINE_LEVEL: Final = "engine-level"  # whole steps

THROUGHPUT: Final = "tokens/s"

Bars = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class ComparisonLine:
    """One statistic of one trial. Seconds, or tokens per second for throughput.

    measured: mean over repeats; noise: half the spread of repeats over that mean; simulated: by way of calibrating.
    """

    trial: str
    metric: str
    stat: str
    measured: float
    noise: float
    simulated: Mapping[str, float]
    bar: float | None  # largest relative error that passes beyond the noise

    def error(self, way: str) -> float:
        """Simulated / measured - 1."""
        return self.simulated[way] / self.measured - 1.0

    def met(self, way: str) -> bool | None:
        """None where nothing is asked of this line."""
        return None if self.bar is None else abs(self.error(way)) - self.noise <= self.bar


@dataclass(frozen=True, slots=True)
class Standard:
    """What a comparison must keep to: relative errors by metric and statistic, and the way of calibrating judged."""

    bars: Bars
    judged: str

    @classmethod
    def of(cls, tpot: float, e2e: float, ttft: float, tail: float, judged: str) -> Standard:
        """Bars of means (and of E2E's p90), and one for every p99."""
        means = {("tpot", "mean"): tpot, ("e2e", "mean"): e2e, ("e2e", "p90"): e2e, ("ttft", "mean"): ttft}
        return cls(means | {(metric, "p99"): tail for metric in ("ttft", "tpot", "e2e")}, judged)


STANDARD: Final = Standard.of(0.08, 0.10, 0.15, 0.25, BOTTOM_UP)

#: Engines whose kernels are not like those profiled are judged by their own steps.
STANDARDS: Final = {"llama.cpp": Standard.of(0.15, 0.15, 0.25, 0.35, ENGINE_LEVEL)}


def lines(trial: str, runs: Sequence[MeasuredRun], simulated: Mapping[str, Run], bars: Bars) -> list[ComparisonLine]:
    """All lines of a trial: repeats of the measurement against one simulation per way."""
    summaries = {way: latency_metrics(run) for way, run in simulated.items()}
    found = []
    for metric in METRICS:
        for stat in STATS:
            measured = np.array([run.stat(metric, stat) for run in runs])
            own = {way: float(s[f"{metric}_s"][stat]) for way, s in summaries.items()}
            found.append(_line((trial, metric, stat), measured, own, bars.get((metric, stat))))
    tokens = np.array([_tokens_per_s(run) for run in runs])
    own = {way: _simulated_tokens_per_s(run) for way, run in simulated.items()}
    return [*found, _line((trial, THROUGHPUT, "mean"), tokens, own, None)]


def _line(
    name: tuple[str, str, str], measured: np.ndarray, simulated: dict[str, float], bar: float | None
) -> ComparisonLine:
    mean = float(measured.mean())
    return ComparisonLine(*name, mean, 0.5 * float(np.ptp(measured)) / mean, simulated, bar)


def _tokens_per_s(run: MeasuredRun) -> float:
    """Over the time from the first request sent to the last token, which the client's own figure is not."""
    ends = float(np.nanmax(run.arrival_s + run.e2e_s))
    return float(run.output_tokens.sum()) / ends


def _simulated_tokens_per_s(run: Run) -> float:
    requests: RequestSet = run.requests
    return float(requests.output_tokens.sum()) / duration_s(run)
