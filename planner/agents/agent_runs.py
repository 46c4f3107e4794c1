"""Agents on a deployment: a number of sessions in a closed loop, simulated, and what their users see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from calibration.accuracy.regime import Regime
from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import BoolArray
from catalogs.deployments.resolve import CatalogLookup, resolve_pools
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import Workload
from planner.agents.load import WarmLoad, measured, requests_of, sessions_of
from planner.agents.session_times import MeasuredLatencies, WholeSessions
from planner.agents.step_shares import NO_STEPS, StepShares
from planner.evaluation.closed_forms.candidate_forms import ClosedForms
from planner.evaluation.confidence import Factors
from planner.evaluation.deployments import CandidateDeployments
from planner.evaluation.observation import Load, Observation
from planner.evaluation.steady_state import SteadyWindow, WindowStatistics, finish_s, observe_window
from planner.evaluation.verdict import pooled_waiting_share
from planner.problem.candidate import Candidate, DeploymentOverrides
from planner.problem.latency_metrics import OF_SESSIONS
from planner.problem.slo import Slo
from simulator.analysis.prefix_hits import PrefixHits
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet, fit, fleet_of
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate

#: Requests of each agent in a run. A judgement: a run begins when the contexts of all agents are in the caches, and
#: twenty turns average over lengths and idle times.
TURNS: Final = 20

#: Fewest requests of all agents in a run together. A judgement: six of them lie beyond a 99th percentile.
FEWEST_REQUESTS: Final = 600


@dataclass(frozen=True, slots=True)
class Tier:
    """Where KV blocks are kept: in device memory alone, or also in host memory and on SSD.

    Attributes:
        name: In words, such as "HBM + DRAM".
        keys: Keys of deployment.yaml.
    """

    name: str
    keys: DeploymentOverrides


@dataclass(frozen=True, slots=True)
class AgentObservation:
    """What a run of agents shows.

    Attributes:
        agents: Agents at work.
        observation: The latencies of measured requests, with the times of sessions and tasks that follow from them.
        hits: The prefix-cache hits of measured requests.
        requests_per_s: Measured requests per second.
        requests_at_once: Mean requests under way at once.
        output_tokens_per_s: Output tokens of measured requests per second.
        longest_tokens: Prompt and output tokens of the longest measured request.
        n_simulated: Requests of the whole run.
        context_tokens: Mean tokens of the prompt and the output of a measured request.
        steps: The steps in which tokens were generated, with and without prompts.
    """

    agents: int
    observation: Observation
    hits: PrefixHits
    requests_per_s: float
    requests_at_once: float
    output_tokens_per_s: float
    longest_tokens: int = 0
    n_simulated: int = 0
    context_tokens: float = 0.0
    steps: StepShares = NO_STEPS

    def ratio(self, slos: Sequence[Slo], error: StatedError, level: float) -> float:
        """Return the highest ratio of a value to its limit if the latencies have the stated error of a level."""
        found = 0.0
        for slo in slos:
            value = self.value_s(slo, error, level) / slo.limit_s
            found = max(found, value if value == value else float("inf"))
        return found

    def value_s(self, slo: Slo, error: StatedError, level: float) -> float:
        """Return the value of an objective in seconds if the latencies have the stated error of a level."""
        waiting = pooled_waiting_share([self.observation], slo)
        factor = float(Factors.at(np.array([level]), slo, error, waiting).latency[0])
        return factor * slo.value_s(self.observation.samples_s[slo.metric])


@dataclass
class AgentServing:
    """Simulates agents on the candidates of one hardware.

    Attributes:
        names: The model, the engine and the hardware.
        deployments: Compiles candidates.
        workload: The sessions.
        slos: The objectives.
        seed: Seed of the sessions.
        forms: Closed forms of the candidates.
    """

    names: CatalogLookup
    deployments: CandidateDeployments
    workload: Workload
    slos: tuple[Slo, ...]
    seed: int
    forms: ClosedForms
    _drawn: dict[tuple[int, int, int], WarmLoad] = field(default_factory=dict, repr=False)
    _whole: WholeSessions | None = field(default=None, repr=False)
    _compiled: dict[tuple[Candidate, str], CompiledDeployment | CompiledFleet] = field(default_factory=dict, repr=False)

    def error(self, candidate: Candidate) -> StatedError:
        """Return the stated error of the simulated latencies of a candidate."""
        regime = Regime.of(self.names.model, candidate.hardware.accelerator)
        return StatedError.of(self.names.engine.name, self.forms.operator_error(candidate), regime)

    def sample(self, agents: int) -> RequestSet:
        """Return requests of agents at work, from which their load follows."""
        return requests_of(self.workload, agents, max(FEWEST_REQUESTS, agents * TURNS), self.seed)

    def load(self, agents: int, turns: int, seed: int) -> WarmLoad:
        """Return the requests of a run; see `observe`."""
        n = max(FEWEST_REQUESTS * turns // TURNS, agents * turns)
        key = (agents, n, seed)
        if key not in self._drawn:
            self._drawn[key] = WarmLoad.of(requests_of(self.workload, agents, n, self.seed + seed), agents)
        return self._drawn[key]

    @property
    def whole_sessions(self) -> WholeSessions:
        """Return whole sessions of the workload."""
        if self._whole is None:
            self._whole = WholeSessions.of(sessions_of(self.workload), self.seed)
        return self._whole

    def compiled(self, candidate: Candidate, tier: Tier) -> CompiledDeployment | CompiledFleet:
        """Return a candidate with a tier, compiled for simulation; tiers share the costs of a step.

        Raises:
            InputError: It does not fit, or the engine does not support the tier.
        """
        key = candidate, tier.name
        if key not in self._compiled:
            rest = DeploymentOverrides({**candidate.rest.values, **tier.keys.values})
            with_tier = replace(candidate, rest=rest)
            pools = tuple(
                self._pool(own, tiered, role)
                for (role, own), (_, tiered) in zip(candidate.pools, with_tier.pools, strict=True)
            )
            split = self.deployments.written(with_tier).disaggregation
            self._compiled[key] = fleet_of(pools, split) if candidate.split else pools[0]
        return self._compiled[key]

    def _pool(self, own: Candidate, tiered: Candidate, role: Any) -> CompiledDeployment:
        """Return the replicas of a role with a tier; `own` is the same pool without it."""
        written = self.deployments.written(tiered)
        resolved = resolve_pools(written, replace(self.names, hardware=own.hardware))[0]
        resolved, memory = fit(written, resolved=resolved)
        cost = self.deployments.step_cost(own)
        return CompiledDeployment(replace(resolved, role=role), memory, cost, self.deployments.bundle)

    def held_tokens(self, candidate: Candidate, tier: Tier) -> tuple[float, float]:
        """Return the tokens that device memory and the tiers behind it hold, of the replicas that compute prompts."""
        compiled = self.compiled(candidate, tier)
        pool = compiled.deployments[0] if isinstance(compiled, CompiledFleet) else compiled
        device = pool.memory.max_concurrency_tokens * pool.resolved.replicas
        offload = pool.resolved.offload
        if offload is None:
            return device, 0.0
        per_token = pool.memory.replica_kv_bytes_per_token
        return device, (offload.host_bytes + offload.disk_bytes) / per_token * pool.resolved.replicas

    def observe(
        self,
        candidate: Candidate,
        tier: Tier,
        router: str,
        agents: int,
        turns: int = TURNS,
        seed: int = 0,
        speed: float = 1.0,
    ) -> AgentObservation:
        """Return what a run of agents on a candidate shows.

        Args:
            candidate: The placement.
            tier: Where KV blocks are kept.
            router: The routing policy.
            agents: Agents at work.
            turns: Requests of each agent.
            seed: Added to the seed of the request.
            speed: Divides the times of tools and humans. Agents on steps that take this factor longer see the latencies
                of this run times the factor, because the clock can be rescaled.
        """
        load = self.load(agents, turns, seed)
        work = load.requests
        if speed != 1.0 and work.graph is not None:
            work = replace(work, graph=replace(work.graph, gap_s=work.graph.gap_s / speed))
        run = simulate(self.compiled(candidate, tier), work, RunOptions(router=router))
        counted = measured(run, agents, load.n_first)
        found = observed(run, counted, agents, self.slos)
        if turns < TURNS and not any(slo.metric in OF_SESSIONS for slo in self.slos):
            return found
        latencies = MeasuredLatencies.of(run, counted)
        times = self.whole_sessions.times_s(latencies, self.seed + seed, speed)
        samples = {**found.observation.samples_s, **times}
        return replace(found, observation=replace(found.observation, samples_s=samples))


def observed(run: Run, counted: BoolArray, agents: int, slos: Sequence[Slo]) -> AgentObservation:
    """Return what the counted requests of a run show. Shape of `counted`: (requests,)."""
    arrived = run.arrival_s[counted]
    span_s = max(float(np.ptp(arrived)), 1e-9) if len(arrived) else 1e-9
    rate = max(0, int(counted.sum()) - 1) / span_s
    load = Load(rate, run.requests.n, run.requests.seed, whole_cluster=True)
    tokens = (run.requests.input_tokens + run.requests.output_tokens)[counted]
    stays = (finish_s(run) - run.arrival_s)[counted & run.completed]
    of_requests = [slo for slo in slos if slo.metric not in OF_SESSIONS]
    window = (float(arrived.min()), float(arrived.max())) if len(arrived) else (0.0, 0.0)
    return AgentObservation(
        agents=agents,
        observation=observe_window(run, SteadyWindow(counted, 0.0), load, WindowStatistics.of(of_requests)),
        hits=PrefixHits.of(run, counted),
        requests_per_s=rate,
        requests_at_once=rate * float(stays.mean()) if len(stays) else 0.0,
        output_tokens_per_s=float(run.requests.output_tokens[counted].sum()) / span_s,
        longest_tokens=int(tokens.max(initial=0)),
        n_simulated=run.requests.n,
        context_tokens=float(tokens.mean()) if len(tokens) else 0.0,
        steps=StepShares.of(run, window),
    )
