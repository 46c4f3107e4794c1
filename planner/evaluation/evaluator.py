"""The protocol of evaluators, which run candidates under a load, and the types of their results.

A candidate runs under a `Load`, the steady part of the run is an `Observation`, and `judge` compares observations with
the objectives of a request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np

from calibration.accuracy.stated_error import ALL_WAITING, WAITING_METRICS, StatedError, waiting_share
from catalogs.arrays import FloatArray
from catalogs.deployments.resolve import CatalogLookup
from catalogs.hardware.specs import Hardware
from catalogs.ui.words import percent
from planner.evaluation.queueing import Utilisation
from planner.problem.candidate import Candidate
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.space.bounds import GROWTH_LIMIT, NOT_ADMITTED, Discard, most_unserved

#: Growth beyond what a batch that is still filling up can explain.
OVERLOAD_GROWTH: Final = 0.3

#: A short run rules out a candidate only if it misses an objective by more than its noise could explain.
SHORT_RUN_MARGIN: Final = 1.3

CLEARLY_MISSED_GROWTH: Final = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """Open-loop requests on a whole deployment: equal seeds give equal lengths, and arrivals scaled by the rate.

    Attributes:
        requests_per_s: The rate on the whole deployment.
        n_requests: Requests of the run.
        seed: Seed of lengths and arrivals.
        whole_cluster: True simulates every replica and the router, False one replica under its share of the rate.
        patient: Whether the run is extended if it is undecided whether the system keeps up (see `verdict_of`).
    """

    requests_per_s: float
    n_requests: int
    seed: int
    whole_cluster: bool = False
    patient: bool = True


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Simulated requests of a quick run and of a full run: a percentile needs a dozen measured requests beyond it."""

    quick: int
    full: int

    @classmethod
    def for_slos(cls, slos: Sequence[Slo], shares: Mapping[str, float] = MappingProxyType({})) -> RunSizes:
        """Return the sizes that the objective with the fewest requests beyond its percentile needs.

        Args:
            slos: The objectives.
            shares: The share of all requests that a metric is about, by its name, where it has a condition.
        """
        beyond = min([(1 - (s.quantile or 0.0)) * shares.get(s.metric, 1.0) for s in slos] or [1.0])
        full = min(max(1000, round(16 / beyond)), 20_000)
        return cls(max(300, full // 5), full)

    def at_most(self, n: int) -> RunSizes:
        """Return sizes of at most `n` requests: enough if runs are only compared with each other."""
        return RunSizes(min(self.quick, n // 4), min(self.full, n))


@dataclass(frozen=True, slots=True)
class Observation:
    """The steady window of one run.

    Attributes:
        load: The load of the run.
        samples_s: Samples by name in LATENCY_METRICS, one per request, token gap, session or task, seconds. Each has
            shape (n,).
        n_measured: Requests in the window.
        growth_fraction: Growth of the requests in the system over the window, as a share of the arrivals in it.
        joules_per_output_token: Energy of all accelerators and hosts, at the socket, with those that are rented and
            not used.
        n_simulated: Requests of the whole run.
        rejected_fraction: Share of the requests in the window that are rejected because of their size. They count in
            `growth_fraction`: the system does not serve them.
        rejected_because: Why most of them are rejected; empty if none is.
        waiting_fraction: Requests that waited for their first step at the last arrival, as a share of the run's.
        queue_s: Time from arrival to the first step of each sample of ttft, seconds; None if it is not known. Shape
            (n,).
        conditioned_queue_s: The same of the requests of each metric on a condition, by its name. Each has shape (n,).
        seat_share: The largest share of `max_num_seqs` in use at the same time; 1 if it is not known, or if the KV
            cache was ever full.
    """

    load: Load
    samples_s: Mapping[str, FloatArray]
    n_measured: int
    growth_fraction: float
    joules_per_output_token: float = float("nan")
    n_simulated: int = 0
    rejected_fraction: float = 0.0
    rejected_because: str = ""
    waiting_fraction: float = 1.0
    queue_s: FloatArray | None = None
    conditioned_queue_s: Mapping[str, FloatArray] = field(default_factory=dict)
    seat_share: float = 1.0

    def queue_of(self, slo: Slo) -> FloatArray | None:
        """Return the queue times of the requests that an objective is about; None if they are not known. Shape (n,)."""
        return self.queue_s if slo.latency.condition is None else self.conditioned_queue_s.get(slo.metric)

    @property
    def undecided(self) -> bool:
        """Return whether the system may still be filling up, so that a longer run decides.

        The requests in it grow by more than a long run of a stable system may, but no faster than a batch that fills
        up, or none of them waits for a place in the batch. Growth within the larger tolerance of a short run counts as
        undecided too, so that the verdict at a rate does not depend on the length of the run.
        """
        filling = self.growth_fraction <= OVERLOAD_GROWTH or self.waiting_fraction <= GROWTH_LIMIT
        return self.growth_fraction > GROWTH_LIMIT and filling

    @property
    def stable(self) -> bool:
        """Return whether the system kept up, with an allowance for the random walk of a short, busy run."""
        return self.growth_fraction <= most_unserved(self.n_measured)


@dataclass(frozen=True, slots=True)
class CandidateFacts:
    """Facts about a candidate that need no simulation.

    Attributes:
        deployment: The deployment with every default filled in.
        memory: The memory of one accelerator, bytes.
        command: The command that starts a replica.
        command_notes: Notes on the command, one sentence each.
        notices: Notes on the candidate, one sentence each.
        checkpoint: The published checkpoint that the command serves; None for the model's own weights.
        versions: The versions planned, calibrated and started, in one sentence.
    """

    deployment: dict[str, object]
    memory: dict[str, object]
    command: str
    command_notes: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    checkpoint: dict[str, object] | None = None
    versions: str = ""


@dataclass(frozen=True, slots=True)
class RunDetail:
    """All results of one simulated run.

    Attributes:
        observation: The steady window of the run.
        metrics: The metrics block of the run; its power and energy are those of the steady window.
        samples_s: Samples of the steady window beside those of the observation: the time in the queue and the gaps
            between tokens, seconds. Each has shape (n,).
        time_breakdown: Seconds of the replicas in the steady window by class of operator.
        calibration: The calibration block.
        requests_per_s: Requests served per second by the whole deployment: the load if the system keeps up.
        output_tokens_per_s: Output tokens per second of the whole deployment: requests served per second times the
            mean lengths of the workload, as for all figures per token.
        total_tokens_per_s: Input and output tokens per second of the whole deployment.
        power_w: Power of all accelerators and hosts of the whole deployment, at the socket, `unused_w` included.
        error: Differences between simulated and measured whole runs of the engine.
        notices: Notes on the run, one sentence each.
        unused_w: Power of the accelerators that are rented with the deployment and not used, at the socket.
    """

    observation: Observation
    metrics: dict[str, object]
    time_breakdown: dict[str, float]
    calibration: dict[str, object]
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    power_w: float
    error: StatedError
    notices: tuple[str, ...] = ()
    samples_s: Mapping[str, FloatArray] = field(default_factory=dict)
    unused_w: float = 0.0


class Evaluator(Protocol):
    """Estimates and simulates candidates under a load: everything that planning needs to know about them.

    A search uses only the estimated rates and `observe`; tests replace these by a queue with a known solution.
    """

    @property
    def names(self) -> CatalogLookup:
        """Return the model, the engine and the hardware; of several kinds of hardware, the first."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Return sentences about hardware that is not compared."""

    @property
    def fingerprint(self) -> str:
        """Return text that identifies the calibration: with equal fingerprints, equal requests have equal answers."""

    @property
    def mean_output_tokens(self) -> float:
        """Return the mean output tokens of a request of the workload, by which figures per token are divided."""

    @property
    def n_requests_simulated(self) -> int:
        """Return the requests simulated so far in all runs: the cost of planning."""

    def space(self) -> list[Candidate]:
        """Return every legal candidate, in a fixed order."""

    def elsewhere(self, hardware: Hardware) -> Evaluator:
        """Return the evaluator of the same workload, model and engine on other hardware."""

    def names_of(self, candidate: Candidate) -> CatalogLookup:
        """Return the names for the hardware that a candidate uses in whole or in part."""

    def discard(self, candidate: Candidate) -> Discard | None:
        """Return why a candidate can never meet the objectives, or None."""

    def facts(self, candidate: Candidate) -> CandidateFacts:
        """Return facts about the candidate, without simulation."""

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        """Return the estimated saturation rate of the whole deployment: a start for a search, never a bound."""

    def light_requests_per_s(self, candidate: Candidate) -> float:
        """Return a rate of the whole deployment at which requests rarely overlap."""

    def stated_error(self, candidate: Candidate) -> StatedError:
        """Return the stated error of the candidate's simulated latencies, without simulation."""

    def guess_w(self, candidate: Candidate, requests_per_s: float) -> float:
        """Return the estimated power of the whole deployment at a rate, watts, at the servers.

        It includes the accelerators that are rented with the deployment and not used.
        """

    def guess_s(self, candidate: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """Return the estimated latency metric at a rate, seconds; infinite if overloaded.

        The estimate is of the given quantile, or of the mean if `quantile` is None.
        """

    def utilisation(self, candidate: Candidate, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        """Return the estimated utilisation of each resource at a rate.

        The parts of the time to first token are of the given quantile, or of the mean if `quantile` is None.
        """

    def run_requests(self, candidate: Candidate, load: Load) -> int:
        """Return the number of requests of a run under a load.

        It is more than the load asks for if most of the run would not be steady otherwise.
        """

    def observe(self, candidate: Candidate, load: Load) -> Observation:
        """Return the steady part of a run under a load, from the cache or from a new simulation."""

    def detail(self, candidate: Candidate, load: Load) -> RunDetail:
        """Return all results of a run under a load, from the cache or from a new simulation."""


def apply_bounds(request: PlanRequest, evaluator: Evaluator) -> tuple[list[Candidate], dict[Candidate, Discard]]:
    """Return the candidates that may meet the request, and the others with the reasons why they cannot."""
    found: dict[Candidate, Discard | None] = {}
    for candidate in evaluator.space():
        if (reason := request.admits(candidate)) is not None:
            lost, replicas = float(request.spare.lost(candidate)), float(candidate.replicas)
            found[candidate] = Discard(NOT_ADMITTED, reason, lost, replicas)
        else:
            found[candidate] = evaluator.discard(candidate)
    return [c for c, d in found.items() if d is None], {c: d for c, d in found.items() if d is not None}


@dataclass(slots=True)
class RequestCounter:
    """Counts the requests of observed runs, each run once.

    Equal requests therefore have equal counts, whether their runs were simulated or came from the cache.
    """

    n_requests: int = 0
    _counted: set[tuple[Candidate, Load, int]] = field(default_factory=set)

    def add(self, candidate: Candidate, seen: Observation) -> None:
        """Count the run behind an observation."""
        key = (candidate, replace(seen.load, patient=False), seen.n_simulated)  # the run itself, extended or not
        if key not in self._counted:
            self._counted.add(key)
            self.n_requests += seen.n_simulated

    def restart(self) -> None:
        """Set the count of simulated requests to zero, for the next search."""
        self.n_requests = 0
        self._counted.clear()


@dataclass(frozen=True, slots=True)
class ErrorAllowance:
    """Factors on simulated times that allow for the error of the simulator at one confidence.

    An objective is met with confidence c if it is met when every step takes as long, and every latency is as far off,
    as at probability level c of the stated error. Steps that take `speed` times as long are simulated as a higher
    rate: see `planner.evaluation.confidence`.

    Attributes:
        speed: Factor on the time of every step, and so on the rate of a run.
        confidence: The probability level of the error.
        error: The stated error; None takes simulated values as they are.
    """

    speed: float = 1.0
    confidence: float = 0.5
    error: StatedError | None = None

    def latency(self, slo: Slo, waiting: float = ALL_WAITING) -> float:
        """Return the factor on the statistic of an objective of which the share `waiting` is waiting.

        Where measured runs were mostly faster than simulated ones, the simulated value itself must still meet the
        limit, so no factor is below 1.
        """
        if self.error is None:
            return 1.0
        factors = self.error.factors(slo.latency.stated_error, np.array([self.confidence]), waiting)
        return max(float(factors[0]), 1.0)


#: The allowance that takes simulated values as they are.
NO_ALLOWANCE: Final = ErrorAllowance()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Comparison of the objectives of a request with one or more observations of the same load (seeds pooled).

    Attributes:
        requests_per_s: The rate that the verdict is about; with an allowance, the simulated load is another one.
        observations: One observation per seed.
        value_ratio: The largest value / limit, with the allowance for the error.
        worst: The objective with this ratio.
        stable: Whether the system kept up with every seed.
    """

    requests_per_s: float
    observations: tuple[Observation, ...]
    value_ratio: float
    worst: Slo
    stable: bool

    @property
    def ratio(self) -> float:
        """Return `value_ratio`, or infinity if the system does not keep up: a short run may hide that."""
        return self.value_ratio if self.stable else float("inf")

    @property
    def met(self) -> bool:
        """Return whether every objective is met."""
        return self.ratio <= 1

    @property
    def clearly_missed(self) -> bool:
        """Return whether a short run, which may not be steady yet, misses beyond its noise or is far overloaded."""
        return self.value_ratio > SHORT_RUN_MARGIN or self.far_behind

    @property
    def far_behind(self) -> bool:
        """Return whether the system is far overloaded in any run."""
        return any(o.growth_fraction > CLEARLY_MISSED_GROWTH for o in self.observations)

    @property
    def joules_per_output_token(self) -> float:
        """Return the mean energy of an output token over all seeds."""
        return float(np.mean([o.joules_per_output_token for o in self.observations]))

    @property
    def rejection(self) -> str:
        """Return which requests are rejected because of their size, in words; empty if they are not the problem.

        They are the problem if the system does not keep up and they are most of what it does not serve, or if an
        objective is infinite and it keeps up.
        """
        share = float(np.mean([o.rejected_fraction for o in self.observations]))
        growth = float(np.mean([o.growth_fraction for o in self.observations]))
        if not share or (share < growth / 2 if not self.stable else math.isfinite(self.value_ratio)):
            return ""
        because = max(self.observations, key=lambda o: o.rejected_fraction).rejected_because
        return f"{percent(share)} of requests are {because}"

    def mean_s(self, metric: str) -> float:
        """Return the mean of a metric over all seeds pooled, seconds."""
        return float(np.mean(np.concatenate([o.samples_s[metric] for o in self.observations])))

    @property
    def simulated_per_s(self) -> float:
        """Return the rate of the simulated load, requests per second."""
        return self.observations[0].load.requests_per_s

    def value_s(self, slo: Slo) -> float:
        """Return the simulated statistic of the objective over all seeds pooled, seconds."""
        return pooled_value_s(self.observations, slo)

    def waiting_share(self, slo: Slo) -> float:
        """Return the share of the objective's statistic that is waiting, over all seeds pooled."""
        return pooled_waiting_share(self.observations, slo)


def pooled_waiting_share(observations: Sequence[Observation], slo: Slo) -> float:
    """Return the share of the statistic of an objective that is waiting for the first step.

    The result is ALL_WAITING where that is not known, and for metrics whose error does not depend on it.
    """
    queues = [queue_s for queue_s in (o.queue_of(slo) for o in observations) if queue_s is not None]
    if slo.latency.stated_error not in WAITING_METRICS or len(queues) < len(observations):
        return ALL_WAITING
    first_s = np.concatenate([o.samples_s[slo.metric] for o in observations])
    return waiting_share(first_s, np.concatenate(queues), slo.value_s)


def pooled_value_s(observations: Sequence[Observation], slo: Slo) -> float:
    """Return the statistic of an objective over the pooled samples of all observations, seconds."""
    return slo.value_s(np.concatenate([o.samples_s[slo.metric] for o in observations]))


def judge(observations: Iterable[Observation], slos: Sequence[Slo], allowance: ErrorAllowance | None = None) -> Verdict:
    """Compare pooled statistics with the limits; without samples (one-token outputs have no tpot) a limit is met.

    With an allowance, the verdict is about the rate whose load was simulated with slower steps.
    """
    seen = tuple(observations)
    allowed = allowance or NO_ALLOWANCE
    stable = all(o.stable for o in seen)
    factors = [allowed.latency(slo, pooled_waiting_share(seen, slo)) if allowed.error else 1.0 for slo in slos]
    values_s = [pooled_value_s(seen, slo) * factor for slo, factor in zip(slos, factors, strict=True)]
    ratios = [0.0 if np.isnan(v) else v / slo.limit_s for v, slo in zip(values_s, slos, strict=True)]
    worst = int(np.argmax(ratios))
    return Verdict(seen[0].load.requests_per_s / allowed.speed, seen, ratios[worst], slos[worst], stable)


def verdict_of(
    evaluator: Evaluator,
    candidate: Candidate,
    loads: Sequence[Load],
    slos: Sequence[Slo],
    allowance: ErrorAllowance | None = None,
    each: Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]] = map,
    seen: Callable[[Observation], None] | None = None,
) -> Verdict:
    """Return the verdict of one run for each load, with longer runs where it is undecided whether the system keeps up.

    Only runs that together meet the objectives are extended, because a longer run has other requests: the objectives
    must not be met by these at one rate after they were missed at a lower rate by the requests of all other runs.

    Args:
        evaluator: Simulates the candidate.
        candidate: The candidate.
        loads: The loads, of one rate.
        slos: The objectives.
        allowance: The allowance for the error with which the objectives are judged.
        each: Applies a function to each of several loads, in this process or in others.
        seen: Called with the observation of every run.
    """
    observe = partial(evaluator.observe, candidate)
    found: list[Observation] = list(each(observe, [replace(load, patient=False) for load in loads]))
    for observation in found:
        if seen is not None:
            seen(observation)
    verdict = judge(found, slos, allowance)
    longer = [i for i, load in enumerate(loads) if load.patient and found[i].undecided]
    if not longer or verdict.value_ratio > 1:
        return verdict
    for i, observation in zip(longer, each(observe, [loads[i] for i in longer]), strict=True):
        found[i] = observation
        if seen is not None:
            seen(observation)
    return judge(found, slos, allowance)
