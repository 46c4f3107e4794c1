"""The evaluator for one piece of hardware: closed-form estimates and cached simulations of its candidates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import isnan

from calibration.accuracy.regime import Regime
from calibration.accuracy.stated_error import StatedError, stated_errors_digest
from catalogs.deployments.resolve import CatalogLookup
from catalogs.errors import InputError
from catalogs.hardware.specs import Hardware
from catalogs.workloads.workload import Workload
from planner.economics.rack_power import unused_w
from planner.evaluation.api_server_variants import api_server_variants
from planner.evaluation.closed_forms.bounds import Discard
from planner.evaluation.closed_forms.candidate_forms import ClosedForms
from planner.evaluation.closed_forms.disaggregated import best_ratios, ratios, refused_pairs
from planner.evaluation.closed_forms.estimates import Estimates, GuessedLimits
from planner.evaluation.closed_forms.queueing import Utilisation
from planner.evaluation.deployments import CandidateDeployments, Improve
from planner.evaluation.facts import CandidateFacts, FactSheets
from planner.evaluation.observation import Load, Observation, RunDetail
from planner.evaluation.runs import RunCache, SimulatedRuns
from planner.evaluation.tower_variants import tower_variants
from planner.evaluation.workload_statistics import WorkloadStatistics, workload_of
from planner.problem.candidate import Candidate
from planner.problem.price_list import PriceList
from planner.problem.request import DISAGGREGATED, PlanRequest
from planner.space.candidates import candidates, limits, refused_layouts, widest_limits


@dataclass(eq=False)
class SimulatedEvaluator:
    """Estimates and simulates the candidates of one request on one piece of hardware; implements Evaluator.

    `closed_forms` estimates and `runs` simulates, both from these parts:

    Attributes:
        request: The request.
        deployments: Compiles candidates.
        workload: Draws requests.
        cache: The runs to share with another evaluator.
        step_factor: Factor on the time of every engine step. The times of runs are rescaled, so that runs are shared
            with an evaluator without the factor.
        estimates: The closed forms that are known already, to which those that are computed are added.
    """

    request: PlanRequest
    deployments: CandidateDeployments
    workload: Workload
    cache: RunCache | None = None
    step_factor: float = 1.0
    estimates: Estimates = field(default_factory=Estimates, repr=False)
    _unused: dict[Candidate, float] = field(default_factory=dict, repr=False)
    # Observations that other processes made, as `observe` returns them.
    _kept: dict[tuple[Candidate, Load], Observation] = field(default_factory=dict, repr=False)

    @cached_property
    def runs(self) -> SimulatedRuns:
        """Return the simulator of the candidates."""
        cache = RunCache(self.workload, self.request.seed) if self.cache is None else self.cache
        return SimulatedRuns(self.request, self.deployments, lambda c: self.closed_forms.queueing(c), cache)

    @classmethod
    def of(
        cls,
        request: PlanRequest,
        hardware: Hardware,
        workload: Workload | None = None,
        largest_limits: tuple[int, int] = (0, 0),
        estimates: Estimates | None = None,
    ) -> SimulatedEvaluator:
        """Return the evaluator of a request on `hardware`, which its candidates use in whole or in part.

        Args:
            request: The request.
            hardware: The hardware.
            workload: The workload of the request, if it is already loaded.
            largest_limits: The largest (max_num_batched_tokens, max_num_seqs) of a written deployment, which may exceed
                those of a search. If they do not, its step costs are those of a search.
            estimates: The closed forms of the same request on this hardware that are known already.

        Raises:
            InputError: A name is unknown, or the workload has no rate.
        """
        names = CatalogLookup.on(hardware, request.model, request.engine)
        drawn = workload_of(request, workload)
        tokens, seqs = (max(pair) for pair in zip(widest_limits(names, request.fixed), largest_limits, strict=True))
        deployments = CandidateDeployments(names, request.model, request.engine, (tokens, seqs))
        return cls(request, deployments, drawn, estimates=estimates or Estimates())

    def elsewhere(self, hardware: Hardware) -> SimulatedEvaluator:
        """Return the evaluator of the same request on other hardware.

        Raises:
            InputError: The model or the engine does not support the hardware.
        """
        return SimulatedEvaluator.of(self.request.replace(hardware=hardware.text), hardware, self.workload)

    def with_(
        self,
        workload: Workload | None = None,
        host_factor: float = 1.0,
        power_limit_w: float | None = None,
        step_factor: float = 1.0,
        improve: Improve | None = None,
    ) -> SimulatedEvaluator:
        """Return a copy with some inputs changed; it shares the parts that a change does not affect.

        Args:
            workload: Another workload.
            host_factor: Factor on the times of the host.
            power_limit_w: Power limit of each accelerator.
            step_factor: Factor on the time of every engine step.
            improve: Changes the replicas of a role in simulated runs; closed forms, which determine the length of runs,
                remain.
        """
        deployments = self.deployments
        if host_factor != 1.0:
            deployments = deployments.with_host_factor(host_factor)
        if power_limit_w is not None:
            deployments = deployments.with_power_limit(power_limit_w)
        if improve is not None:
            deployments = deployments.with_improvement(improve)
        cache = self.runs.cache if workload is None and deployments is self.deployments else None
        factor = self.step_factor * step_factor
        return SimulatedEvaluator(self.request, deployments, workload or self.workload, cache, factor)

    # ---- facts

    @property
    def names(self) -> CatalogLookup:
        """Return the model, the engine and the hardware."""
        return self.deployments.names

    def names_of(self, candidate: Candidate) -> CatalogLookup:  # noqa: ARG002
        """Return `names`, which apply to every candidate."""
        return self.names

    @property
    def notices(self) -> tuple[str, ...]:
        """Return notices about layouts, and pairs of them, that the engine refuses; there is no choice of hardware."""
        pairs = refused_pairs(self.request, self.names) if DISAGGREGATED in self.request.extensions else []
        return (*refused_layouts(self.request, self.names), *pairs)

    @property
    def fingerprint(self) -> str:
        """Return text that identifies the calibration."""
        bundle = self.deployments.bundle
        return f"{bundle.name} {sorted(bundle.provenance.items(), key=str)} {stated_errors_digest()}"

    @cached_property
    def statistics(self) -> WorkloadStatistics:
        """Return the statistics of the workload."""
        return WorkloadStatistics.of(self.workload, self.request.seed)

    @property
    def mean_output_tokens(self) -> float:
        """Return the mean output tokens of a request, by which figures per token are divided."""
        return self.runs.cache.lengths.output_tokens.mean

    def space(self) -> list[Candidate]:
        """Return every legal candidate.

        On request these are also the disaggregated ones with the highest estimated rates. Where encoding takes
        a noticeable part of the time of a prompt, there are variants with whole towers on every tensor rank, or with an
        encoder pool. Where the API server limits a candidate, there is a variant with more API server processes.
        """
        if self.estimates.space is None:
            self.estimates.space = self._computed_space()
        return self.estimates.space

    def _computed_space(self) -> list[Candidate]:
        plain = candidates(self.request, self.names)
        own, fixed = limits(self.names, self.request.fixed)[0], self.request.fixed
        plain = [*plain, *tower_variants(plain, self.closed_forms, own, fixed)]
        found = [*plain, *(self._ratios if DISAGGREGATED in self.request.extensions else ())]
        found = [*found, *api_server_variants(found, self, self.request.fixed)]
        order = {hardware: i for i, hardware in enumerate(dict.fromkeys(c.hardware for c in plain))}
        return sorted(found, key=lambda c: order[c.hardware])

    @cached_property
    def _ratios(self) -> list[Candidate]:
        possible = (c for c in ratios(self.request, self.names) if self.discard(c) is None)
        return list(best_ratios(possible, self.closed_forms.disaggregated, self.request.slos))

    def facts(self, candidate: Candidate) -> CandidateFacts:
        """Return facts about the candidate, without simulation."""
        return FactSheets(self.deployments, self.statistics, self.workload.notices).of(candidate)

    # ---- closed forms

    @cached_property
    def closed_forms(self) -> ClosedForms:
        """Return the closed forms of the candidates, without the step factor."""
        return ClosedForms(self.deployments, self.statistics, self.request.slos, self.estimates)

    def discard(self, candidate: Candidate) -> Discard | None:
        """Return why a candidate can never meet the objectives, or None."""
        return self.closed_forms.discard(candidate)

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        """Return the estimated saturation rate of the whole deployment."""
        return self.closed_forms.saturation_per_s(candidate) / self.step_factor

    def light_requests_per_s(self, candidate: Candidate) -> float:
        """Return a rate of the whole deployment at which requests rarely overlap."""
        return self.closed_forms.light_per_s(candidate) / self.step_factor

    def stated_error(self, candidate: Candidate) -> StatedError:
        """Return the stated error of the candidate's simulated latencies, without simulation.

        It is that of the engine's default limits where they fit: candidates that differ only in limits are then
        simulated at the same rates, and the error does not depend on which of them comes first.
        """
        seqs, tokens = limits(self.names, self.request.fixed)[0]
        usual = replace(candidate, max_num_seqs=seqs, max_num_batched_tokens=tokens)
        try:
            return self._error_at_own_limits(usual)
        except InputError:
            if usual == candidate:
                raise
            return self._error_at_own_limits(candidate)

    def _error_at_own_limits(self, candidate: Candidate) -> StatedError:
        known = self.estimates.errors
        if candidate not in known:
            operators = self.closed_forms.operator_error(candidate)
            regime = Regime.of(self.names.model, candidate.hardware.accelerator)
            known[candidate] = StatedError.of(self.request.engine, operators, regime)
        return known[candidate]

    def guess_w(self, candidate: Candidate, requests_per_s: float) -> float:
        """Return the estimated power of the whole deployment at a rate, watts, at the servers; see Evaluator."""
        return self.closed_forms.power_w(candidate, requests_per_s * self.step_factor) + self.unused_w(candidate)

    def unused_w(self, candidate: Candidate) -> float:
        """Return the power of the accelerators that are rented with a candidate and idle, watts, at the servers.

        It is 0 for owned hardware, and where the price is not that of instances.
        """
        if candidate not in self._unused:
            request, found = self.request, 0.0
            if request.accounting.owned is None:
                price = PriceList(request.tariff, self.names.hardware).price(candidate)
                found = 0.0 if price is None else unused_w(candidate.hardware, price.idle_accelerators)
            self._unused[candidate] = found
        return self._unused[candidate]

    def guess_s(self, candidate: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """Return the estimated latency metric at a rate, seconds; see Evaluator."""
        rate = requests_per_s * self.step_factor
        return self.closed_forms.queueing(candidate).latency_s(rate, metric, quantile) * self.step_factor

    def guess_capacity_per_s(self, candidate: Candidate, limits: GuessedLimits) -> float:
        """Return the estimated highest rate within limits on latencies (see Evaluator); the result is cached."""
        known = self.estimates.capacity_per_s
        if (candidate, limits) not in known:
            light_per_s, full_per_s = self.light_requests_per_s(candidate), self.fluid_requests_per_s(candidate)
            guess_s = partial(self.guess_s, candidate)
            known[candidate, limits] = limits.capacity_per_s(guess_s, light_per_s, full_per_s)
        return known[candidate, limits]

    def utilisation(self, candidate: Candidate, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        """Return the estimated utilisation of each resource at a rate; see Evaluator."""
        rate = requests_per_s * self.step_factor
        found = self.closed_forms.queueing(candidate).utilisation(rate, quantile)
        first_s = tuple(part_s * self.step_factor for part_s in found.first_s)
        return replace(found, step_s=found.step_s * self.step_factor, first_s=first_s)

    # ---- simulated runs

    @property
    def n_requests_simulated(self) -> int:
        """Return the requests simulated so far in all runs."""
        return self.runs.cache.n_requests_simulated

    def run_requests(self, candidate: Candidate, load: Load) -> int:
        """Return the requests that a run under a load has; see Evaluator."""
        return self.runs.run_requests(candidate, self._simulated_load(load))

    def observe(self, candidate: Candidate, load: Load) -> Observation:
        """Return the steady part of a run under a load, from the cache or from a new simulation."""
        kept = self._kept.get((candidate, load))
        return self._with_unused(candidate, self._observed(candidate, load)) if kept is None else kept

    def knows(self, candidate: Candidate, load: Load) -> bool:
        """Return whether `observe` needs no simulation for this load."""
        return (candidate, load) in self._kept or self.runs.cache.knows(candidate, self._simulated_load(load))

    def keep(self, candidate: Candidate, seen: Observation) -> None:
        """Keep an observation that another process made with a copy of this evaluator, so that `observe` returns it."""
        if not self.knows(candidate, seen.load):
            self._kept[candidate, seen.load] = seen

    def _simulated_load(self, load: Load) -> Load:
        """Return the load whose run is rescaled: one on slower steps is a run at a higher rate with longer times."""
        if self.step_factor == 1.0:
            return load
        return replace(load, requests_per_s=load.requests_per_s * self.step_factor)

    def _with_unused(self, candidate: Candidate, seen: Observation) -> Observation:
        """Return an observation with the energy of the accelerators that are rented with a candidate and not used.

        If the queue grows, fewer tokens than those of the load share it: their energy is then a lower bound.
        """
        if isnan(seen.joules_per_output_token) or not (idle_w := self.unused_w(candidate)):
            return seen
        joules = idle_w / (seen.load.requests_per_s * self.mean_output_tokens)
        return replace(seen, joules_per_output_token=seen.joules_per_output_token + joules)

    def _observed(self, candidate: Candidate, load: Load) -> Observation:
        factor, seen = self.step_factor, self.runs.observe(candidate, self._simulated_load(load))
        if factor == 1.0:
            return seen
        samples_s = {metric: times_s * factor for metric, times_s in seen.samples_s.items()}
        queue_s = None if seen.queue_s is None else seen.queue_s * factor
        conditioned = {metric: times_s * factor for metric, times_s in seen.conditioned_queue_s.items()}
        return replace(seen, load=load, samples_s=samples_s, queue_s=queue_s, conditioned_queue_s=conditioned)

    def detail(self, candidate: Candidate, load: Load) -> RunDetail:
        """Return all results of a run under a load, from the cache or from a new simulation.

        Raises:
            ValueError: There is a step factor: summaries and energy of a run are not rescaled.
        """
        if self.step_factor != 1.0:
            raise ValueError(f"no detail of runs with a step factor of {self.step_factor}")
        found, idle_w = self.runs.detail(candidate, load), self.unused_w(candidate)
        if not idle_w:
            return found
        seen = self._with_unused(candidate, found.observation)
        return replace(found, observation=seen, power_w=found.power_w + idle_w, unused_w=idle_w)
