"""The protocol of everything that tries a candidate under a load, and what it returns.

A `Load` is put on a candidate, the steady part of the run is an `Observation`, and `judge` compares observations with
the objectives of a request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import FloatArray
from catalogs.deployments.resolve import CatalogLookup
from catalogs.hardware.specs import Hardware
from planner.evaluation.queueing import Utilisation
from planner.problem.candidate import Candidate
from planner.problem.slo import Slo
from planner.space.bounds import Discard

#: A queue that grows by more than this share of the arrivals in the window is not steady, whatever a percentile says.
GROWTH_LIMIT: Final = 0.05

#: Growth that no filling explains.
OVERLOAD_GROWTH: Final = 0.3

#: A short run discards a candidate only when it misses by more than its noise could explain.
SHORT_RUN_MARGIN: Final = 1.3

HOPELESS_GROWTH: Final = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """Open-loop requests on a whole deployment: equal seeds give equal lengths, and arrivals scaled by the rate."""

    requests_per_s: float
    n_requests: int
    seed: int
    whole_cluster: bool = False  # False: one replica under its share of the rate; True: every replica and the router
    patient: bool = True  # run on while it is undecided whether the system keeps up


@dataclass(frozen=True, slots=True)
class Observation:
    """The steady window of one run. samples_s: seconds by metric (ttft, tpot, itl, e2e), one per request or token."""

    load: Load
    samples_s: Mapping[str, FloatArray]
    n_measured: int
    growth_fraction: float  # growth of requests in the system over the window, as a share of the arrivals in it
    joules_per_output_token: float = float("nan")  # all accelerators and hosts, at the socket
    n_simulated: int = 0  # requests of the run

    @property
    def undecided(self) -> bool:
        """Growing, but no faster than a batch that is still filling up: a longer run will tell."""
        return not self.stable and self.growth_fraction <= OVERLOAD_GROWTH

    @property
    def stable(self) -> bool:
        """Whether the system kept up. The allowance covers the random walk of a short, busy run (two sigma)."""
        return self.growth_fraction <= max(GROWTH_LIMIT, 2 / math.sqrt(max(self.n_measured, 1)))


@dataclass(frozen=True, slots=True)
class CandidateFacts:
    """What is known of a candidate without simulating: the deployment with every default filled in, its memory, the
    command that starts it, and what a reader should know."""

    deployment: dict[str, object]
    memory: dict[str, object]
    command: str
    command_notes: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunDetail:
    """One simulated run in full. power_w: of all accelerators and hosts of the whole deployment, at the socket.

    error: how far whole runs of its engine were from measured ones.
    """

    observation: Observation
    metrics: dict[str, object]
    time_breakdown: dict[str, float]
    calibration: dict[str, object]
    output_tokens_per_s: float
    total_tokens_per_s: float
    power_w: float
    error: StatedError
    notices: tuple[str, ...] = ()


class Evaluator(Protocol):
    """Everything that planning needs to know about candidates under a load.

    A search needs the guesses of rates and `observe` alone; tests put a queue with a known answer in their place.
    """

    @property
    def names(self) -> CatalogLookup:
        """The model, the engine and the hardware; of several kinds of hardware the first."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Hardware that was left out of the choice, one sentence each."""

    @property
    def fingerprint(self) -> str:
        """Names the calibration: equal requests to evaluators with equal fingerprints have equal answers."""

    @property
    def mean_output_tokens(self) -> float:
        """Output tokens of a request of the workload, on average."""

    @property
    def n_requests_simulated(self) -> int:
        """Requests simulated so far in all runs together: the cost of planning."""

    def space(self) -> list[Candidate]:
        """Every legal candidate, in a fixed order."""

    def elsewhere(self, hardware: Hardware) -> Evaluator:
        """The same workload, model and engine on other hardware."""

    def names_of(self, candidate: Candidate) -> CatalogLookup:
        """The names of the hardware that a candidate is on, or on a part of."""

    def discard(self, candidate: Candidate) -> Discard | None:
        """Why a candidate can never meet the objectives, or None."""

    def facts(self, candidate: Candidate) -> CandidateFacts:
        """The candidate resolved and described. Never simulates."""

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        """A guess at the saturation rate of the whole deployment: a place to start a search, never a bound."""

    def light_requests_per_s(self, candidate: Candidate) -> float:
        """A rate of the whole deployment at which requests hardly ever meet."""

    def guess_s(self, candidate: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """A guess at a latency metric at a rate, seconds; infinite where overloaded. quantile: None for the mean."""

    def utilisation(self, candidate: Candidate, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        """A guess at how much of each resource a rate takes. quantile: of the parts of the time to the first token."""

    def observe(self, candidate: Candidate, load: Load) -> Observation:
        """Simulate a load, unless it is remembered, and return the steady part of the run."""

    def detail(self, candidate: Candidate, load: Load) -> RunDetail:
        """Simulate a load, unless it is remembered, and return everything about the run."""


@dataclass(slots=True)
class RequestCounter:
    """Counts the requests of observed runs, each run once however often it is observed: equal questions have equal
    counts, whether their runs were simulated or remembered."""

    n_requests: int = 0
    _counted: set[tuple[Candidate, Load]] = field(default_factory=set)

    def add(self, candidate: Candidate, seen: Observation) -> None:
        """Count the run behind an observation."""
        if (candidate, seen.load) not in self._counted:
            self._counted.add((candidate, seen.load))
            self.n_requests += seen.n_simulated

    def restart(self) -> None:
        """Forget every run."""
        self.n_requests = 0
        self._counted.clear()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The objectives of a request against one or more observations of the same load (seeds pooled)."""

    requests_per_s: float
    observations: tuple[Observation, ...]
    value_ratio: float  # the worst of value / limit
    worst: Slo
    stable: bool

    @property
    def ratio(self) -> float:
        """value_ratio, but infinite where the system does not keep up: whatever a percentile says of a short run."""
        return self.value_ratio if self.stable else float("inf")

    @property
    def met(self) -> bool:
        return self.ratio <= 1

    @property
    def hopeless(self) -> bool:
        """Of a short run: misses by more than noise explains, or falls behind by far. It may not be steady yet."""
        far_behind = any(o.growth_fraction > HOPELESS_GROWTH for o in self.observations)
        return self.value_ratio > SHORT_RUN_MARGIN or far_behind

    @property
    def joules_per_output_token(self) -> float:
        return float(np.mean([o.joules_per_output_token for o in self.observations]))

    def mean_s(self, metric: str) -> float:
        """The mean of a metric over all seeds together, seconds."""
        return float(np.mean(np.concatenate([o.samples_s[metric] for o in self.observations])))

    def value_s(self, slo: Slo) -> float:
        """The objective's statistic over all seeds together, seconds."""
        return pooled_value_s(self.observations, slo)


def pooled_value_s(observations: Sequence[Observation], slo: Slo) -> float:
    """The statistic of the samples of all observations together, seconds."""
    return slo.value_s(np.concatenate([o.samples_s[slo.metric] for o in observations]))


def judge(observations: Iterable[Observation], slos: Sequence[Slo]) -> Verdict:
    """Compare pooled statistics with the limits. No samples (one-token outputs have no tpot) meet any limit."""
    seen = tuple(observations)
    stable = all(o.stable for o in seen)
    ratios = [_ratio(pooled_value_s(seen, slo), slo.limit_s) for slo in slos]
    worst = int(np.argmax(ratios))
    return Verdict(seen[0].load.requests_per_s, seen, ratios[worst], slos[worst], stable)


def _ratio(value_s: float, limit_s: float) -> float:
    return 0.0 if np.isnan(value_s) else value_s / limit_s
