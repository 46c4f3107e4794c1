"""What the planner asks of a simulator: put a load on a candidate, look at the steady part of the run.

Everything planning asks of the packages below: facts of a candidate, bounds, and simulated runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import FloatArray
from catalogs.deployments.resolve import CatalogLookup
from catalogs.economics.electricity import Grid
from catalogs.economics.prices import Price
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
class OfferedLoad:
    """Open-loop requests on a whole deployment: equal seeds give equal lengths, and arrivals scaled by the rate."""

    requests_per_s: float
    n_requests: int
    seed: int
    whole_cluster: bool = False  # False: one replica under its share of the rate; True: every replica and the router
    patient: bool = True  # run on while it is undecided whether the system keeps up


@dataclass(frozen=True, slots=True)
class Observation:
    """The steady window of one run. samples_s: seconds by metric (ttft, tpot, itl, e2e), one per request or token."""

    load: OfferedLoad
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


class LoadEvaluator(Protocol):
    """The simulator as the search sees it; tests put a toy with a known answer here."""

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        """A guess at the saturation rate of the whole deployment: a place to start looking, never a bound."""

    def light_requests_per_s(self, candidate: Candidate) -> float:
        """A rate at which requests hardly ever meet."""

    def observe(self, candidate: Candidate, load: OfferedLoad) -> Observation:
        """Simulate and measure."""


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


@dataclass(frozen=True, slots=True)
class CandidateFacts:
    """A candidate looked up: the resolved deployment, its memory and what a reader should know."""

    deployment: dict[str, object]
    memory: dict[str, object]
    command: str
    command_notes: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunDetail:
    """One simulated run in full. error: how far whole runs of its engine were from measured ones."""

    observation: Observation
    metrics: dict[str, object]
    time_breakdown: dict[str, float]
    calibration: dict[str, object]
    output_tokens_per_s: float
    total_tokens_per_s: float
    power_w: float
    error: StatedError
    notices: tuple[str, ...] = ()


class Evaluator(LoadEvaluator, Protocol):
    """The catalogs, the calibration and the simulator behind one door."""

    @property
    def names(self) -> CatalogLookup:
        """Of the hardware, or of the first of several; the model and the engine are the same for all."""

    def names_of(self, candidate: Candidate) -> CatalogLookup:
        """Of the hardware that a candidate is on, or a part of."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What was left out of the choice, one sentence each."""

    @property
    def mean_output_tokens(self) -> float:
        """Of a request of the workload."""

    def space(self) -> list[Candidate]:
        """Every legal candidate."""

    def elsewhere(self, hardware: str) -> Evaluator:
        """The same question about other hardware."""

    def guess_s(self, candidate: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """A guess at a latency metric at a rate, seconds; infinite where overloaded. quantile: None for the mean."""

    def strain(self, candidate: Candidate, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        """A guess at how much of each thing that can run out a rate takes; quantile: of the first token's parts."""

    @property
    def n_requests_simulated(self) -> int:
        """So far, in all runs together: what planning has cost."""

    @property
    def fingerprint(self) -> str:
        """Names the calibration: equal requests to equal fingerprints have equal answers."""

    def discard(self, candidate: Candidate) -> Discard | None:
        """Why a candidate can never meet the objectives, or None."""

    def facts(self, candidate: Candidate) -> CandidateFacts:
        """Never simulates."""

    def detail(self, candidate: Candidate, load: OfferedLoad) -> RunDetail:
        """Simulate (or remember) this load and tell all."""

    def price(self, candidate: Candidate) -> Price | None:
        """US dollars per hour of the candidate's hardware, None where unknown."""

    def grid(self) -> Grid | None:
        """Carbon intensity, None where unknown."""
