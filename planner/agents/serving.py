"""Agents on a deployment: a number of sessions in a closed loop, simulated, and what their users see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import BoolArray
from catalogs.deployments.resolve import CatalogLookup, resolve_pools
from catalogs.errors import InputError
from catalogs.units import GIB
from catalogs.workloads.arrivals import ClosedLoopArrivals
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.workload import Workload
from planner.evaluation.closed_forms import ClosedForms
from planner.evaluation.confidence import Factors
from planner.evaluation.deployments import CandidateDeployments
from planner.evaluation.evaluator import Load, Observation, pooled_waiting_share
from planner.evaluation.steady_state import SteadyWindow, WindowStatistics, finish_s, observe_window
from planner.problem.candidate import Candidate, DeploymentOverrides
from planner.problem.slo import Slo
from simulator.analysis.prefix_hits import PrefixHits
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment, fit
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate

#: Requests of each agent in a run, and the fewest of all agents together. The first of each is not measured.
TURNS: Final = 20

FEWEST_REQUESTS: Final = 600

#: Share of the host memory of a node that the KV tier may take; the rest is for the engines.
HOST_SHARE: Final = 0.8

#: Host memory for the KV tier for each accelerator where that of the node is not known, GiB.
HOST_GIB_PER_ACCELERATOR: Final = 128.0

#: SSD of the KV tier for each accelerator, GiB.
SSD_GIB_PER_ACCELERATOR: Final = 500.0


@dataclass(frozen=True, slots=True)
class Tier:
    """Where KV blocks are kept: in device memory alone, or also in host memory and on SSD.

    Attributes:
        name: In words, such as "HBM + DRAM".
        keys: Keys of deployment.yaml.
    """

    name: str
    keys: DeploymentOverrides


def tiers(candidate: Candidate) -> Iterator[Tier]:
    """Yield the tiers that a candidate can have, the fastest first; sizes are per replica."""
    yield Tier("HBM", DeploymentOverrides({}))
    node = candidate.hardware.node
    known = node.host_memory_bytes
    per_accelerator = (
        HOST_GIB_PER_ACCELERATOR
        if known is None
        else HOST_SHARE * known * candidate.hardware.n_nodes / candidate.hardware.n_accelerators / GIB
    )
    host_gib = float(int(per_accelerator * candidate.layout.accelerators))
    ssd_gib = SSD_GIB_PER_ACCELERATOR * candidate.layout.accelerators
    yield Tier("HBM + DRAM", DeploymentOverrides({"kv_offload": {"host_gib": host_gib}}))
    yield Tier("HBM + DRAM + SSD", DeploymentOverrides({"kv_offload": {"host_gib": host_gib, "disk_gib": ssd_gib}}))


def routers(candidate: Candidate) -> tuple[str, ...]:
    """Return the routers to compare: by session and in turn, or the only replica."""
    return ("session_affinity", "round_robin") if candidate.replicas > 1 else ("round_robin",)


def sessions_of(workload: Workload) -> SyntheticWorkload | Any:
    """Return the content of a workload whose turns wait for each other.

    Raises:
        InputError: Its turns do not wait for the ends of others.
    """
    content = workload.content
    if isinstance(content, SyntheticWorkload):
        waits = content.turns is not None and content.turns.gap_s is not None
    else:
        waits = content.trace.recorded is not None
    if not waits:
        rule = "agents need a workload of sessions whose turns wait for answers (turns.gap_s, or recorded sessions)"
        raise InputError(rule, workload.name, "agentic-coding")
    return content


def requests_of(workload: Workload, agents: int, n: int, seed: int) -> RequestSet:
    """Return n requests of a number of agents at work, each in the middle of a session when the run begins."""
    content = sessions_of(workload)
    if isinstance(content, SyntheticWorkload):
        closed = ClosedLoopArrivals.model_validate({"concurrency": agents})
        content = replace(content, arrivals=closed, steady_sessions=True)
    else:
        content = replace(content, concurrency=agents, steady_sessions=True)
    return replace(content.draw(seed, n, 1.0), name=workload.name, source=workload.source)


def measured(run: Run, agents: int) -> BoolArray:
    """Return which requests of a run are measured. Shape (requests,).

    The caches are empty when a run begins, so the first request of each agent is not measured, nor are those that were
    sent before these had ended. Requests count that were sent while every agent had a next request.
    """
    finish = finish_s(run)
    n = run.requests.n
    sessions = run.requests.sessions
    assert sessions is not None
    _, first = np.unique(sessions, return_index=True)
    begun = np.sort(first)[:agents]
    warm_s = float(np.max(run.first_token_s[begun], initial=0.0, where=run.completed[begun]))
    end_s = float(np.sort(finish)[max(0, n - agents - 1)])
    found = (run.arrival_s >= warm_s) & (run.arrival_s <= end_s)
    if found.sum() < n // 4:  # the first requests take most of the run: the agents are too many
        found = run.arrived.copy()
        found[begun] = False
    return np.asarray(found & run.arrived)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run of agents shows.

    Attributes:
        agents: Agents at work.
        observation: The latencies of measured requests.
        hits: The prefix-cache hits of measured requests.
        requests_per_s: Measured requests per second.
        sessions_at_once: Mean requests under way at once.
        output_tokens_per_s: Output tokens of measured requests per second.
        longest_tokens: Prompt and output tokens of the longest measured request.
    """

    agents: int
    observation: Observation
    hits: PrefixHits
    requests_per_s: float
    sessions_at_once: float
    output_tokens_per_s: float
    longest_tokens: int = 0

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
    n_runs: int = 0
    n_requests: int = 0
    _drawn: dict[tuple[int, int, int], RequestSet] = field(default_factory=dict, repr=False)

    def error(self, candidate: Candidate) -> StatedError:
        """Return the stated error of the simulated latencies of a candidate."""
        return StatedError.of(self.names.engine.name, self.forms.operator_error(candidate))

    def compiled(self, candidate: Candidate, tier: Tier) -> CompiledDeployment:
        """Return a candidate with a tier, compiled for simulation; tiers share the costs of a step.

        Raises:
            InputError: It does not fit, or the engine does not support the tier.
        """
        with_tier = replace(candidate, rest=DeploymentOverrides({**candidate.rest.values, **tier.keys.values}))
        written = self.deployments.written(with_tier)
        names = replace(self.names, hardware=candidate.hardware)
        resolved, memory = fit(written, resolved=resolve_pools(written, names)[0])
        return CompiledDeployment(resolved, memory, self.deployments.step_cost(candidate), self.deployments.bundle)

    def observe(
        self,
        candidate: Candidate,
        tier: Tier,
        router: str,
        agents: int,
        turns: int = TURNS,
        seed: int = 0,
        speed: float = 1.0,
    ) -> Seen:
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
        n = max(FEWEST_REQUESTS * turns // TURNS, agents * turns)
        key = (agents, n, seed)
        if key not in self._drawn:
            self._drawn[key] = requests_of(self.workload, agents, n, self.seed + seed)
        work = self._drawn[key]
        if speed != 1.0 and work.graph is not None:
            work = replace(work, graph=replace(work.graph, gap_s=work.graph.gap_s / speed))
        run = simulate(self.compiled(candidate, tier), work, RunOptions(router=router))
        self.n_runs += 1
        self.n_requests += n
        counted = measured(run, agents)
        return seen_in(run, counted, agents, self.slos)


def seen_in(run: Run, counted: BoolArray, agents: int, slos: Sequence[Slo]) -> Seen:
    """Return what the counted requests of a run show. Shape of `counted`: (requests,)."""
    arrived = run.arrival_s[counted]
    span_s = max(float(np.ptp(arrived)), 1e-9) if len(arrived) else 1e-9
    rate = max(0, int(counted.sum()) - 1) / span_s
    load = Load(rate, run.requests.n, run.requests.seed, whole_cluster=True)
    tokens = (run.requests.input_tokens + run.requests.output_tokens)[counted]
    stays = (finish_s(run) - run.arrival_s)[counted & run.completed]
    return Seen(
        agents=agents,
        observation=observe_window(run, SteadyWindow(counted, 0.0), load, WindowStatistics.of(slos)),
        hits=PrefixHits.of(run, counted),
        requests_per_s=rate,
        sessions_at_once=rate * float(stays.mean()) if len(stays) else 0.0,
        output_tokens_per_s=float(run.requests.output_tokens[counted].sum()) / span_s,
        longest_tokens=int(tokens.max(initial=0)),
    )
