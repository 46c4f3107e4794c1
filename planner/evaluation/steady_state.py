"""The steady part of a run: after it filled up, before it drains; and whether it kept up meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray
from planner.evaluation.evaluator import Load, Observation
from simulator.analysis.energy import joules_drawn
from simulator.analysis.metrics import summarise
from simulator.cluster.run import Run
from simulator.core.step_log import StepLog

#: Least share of the requests left out at the start, and most at start and end.
WARM_UP: Final = 0.1

MOST_WARM_UP: Final = 0.5

MOST_DRAIN: Final = 0.1

GAP_SAMPLES: Final = 20_000


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """measured: the requests whose latencies count. growth_fraction: of requests in the system, per arrival."""

    measured: npt.NDArray[np.bool_]
    growth_fraction: float


def steady_window(arrival_s: FloatArray, finish_s: FloatArray) -> SteadyWindow:
    """The window of an open-loop run; finish_s is inf for a request that was never served.

    It starts two mean residence times into the run (every request that arrived into an empty system is gone, mostly)
    and ends one before the last arrival, after which nobody joins the batch. Growth is read up to the last arrival.
    """
    order = np.argsort(arrival_s, kind="stable")
    arrived, n = arrival_s[order], len(arrival_s)
    stay_s = float(np.mean((finish_s - arrival_s)[np.isfinite(finish_s)])) if np.any(np.isfinite(finish_s)) else 0.0
    first = int(np.searchsorted(arrived, arrived[0] + 2 * stay_s))
    first = min(max(first, int(WARM_UP * n)), int(MOST_WARM_UP * n))
    last = int(np.searchsorted(arrived, arrived[-1] - stay_s))
    last = max(last, n - int(MOST_DRAIN * n), first + 1)
    measured = np.zeros(n, dtype=np.bool_)
    measured[order[first:last]] = True
    finished = np.sort(finish_s)
    joined = n - 1 - first
    if joined <= 0:
        return SteadyWindow(measured, 0.0)
    left = np.searchsorted(finished, [arrived[first], arrived[-1]], side="right")
    return SteadyWindow(measured, float(joined - (left[1] - left[0])) / joined)


@dataclass(frozen=True, slots=True)
class WindowStatistics:
    """What to take from a run besides ttft, tpot and e2e; each costs a pass over its step log."""

    itl: bool = False
    joules: bool = False


def observe_run(run: Run, load: Load, reading: WindowStatistics) -> Observation:
    """The observation of a finished run of arrivals that follow no answer."""
    return observe_window(run, steady_window(run.arrival_s, finish_s(run)), load, reading)


def observe_window(run: Run, window: SteadyWindow, load: Load, reading: WindowStatistics) -> Observation:
    """The observation of a part of a run. A request that was refused never had its first token: infinite."""
    seen = window.measured
    samples = {"ttft": _endless(run.ttft_s[seen]), "e2e": _endless(run.e2e_s[seen])}
    several = seen & (run.requests.output_tokens > 1)
    samples["tpot"] = _endless(run.tpot_s[several])
    if reading.itl:
        samples["itl"] = token_gaps_s(run, (float(run.arrival_s[seen].min()), float(run.arrival_s[seen].max())))
    found = Observation(load, samples, int(seen.sum()), window.growth_fraction, n_simulated=run.requests.n)
    if not reading.joules:
        return found
    return replace(found, joules_per_output_token=joules_per_output_token(run, seen, found.stable))


def joules_per_output_token(run: Run, measured: npt.NDArray[np.bool_], stable: bool) -> float:
    """At the servers; nan where no token came out. Of a system that keeps up: what was drawn while the measured
    requests arrived, over their tokens. Filling up and draining, a long share of a short run, would draw more for each.
    """
    outputs = float(run.requests.output_tokens[measured].sum())
    within_s = float(run.arrival_s[measured].min()), float(run.arrival_s[measured].max())
    if stable and outputs and within_s[1] > within_s[0]:
        return joules_drawn(run, within_s) / outputs
    per_token = summarise(run)["metrics"]["energy"]["total_j_per_output_token"]
    return float("nan") if per_token is None else float(per_token)


def finish_s(run: Run) -> FloatArray:
    """When each request ended, seconds; inf if never."""
    return _endless(run.last_token_s)


def _endless(values: FloatArray) -> FloatArray:
    found: FloatArray = np.where(np.isnan(values), np.inf, values)
    return found


def token_gaps_s(run: Run, between_s: tuple[float, float]) -> FloatArray:
    """GAP_SAMPLES equally likely gaps between tokens, of the steps that start in `between_s`. Shape (GAP_SAMPLES,).

    A step of d seconds with n decodes is n gaps of d seconds. Gaps that preemptions made are taken from the whole run.
    """
    log = StepLog.merged(run.logs)
    kept = (log.decodes > 0) & (log.start_s >= between_s[0]) & (log.start_s <= between_s[1])
    if not kept.any():
        return np.zeros(0)
    mean_s = ((log.total_s + log.behind_s) / log.steps)[kept]
    values = np.concatenate([mean_s, run.gaps_s])
    weights = np.concatenate([(log.decodes * log.steps)[kept], np.ones(len(run.gaps_s))])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    wanted = (np.arange(GAP_SAMPLES) + 0.5) / GAP_SAMPLES * reached[-1]
    gaps_s: FloatArray = values[order][np.minimum(np.searchsorted(reached, wanted), len(values) - 1)]
    return gaps_s
