"""Candidates as runnable deployments, resolved, sized and compiled once each, whole or in even parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Final

from calibration.bundles.bundle import Bundle, load_bundle
from calibration.bundles.engine_calibration import EngineCalibration
from calibration.operators.cost import CachedCosts, CostSource
from catalogs.deployments.layout import Role
from catalogs.deployments.resolve import CatalogLookup, resolve_pools
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.engines.profile import HostTimes
from catalogs.hardware.specs import Hardware
from planner.problem.candidate import Candidate, CandidatePool
from simulator.cluster.compiled import (
    CompiledDeployment,
    CompiledFleet,
    fit_resolved,
    fleet_of,
    measured_host_of,
    with_host,
    with_measured_host,
)
from simulator.costs.compile import compile_step_cost
from simulator.costs.power_limit import CappedStepCost, PowerLimitedBoard
from simulator.costs.step_cost import StepCost
from simulator.costs.tables import graph_limit
from simulator.memory.plan import MemoryPlan, size_memory

#: Host times that are longer on a slower host. The streaming of one process and the waits of ranks are not among them.
_HOST_SECONDS: Final = frozenset(
    {"step_s", "step_s_per_sequence", "step_gap_s", "request_s", "request_s_per_input_token", "output_s"}
)

Adjust = Callable[[Candidate, CompiledDeployment], CompiledDeployment]

Improve = Callable[[Role, CompiledDeployment], CompiledDeployment]


@dataclass
class CandidateDeployments:
    """The candidates of one model and engine on one hardware, compiled when they are first needed.

    Attributes:
        names: The model, the engine and the hardware.
        model: The model as the request names it.
        engine: The engine as the request names it.
        widest: The largest (max_num_batched_tokens, max_num_seqs) of the candidates. Step costs are compiled for these
            and for the model's longest sequence, and shared by all candidates that run the same ranks and capture the
            same graphs. They agree with a compilation for a candidate's own limits to a few parts in ten thousand.
        plain: The deployments from which these are derived, if any.
        adjust: Changes a deployment of `plain`.
        improve: Changes the replicas of a role in simulated runs, but not in closed forms, so that the runs with and
            without the change have the same requests.
    """

    names: CatalogLookup
    model: str
    engine: str
    widest: tuple[int, int]
    plain: CandidateDeployments | None = None
    adjust: Adjust | None = None
    improve: Improve | None = None
    _resolved: dict[Candidate, ResolvedDeployment] = field(default_factory=dict, repr=False)
    _memory: dict[Candidate, MemoryPlan] = field(default_factory=dict, repr=False)
    _compiled: dict[Candidate, CompiledDeployment] = field(default_factory=dict, repr=False)
    _costs: dict[tuple[object, ...], StepCost] = field(default_factory=dict, repr=False)
    _boards: dict[Candidate, PowerLimitedBoard] = field(default_factory=dict, repr=False)
    _improved: dict[CandidatePool, CompiledDeployment] = field(default_factory=dict, repr=False)

    @cached_property
    def bundle(self) -> Bundle:
        """Return the calibration of the hardware."""
        if self.plain is not None:
            return self.plain.bundle
        return load_bundle(self.names.hardware.accelerator, engine=self.names.engine)

    @cached_property
    def _source(self) -> CostSource:
        """Return the costs of the calibration, in a cache because candidates share operators."""
        return CachedCosts(self.bundle)

    @cached_property
    def _measured_host(self) -> EngineCalibration | None:
        """Return the host times that the user measured for the engine on this hardware, if there are any."""
        return measured_host_of(self.names.hardware.accelerator, self.names.engine)

    # ---- one kind of replica: candidates without a split

    def written(self, candidate: Candidate) -> Deployment:
        """Return the candidate as a deployment.yaml."""
        return candidate.deployment(self.model, self.engine)

    def resolved(self, candidate: Candidate) -> ResolvedDeployment:
        """Return the candidate with every default filled in, without sizing its memory."""
        if candidate not in self._resolved:
            names = replace(self.names, hardware=candidate.hardware)
            pools = resolve_pools(self.written(candidate), names)
            self._resolved[candidate] = pools[0 if candidate.part == "encode" else -1]
        return self._resolved[candidate]

    def memory(self, candidate: Candidate) -> MemoryPlan:
        """Return the memory plan of one accelerator of the candidate."""
        if candidate not in self._memory:
            self._memory[candidate] = size_memory(self.resolved(candidate))
        return self._memory[candidate]

    def step_cost(self, candidate: Candidate) -> StepCost:
        """Return the step cost of the candidate (see `widest`)."""
        own = self.resolved(candidate)
        graphs = graph_limit(own)
        tokens, seqs = self.widest
        key = (*candidate.step_choices, graphs, tokens, seqs)
        if key not in self._costs:
            longest = replace(
                own.limits, max_num_batched_tokens=tokens, max_model_len=own.model.longest_sequence_tokens
            )
            wide = replace(own, limits=replace(longest, max_num_seqs=seqs))
            if graph_limit(wide) != graphs:
                wide = replace(own, limits=longest)
            self._costs[key] = compile_step_cost(wide, self._source)
        return self._costs[key]

    def compiled(self, candidate: Candidate) -> CompiledDeployment:
        """Return the candidate compiled for simulation.

        Raises:
            InputError: The candidate does not fit in memory.
        """
        if candidate not in self._compiled:
            if self.plain is not None and self.adjust is not None:
                self._compiled[candidate] = self.adjust(candidate, self.plain.compiled(candidate))
            else:
                own = with_measured_host(self.resolved(candidate), self._measured_host)
                resolved, memory = fit_resolved(own, self.memory(candidate), candidate.states_length)
                self._compiled[candidate] = CompiledDeployment(resolved, memory, self.step_cost(candidate), self.bundle)
        return self._compiled[candidate]

    # ---- whole deployments: one or two kinds of replica

    def even_parts(self, candidate: Candidate) -> int:
        """Return the number of even parts of the deployment; one of them is simulated under its share of the load."""
        return math.gcd(*(pool.candidate.replicas for pool in candidate.pools))

    def part(self, candidate: Candidate, share: int) -> CompiledDeployment | CompiledFleet:
        """Return one of `share` even parts of the deployment, on its part of the hardware."""
        pools = []
        for role, own in candidate.pools:
            compiled = self._in_run(role, own)
            resolved = replace(compiled.resolved, role=role, replicas=own.replicas // share)
            if share > 1:  # on one node with the part of the other pool
                resolved = replace(resolved, hardware=_one_node(resolved, candidate.accelerators // share))
            pools.append(replace(compiled, resolved=resolved))
        if len(pools) == 1:
            return pools[0]
        written = self.written(candidate)
        return fleet_of(tuple(pools), written.disaggregation, written.encoder_pool)

    def _in_run(self, role: Role, candidate: Candidate) -> CompiledDeployment:
        """Return the replicas of a role as they are simulated."""
        if self.improve is None:
            return self.compiled(candidate)
        key = CandidatePool(role, candidate)
        if key not in self._improved:
            self._improved[key] = self.improve(role, self.compiled(candidate))
        return self._improved[key]

    def streaming(self, candidate: Candidate) -> CompiledDeployment:
        """Return the replicas that stream tokens to clients."""
        return self.compiled(candidate.pools[-1].candidate)

    # ---- the same deployments with one thing changed

    def with_host_factor(self, factor: float) -> CandidateDeployments:
        """Return the same deployments on hosts that take `factor` times as long for the host's own work."""
        return self._changed(
            lambda _, compiled: with_host(compiled, slower_host(compiled.resolved.engine.host, factor))
        )

    def with_power_limit(self, limit_w: float) -> CandidateDeployments:
        """Return the same deployments on accelerators limited to `limit_w` watts each.

        Compiling one of them raises InputError if no clock rate keeps the limit. The replicas of an encoder pool keep
        their own limit: the model of clocks is that of steps of a language model.
        """

        def limited(candidate: Candidate, compiled: CompiledDeployment) -> CompiledDeployment:
            if candidate.part == "encode":
                return compiled
            if candidate not in self._boards:
                self._boards[candidate] = PowerLimitedBoard(compiled.cost, compiled.bundle)
            return replace(compiled, cost=CappedStepCost(self._boards[candidate], limit_w))

        return self._changed(limited)

    def with_improvement(self, improve: Improve) -> CandidateDeployments:
        """Return the same deployments with the replicas of a role changed in simulated runs."""
        return replace(self, improve=improve, _improved={})

    def _changed(self, adjust: Adjust) -> CandidateDeployments:
        return replace(self, plain=self, adjust=adjust, _compiled={}, _boards={})


def _one_node(resolved: ResolvedDeployment, accelerators: int) -> Hardware:
    """Return one node of the deployment's hardware with exactly this number of accelerators."""
    return replace(resolved.hardware, accelerators_per_node=accelerators, n_nodes=1)


def with_replicas(compiled: CompiledDeployment, replicas: int, space_for: int | None = None) -> CompiledDeployment:
    """Return the deployment with `replicas` replicas on one node with space for `space_for` of them (None: all)."""
    resolved = compiled.resolved
    node = _one_node(resolved, (space_for or replicas) * resolved.accelerators_per_replica)
    return replace(compiled, resolved=replace(resolved, replicas=replicas, hardware=node))


def resized(served: CompiledDeployment | CompiledFleet, replicas: Sequence[int]) -> CompiledDeployment | CompiledFleet:
    """Return a deployment with another number of replicas of each kind.

    Nodes are added where the replicas do not fit; a single node is as large as needed.
    """
    if isinstance(served, CompiledDeployment):
        return with_replicas(served, *replicas)
    pools = [pool.resolved for pool in served.deployments]
    needed = sum(n * own.accelerators_per_replica for n, own in zip(replicas, pools, strict=True))
    changed = []
    for n, compiled in zip(replicas, served.deployments, strict=True):
        own = compiled.resolved.hardware
        hardware = replace(own, n_nodes=max(own.n_nodes, -(-needed // own.accelerators_per_node)))
        if own.n_nodes == 1:
            hardware = _one_node(compiled.resolved, max(needed, own.accelerators_per_node))
        changed.append(replace(compiled, resolved=replace(compiled.resolved, replicas=n, hardware=hardware)))
    return replace(served, deployments=tuple(changed))


def slower_host(host: HostTimes, factor: float) -> HostTimes:
    """Return the host with every time of its own work multiplied by `factor`."""
    values = {f.name: getattr(host, f.name) * factor for f in fields(host) if f.name in _HOST_SECONDS}
    return replace(host, **values)
