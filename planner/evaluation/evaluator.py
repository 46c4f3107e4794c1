"""The protocol of evaluators, which know everything about the candidates of a request and run them under a load."""

from __future__ import annotations

from typing import Protocol

from calibration.accuracy.stated_error import StatedError
from catalogs.deployments.resolve import CatalogLookup
from catalogs.hardware.specs import Hardware
from planner.evaluation.closed_forms.bounds import NOT_ADMITTED, Discard
from planner.evaluation.closed_forms.estimates import GuessedLimits
from planner.evaluation.closed_forms.queueing import Utilisation
from planner.evaluation.facts import CandidateFacts
from planner.evaluation.observation import Load, Observation, RunDetail
from planner.problem.candidate import Candidate
from planner.problem.request import PlanRequest


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

    def guess_capacity_per_s(self, candidate: Candidate, limits: GuessedLimits) -> float:
        """Return the estimated highest rate at which all latencies are within limits; 0 if a light load misses one."""

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

    def knows(self, candidate: Candidate, load: Load) -> bool:
        """Return whether `observe` needs no simulation for this load."""

    def keep(self, candidate: Candidate, seen: Observation) -> None:
        """Keep an observation that another process made with a copy of this evaluator, so that `observe` returns it."""


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
