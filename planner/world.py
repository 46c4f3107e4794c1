"""Everything planning asks of the packages below: facts of a candidate, bounds, and simulated runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from calibration.stated_error import StatedError
from catalogs.grid import Grid
from catalogs.prices import Price
from catalogs.resolving import Names
from planner.bounds import Discard
from planner.candidate import Candidate
from planner.flow import Strain
from planner.observation import Evaluator, Load, Observation


@dataclass(frozen=True, slots=True)
class Facts:
    """A candidate looked up: the resolved deployment, its memory and what a reader should know."""

    deployment: dict[str, object]
    memory: dict[str, object]
    command: str
    command_notes: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Detail:
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


class World(Evaluator, Protocol):
    """The catalogs, the calibration and the simulator behind one door."""

    @property
    def names(self) -> Names:
        """Of the hardware, or of the first of several; the model and the engine are the same for all."""

    def names_of(self, candidate: Candidate) -> Names:
        """Of the hardware that a candidate is on, or a part of."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What was left out of the choice, one sentence each."""

    @property
    def mean_output_tokens(self) -> float:
        """Of a request of the workload."""

    def space(self) -> list[Candidate]:
        """Every legal candidate."""

    def elsewhere(self, hardware: str) -> World:
        """The same question about other hardware."""

    def guess_s(self, candidate: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """A guess at a latency metric at a rate, seconds; infinite where overloaded. quantile: None for the mean."""

    def strain(self, candidate: Candidate, requests_per_s: float, quantile: float | None = None) -> Strain:
        """A guess at how much of each thing that can run out a rate takes; quantile: of the first token's parts."""

    @property
    def n_requests_simulated(self) -> int:
        """So far, in all runs together: what planning has cost."""

    @property
    def fingerprint(self) -> str:
        """Names the calibration: equal requests to equal fingerprints have equal answers."""

    def discard(self, candidate: Candidate) -> Discard | None:
        """Why a candidate can never meet the objectives, or None."""

    def facts(self, candidate: Candidate) -> Facts:
        """Never simulates."""

    def detail(self, candidate: Candidate, load: Load) -> Detail:
        """Simulate (or remember) this load and tell all."""

    def price(self, candidate: Candidate) -> Price | None:
        """US dollars per hour of the candidate's hardware, None where unknown."""

    def grid(self) -> Grid | None:
        """Carbon intensity, None where unknown."""
