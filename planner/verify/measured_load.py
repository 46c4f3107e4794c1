"""The load of a measured run, and what the plan's deployment should do under it.

The planned rate has its predictions in the answer. Any other load (another rate, or a number of requests in flight, as
in sweeps) is simulated on the plan's deployment: as many requests as were measured, from the first to the last, because
a result also contains the start and the drain of its run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun
from calibration.accuracy.measured_summary import MeasuredSummary
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from planner.answer.confirmed_rates import MOST_REPLICAS
from planner.evaluation.confidence import SEEDS, Factors, interval, log_noise, seed_values
from planner.evaluation.observation import Load, Observation
from planner.evaluation.steady_state import SteadyWindow, WindowStatistics, observe_window
from planner.evaluation.verdict import pooled_value_s, pooled_waiting_share
from planner.problem.slo import STATS, Slo
from planner.studies.rerun import MOST_REQUESTS, Rerun
from planner.verify.prediction import Expected, Prediction
from simulator.cluster.simulate import simulate

Measured = MeasuredRun | MeasuredSummary

#: Share of the arrivals of a closed loop that find the same number of requests in flight. A judgement: the start, the
#: end and failed requests differ.
_CONSTANT: Final = 0.9

#: In a closed loop, a request follows the end of another one within this share of the time of a request. A judgement: a
#: client takes a moment to send the next one.
_PROMPT: Final = 0.05

#: Requests that are all sent within this share of a run are sent at once. A judgement: a client takes a moment to send
#: them all.
_AT_ONCE: Final = 0.01

#: Added to the seed, so that neither the search nor the benchmark of a plan has used the requests.
_OTHER_SEED: Final = 2000


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """The load of a run: an arrival rate, or a number of requests in flight of which each end sends the next one.

    `note` states where the rate comes from if arrivals are not known.
    """

    requests_per_s: float | None = None
    concurrency: int | None = None
    note: str | None = None

    @property
    def text(self) -> str:
        """Return the load in words."""
        if self.concurrency is not None:
            return f"{self.concurrency} requests in flight"
        return f"{self.requests_per_s:.4g} requests/s"


def load_of(run: Measured) -> MeasuredLoad:
    """Return the load of a run: from its arrivals, else from the settings of its client.

    The finished requests over the duration of a run are not its arrival rate, because the duration contains the drain.

    Raises:
        InputError: The result has neither.
    """
    if isinstance(run, MeasuredRun) and np.isfinite(run.arrival_s).sum() > 1:
        concurrency = _in_flight(run)
        return MeasuredLoad(concurrency=concurrency) if concurrency else MeasuredLoad(_arrivals_per_s(run))
    rate, most = run.offered.requests_per_s, run.offered.concurrency
    if rate is not None:
        note = f"{run.source} has no start times: its rate is the request_rate of its settings"
        return MeasuredLoad(rate, note=note)
    sent = run.n + run.n_failed
    peak = run.most_in_flight if isinstance(run, MeasuredSummary) else None
    if most is not None and (peak is None or peak >= min(most, sent)):
        return MeasuredLoad(concurrency=min(most, sent))
    if peak == sent:
        return MeasuredLoad(concurrency=sent)
    rule = "this result states neither when its requests were sent, nor their rate or concurrency"
    raise InputError(rule, run.source, hint="repeat `vllm bench serve` with --save-detailed (verify.sh does)")


def _arrivals_per_s(run: MeasuredRun) -> float:
    """Return the rate of all sent requests."""
    known = run.arrival_s[np.isfinite(run.arrival_s)]
    span_s = float(np.ptp(known))
    return (len(known) - 1 + run.n_failed) / span_s if span_s > 0 else run.requests_per_s


def _in_flight(run: MeasuredRun) -> int | None:
    """Return the constant number of requests in flight of a closed loop; None if requests were sent at a rate.

    In a closed loop nearly every request is sent right after the end of another one, and the number in flight is then
    the same. Requests that are all sent at once are a closed loop of that many clients.
    """
    known = np.isfinite(run.arrival_s) & np.isfinite(run.e2e_s)
    arrival_s = np.sort(run.arrival_s[known])
    end_s = np.sort((run.arrival_s + run.e2e_s)[known])
    if len(arrival_s) < 2:
        return None
    if np.ptp(arrival_s) <= _AT_ONCE * (end_s[-1] - arrival_s[0]):
        return len(arrival_s) + run.n_failed
    ended = np.searchsorted(end_s, arrival_s, side="right")
    in_flight = np.arange(1, len(arrival_s) + 1) - ended
    most = int(np.bincount(in_flight[ended > 0]).argmax()) if np.any(ended > 0) else 0
    later = ended > 0
    if not most or not np.any(later):
        return None
    since_s = arrival_s[later] - end_s[ended[later] - 1]
    prompt = np.median(since_s) <= _PROMPT * np.median(run.e2e_s[known])
    constant = np.mean(in_flight[later] == most) >= _CONSTANT
    return most if prompt and constant else None


@dataclass(frozen=True, slots=True)
class LoadSimulator:
    """Simulates one plan of an answer under the loads of measured runs.

    Attributes:
        prediction: The predictions of the plan at its own rate.
        rerun: The answer prepared for further simulation.
        plan: Number of the plan in the answer.
    """

    prediction: Prediction
    rerun: Rerun
    plan: int

    @classmethod
    def of(cls, prediction: Prediction, plan: int) -> LoadSimulator:
        """Return the simulator of a plan of the prediction's answer.

        Raises:
            InputError: The plan cannot be simulated here.
        """
        try:
            return cls(prediction, Rerun.of(prediction.answer), plan)
        except InputError as error:
            rule = f"a run at another load than the planned one needs a simulation of the plan ({error.rule})"
            raise InputError(
                rule, error.value, hint="verify where the plan was made, or send the planned rate"
            ) from None

    def expected(self, load: MeasuredLoad, n: int) -> tuple[list[Expected], float]:
        """Return every statistic of a run of `n` requests with its interval, and its rate in requests/s.

        Limits of objectives apply up to the planned rate.
        """
        n = min(n, MOST_REQUESTS)
        seeds = [self._observe(load, n, seed) for seed in range(SEEDS)]
        rate = float(np.mean([seen.load.requests_per_s for seen in seeds]))
        slower = self._slower(load, n)
        limits = {(slo.metric, slo.stat): slo.limit_s for slo in self.rerun.request.slos}
        planned = rate <= self.prediction.requests_per_s * (1 + 1e-9)
        stats = [(metric, stat) for metric in seeds[0].samples_s for stat in STATS]
        rows = []
        for metric, stat in dict.fromkeys([*stats, *limits]):
            limit_s = limits.get((metric, stat)) if planned else None
            row = self._expected(Slo(metric, stat, 1.0), seeds, slower)
            if row is not None:
                rows.append(replace(row, limit_s=limit_s))
        return rows, rate

    def _slower(self, load: MeasuredLoad, n: int) -> list[Observation]:
        """Return the runs in which the steps have the ends of the stated error of their speed.

        If every step took f times as long, a rate r would show f times the latencies of the rate r * f. A closed loop
        without pauses would only be slower.
        """
        if load.requests_per_s is None:
            return [self._observe(load, n, 0)] * len(self.prediction.ends)
        ends, slo = np.array(self.prediction.ends), self.rerun.request.slos[0]
        speeds = Factors.at(ends, slo, self.prediction.error).speed.tolist()
        return [self._observe(MeasuredLoad(load.requests_per_s * speed), n, 0) for speed in speeds]

    def _observe(self, load: MeasuredLoad, n: int, seed: int) -> Observation:
        """Return a whole run of `n` requests on an even share of the replicas."""
        evaluator, candidate = self.rerun.evaluator_of(self.plan), self.rerun.candidates[self.plan]
        parts = evaluator.deployments.even_parts(candidate)
        share = next(k for k in range(-(-parts // MOST_REPLICAS), parts + 1) if parts % k == 0)
        at = self.rerun.request.seed + _OTHER_SEED + seed
        n = max(n // share, 2)
        done = simulate(evaluator.deployments.part(candidate, share), self._requests(load, n, at, share))
        ends_s = done.last_token_s[np.isfinite(done.last_token_s)]
        rate = done.requests.n * share / float(ends_s.max()) if len(ends_s) else math.nan
        whole = SteadyWindow(np.ones(done.requests.n, dtype=np.bool_), 0.0)
        reading = WindowStatistics(tuple(self.metrics))
        return observe_window(done, whole, Load(load.requests_per_s or rate, n, at, whole_cluster=True), reading)

    def _requests(self, load: MeasuredLoad, n: int, seed: int, share: int) -> RequestSet:
        workload = self.rerun.workload
        if load.requests_per_s is not None:
            return workload.materialise(seed, n, load.requests_per_s / share)
        drawn = workload.materialise(seed, n)
        clients = max(1, round((load.concurrency or 1) / share))
        return replace(drawn, arrival_s=np.zeros(drawn.n), concurrency=clients)

    @property
    def metrics(self) -> Iterable[str]:
        """Return the names of the latency metrics that the answer predicts."""
        return dict.fromkeys(row.metric for row in self.prediction.rows())

    def _expected(self, slo: Slo, seeds: list[Observation], slower: list[Observation]) -> Expected | None:
        value_s = pooled_value_s(seeds, slo)
        if not 0 < value_s < math.inf:
            return None
        moved: FloatArray = np.array([slo.value_s(seen.samples_s[slo.metric]) for seen in slower])
        base = slo.value_s(seeds[0].samples_s[slo.metric])
        ends = self.prediction.ends
        waiting = np.array([pooled_waiting_share([seen], slo) for seen in slower])
        factors = Factors.at(np.array(ends), slo, self.prediction.error, waiting).latency
        low, high = interval(value_s, value_s * factors * moved / base, log_noise(seed_values(seeds, slo)), ends)
        return Expected(slo.metric, slo.stat, value_s, low, high)
