"""Candidates as deployments that can run: resolved, sized and compiled once each, whole or an even part of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Final

from calibration.bundles.bundle import Bundle, load_bundle
from catalogs.deployments.resolve import CatalogLookup, resolve_pools
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.engines.profile import HostTimes
from catalogs.hardware.specs import Hardware
from planner.problem.candidate import Candidate
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet, fit, with_host
from simulator.cluster.options import DisaggregationPolicy
from simulator.costs.compile import compile_step_cost
from simulator.costs.power_limit import CappedStepCost, PowerLimitedBoard
from simulator.costs.step_cost import StepCost
from simulator.costs.tables import graph_limit
from simulator.memory.plan import MemoryPlan, size_memory

#: Host times that a busier or slower host has more of. What one process streams, and how ranks wait, is not the host's.
_HOST_SECONDS: Final = frozenset(
    {"step_s", "step_s_per_sequence", "step_gap_s", "request_s", "request_s_per_input_token", "output_s"}
)

Adjust = Callable[[Candidate, CompiledDeployment], CompiledDeployment]


@dataclass
class CandidateDeployments:
    """The candidates of one model and engine on one hardware, compiled when they are first needed.

    widest: the largest (max_num_batched_tokens, max_num_seqs) of the candidates. Step costs are compiled for these and
    shared by all that run the same ranks and capture the same graphs, which agrees with a compilation for a
    candidate's own limits to a few parts in ten thousand; None compiles each for exactly its own limits.
    plain, adjust: the deployments that these are made of, and what is changed about each of them.
    """

    names: CatalogLookup
    model: str  # as the question names it
    engine: str
    widest: tuple[int, int] | None
    plain: CandidateDeployments | None = None
    adjust: Adjust | None = None
    _resolved: dict[Candidate, ResolvedDeployment] = field(default_factory=dict, repr=False)
    _memory: dict[Candidate, MemoryPlan] = field(default_factory=dict, repr=False)
    _compiled: dict[Candidate, CompiledDeployment] = field(default_factory=dict, repr=False)
    _costs: dict[tuple[object, ...], StepCost] = field(default_factory=dict, repr=False)
    _boards: dict[Candidate, PowerLimitedBoard] = field(default_factory=dict, repr=False)

    @cached_property
    def bundle(self) -> Bundle:
        """The calibration of the hardware."""
        return load_bundle(self.names.hardware.accelerator) if self.plain is None else self.plain.bundle

    # ---- one kind of replica: candidates without a split

    def written(self, candidate: Candidate) -> Deployment:
        """The candidate as deployment.yaml."""
        return candidate.deployment(self.model, self.engine)

    def resolved(self, candidate: Candidate) -> ResolvedDeployment:
        """The candidate with every default filled in; its memory is not sized."""
        if candidate not in self._resolved:
            names = replace(self.names, hardware=candidate.hardware)
            self._resolved[candidate] = resolve_pools(self.written(candidate), names)[0]
        return self._resolved[candidate]

    def memory(self, candidate: Candidate) -> MemoryPlan:
        """The memory of one accelerator of the candidate."""
        if candidate not in self._memory:
            self._memory[candidate] = size_memory(self.resolved(candidate))
        return self._memory[candidate]

    def step_cost(self, candidate: Candidate) -> StepCost:
        """Seconds of its engine steps (see `widest`)."""
        own = self.resolved(candidate)
        graphs = graph_limit(own)
        if self.widest is None:
            tokens, seqs = own.limits.max_num_batched_tokens, own.limits.max_num_seqs
        else:
            tokens, seqs = self.widest
        key = (*candidate.ranks, graphs, tokens, seqs)
        if key not in self._costs:
            wide = replace(own, limits=replace(own.limits, max_num_batched_tokens=tokens, max_num_seqs=seqs))
            if graph_limit(wide) != graphs:
                wide = replace(own, limits=replace(own.limits, max_num_batched_tokens=tokens))
            self._costs[key] = compile_step_cost(wide, self.bundle)
        return self._costs[key]

    def compiled(self, candidate: Candidate) -> CompiledDeployment:
        """The candidate, ready to run. Raises InputError where it does not fit."""
        if candidate not in self._compiled:
            self._compiled[candidate] = self._compile(candidate)
        return self._compiled[candidate]

    def _compile(self, candidate: Candidate) -> CompiledDeployment:
        if self.plain is not None and self.adjust is not None:
            return self.adjust(candidate, self.plain.compiled(candidate))
        resolved, memory = fit(self.written(candidate), resolved=self.resolved(candidate))
        cost = compile_step_cost(resolved, self.bundle) if self.widest is None else self.step_cost(candidate)
        return CompiledDeployment(resolved, memory, cost, self.bundle)

    # ---- whole deployments: one or two kinds of replica

    def even_parts(self, candidate: Candidate) -> int:
        """Even parts of the deployment, of which one is simulated under its share of the load."""
        return math.gcd(*(pool.candidate.replicas for pool in candidate.pools))

    def part(self, candidate: Candidate, share: int) -> CompiledDeployment | CompiledFleet:
        """One of `share` even parts of the deployment, on its part of the hardware: what serves requests there."""
        plants = tuple(self._part(candidate, i, share) for i in range(len(candidate.pools)))
        if len(plants) == 1:
            return plants[0]
        engine = plants[-1].resolved.engine
        return CompiledFleet(
            plants, None, DisaggregationPolicy(engine.first_token), engine.kv_transfer, engine.transfer_queues
        )

    def _part(self, candidate: Candidate, pool: int, share: int) -> CompiledDeployment:
        role, own = candidate.pools[pool]
        plant = self.compiled(own)
        resolved = replace(plant.resolved, role=role, replicas=own.replicas // share)
        if share > 1:  # side by side with the other pool's part
            resolved = replace(resolved, hardware=_one_node(resolved, candidate.accelerators // share))
        return replace(plant, resolved=resolved)

    def streaming(self, candidate: Candidate) -> CompiledDeployment:
        """The replicas that send tokens to clients."""
        return self.compiled(candidate.pools[-1].candidate)

    # ---- the same deployments with one thing changed

    def with_host_factor(self, factor: float) -> CandidateDeployments:
        """The same deployments on hosts that take `factor` times as long for the work that is the host's own."""
        return self._changed(lambda _, plant: with_host(plant, slower_host(plant.resolved.engine.host, factor)))

    def with_power_limit(self, limit_w: float) -> CandidateDeployments:
        """The same deployments on accelerators limited to `limit_w` watts each. Compiling one raises InputError for a
        limit that no clock keeps."""
        return self._changed(lambda c, plant: replace(plant, cost=CappedStepCost(self._board(c, plant), limit_w)))

    def _changed(self, adjust: Adjust) -> CandidateDeployments:
        return replace(self, plain=self, adjust=adjust, _compiled={}, _boards={})

    def _board(self, candidate: Candidate, plant: CompiledDeployment) -> PowerLimitedBoard:
        if candidate not in self._boards:
            self._boards[candidate] = PowerLimitedBoard(plant.cost, plant.bundle)
        return self._boards[candidate]


def _one_node(resolved: ResolvedDeployment, accelerators: int) -> Hardware:
    """Its kind of hardware: one node that has room for so many accelerators and no more."""
    return replace(resolved.hardware, accelerators_per_node=accelerators, n_nodes=1)


def with_replicas(plant: CompiledDeployment, replicas: int, room_for: int | None = None) -> CompiledDeployment:
    """The plant with so many replicas, side by side on one node with room for `room_for` of them (None: for all)."""
    resolved = plant.resolved
    room = _one_node(resolved, (room_for or replicas) * resolved.accelerators_per_replica)
    return replace(plant, resolved=replace(resolved, replicas=replicas, hardware=room))


def slower_host(host: HostTimes, factor: float) -> HostTimes:
    """The same host, every time of its own `factor` times as long."""
    values = {f.name: getattr(host, f.name) * factor for f in fields(host) if f.name in _HOST_SECONDS}
    return replace(host, **values)
