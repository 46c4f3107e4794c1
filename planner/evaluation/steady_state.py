"""The steady part of a run, between filling up and draining, and whether the system kept up in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from calibration.accuracy.stated_error import WAITING_METRICS
from catalogs.arrays import BoolArray, FloatArray
from planner.evaluation.observation import Load, Observation
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import Slo
from simulator.analysis.energy import PoolEnergy, pool_uses, power_and_energy
from simulator.analysis.metrics import output_tokens
from simulator.cluster.run import Run
from simulator.core.outcomes import STATUS, TOO_BIG
from simulator.core.step_log import StepLog

#: Least share of the requests that is left out at the start. A judgement: even where requests are short, the first ones
#: find an emptier system than the later ones.
WARM_UP: Final = 0.1

#: Largest share of the requests that is left out at the start. A judgement: two residence times may be longer than the
#: run, and its statistics need half of its requests. `Observation.undecided` finds runs that still fill up then.
MOST_WARM_UP: Final = 0.5

#: Largest share of the requests that is left out at the end, when no request joins the batch. A judgement: with
#: `MOST_WARM_UP`, at least two fifths of a run are measured.
MOST_DRAIN: Final = 0.1

#: Samples by which the gaps between tokens of a run are represented, at equally spaced quantiles. A judgement: 200 of
#: them lie beyond the 99th percentile, and runs with millions of tokens take no more memory.
GAP_SAMPLES: Final = 20_000


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """The steady window of a run.

    Attributes:
        measured: Whether the latencies of each request count. Shape (requests,).
        growth_fraction: Growth of the requests in the system, per arrival.
    """

    measured: npt.NDArray[np.bool_]
    growth_fraction: float


def steady_window(arrival_s: FloatArray, finish_s: FloatArray) -> SteadyWindow:
    """Return the steady window of an open-loop run.

    It starts two mean residence times into the run, when most requests that arrived into an empty system have left. It
    ends one residence time before the last arrival, after which no request joins the batch. Growth is measured up to
    the last arrival.

    Args:
        arrival_s: Arrival of each request. Shape (n,).
        finish_s: End of each request; inf for a request that was never served. Shape (n,).
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
    """The statistics to take from a run; joules, and metrics that are not per request, need a pass over its log.

    `metrics` are names of LATENCY_METRICS, also such with conditions.
    """

    metrics: tuple[str, ...] = tuple(name for name, metric in LATENCY_METRICS.items() if metric.is_per_request)
    joules: bool = False

    @classmethod
    def of(cls, slos: Sequence[Slo], joules: bool = False) -> WindowStatistics:
        """Return the metrics per request, and of the others those that an objective is set on."""
        wanted = dict.fromkeys(slo.metric for slo in slos)
        found = [name for name, metric in LATENCY_METRICS.items() if metric.is_per_request or name in wanted]
        return cls(tuple(dict.fromkeys([*found, *wanted])), joules)


@dataclass(frozen=True, slots=True)
class RequestWindow:
    """The requests of a run that statistics are taken over; implements planner.problem.metric_definition.RunWindow."""

    run: Run
    requests: BoolArray  # shape (n,)
    between_s: tuple[float, float] | None = None  # when steps start; None: from the first arrival to the last
    lost: BoolArray | None = None  # shape (n,): requests with infinite latencies, whatever they received

    def per_request(self, values_s: FloatArray, where: BoolArray | None = None) -> FloatArray:
        """Return the values of the window's requests, infinite where a request did not finish.

        Args:
            values_s: One value for each request of the run, in seconds. Shape (n,).
            where: Which requests count, if they are in the window; None: all of them. Shape (n,).
        """
        counted = self.requests if where is None else self.requests & where
        found = _endless(values_s[counted])
        if self.lost is not None:
            found[self.lost[counted]] = np.inf
        return found

    def token_gaps_s(self) -> FloatArray:
        """Return the gaps between tokens in the window, in seconds, as the function `token_gaps_s`. Shape (gaps,)."""
        if self.between_s is not None:
            return token_gaps_s(self.run, self.between_s)
        arrived_s = self.run.arrival_s[self.requests]
        return token_gaps_s(self.run, (float(arrived_s.min()), float(arrived_s.max())))


def observe_run(run: Run, load: Load, reading: WindowStatistics) -> Observation:
    """Return the observation of a finished open-loop run."""
    return observe_window(run, steady_window(run.arrival_s, finish_s(run)), load, reading)


def observe_window(run: Run, window: SteadyWindow, load: Load, reading: WindowStatistics) -> Observation:
    """Return the observation of a window of a run; the latencies of a refused request are infinite."""
    seen = window.measured
    samples = {name: LATENCY_METRICS[name].samples(RequestWindow(run, seen)) for name in reading.metrics}
    rejected = np.isin(run.status[seen], TOO_BIG)
    waiting = float(np.mean(~(run.started_s <= run.arrival_s.max())))
    found = Observation(
        load,
        samples,
        int(seen.sum()),
        window.growth_fraction,
        n_simulated=run.requests.n,
        rejected_fraction=float(rejected.mean()) if rejected.size else 0.0,
        rejected_because=STATUS[int(np.bincount(run.status[seen][rejected]).argmax())] if rejected.any() else "",
        waiting_fraction=waiting,
        queue_s=RequestWindow(run, seen).per_request(run.queue_s),
        conditioned_queue_s={
            name: metric.of_same_requests(RequestWindow(run, seen), run.queue_s)
            for name in reading.metrics
            if (metric := LATENCY_METRICS[name]).condition is not None and metric.stated_error in WAITING_METRICS
        },
        seat_share=seat_share(run),
    )
    if not reading.joules:
        return found
    return replace(found, joules_per_output_token=joules_per_output_token(run, seen, found.stable))


def seat_share(run: Run) -> float:
    """Return the largest share of `max_num_seqs` that was in use at the same time on any replica of a run.

    The share is 1 if it is not known, or if the KV cache was ever full: limits may then have restricted the run.
    """
    uses = [(replica.peak_use, run.pools[replica.pool].rules.max_num_seqs) for replica in run.replicas]
    known = [use.seats / limit for use, limit in uses if use is not None and use.free_blocks >= 0]
    return max(known) if known and len(known) == len(uses) else 1.0


def steady_uses(run: Run, measured: npt.NDArray[np.bool_], stable: bool) -> tuple[tuple[PoolEnergy, ...], float]:
    """Return what the pools of a run did while the measured requests arrived, and the output tokens of that work.

    `measured` marks the requests that count. Shape (n,). Filling up and draining, a large share of a short run, draw
    more energy per token and leave more time idle. If the system does not keep up, the whole run counts.
    """
    outputs = float(run.requests.output_tokens[measured].sum())
    within_s = float(run.arrival_s[measured].min()), float(run.arrival_s[measured].max())
    if stable and outputs and within_s[1] > within_s[0]:
        return pool_uses(run, within_s), outputs
    return pool_uses(run), output_tokens(run)


def joules_per_output_token(run: Run, measured: npt.NDArray[np.bool_], stable: bool) -> float:
    """Return the energy of an output token at the servers, see `steady_uses`; nan without output tokens.

    `measured` marks the requests that count. Shape (n,).
    """
    per_token = power_and_energy(*steady_uses(run, measured, stable))["energy"]["total_j_per_output_token"]
    return float("nan") if per_token is None else float(per_token)


def finish_s(run: Run) -> FloatArray:
    """Return the end of each request, seconds; inf if it never ended. Shape (requests,)."""
    return _endless(run.last_token_s)


def _endless(values: FloatArray) -> FloatArray:
    found: FloatArray = np.where(np.isnan(values), np.inf, values)
    return found


def token_gaps_s(run: Run, between_s: tuple[float, float]) -> FloatArray:
    """Return equally likely gaps between tokens, of the steps that start in `between_s`. Shape (GAP_SAMPLES,).

    A step of d seconds with n decodes is n gaps of d seconds. Gaps caused by preemptions are taken from the whole run.
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
