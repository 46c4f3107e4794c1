"""The run options of a deployment: its router, autoscalers and faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from calibration.operators.cost import AdjustedCosts, Cost
from calibration.operators.operators import Collective, Operator
from catalogs.deployments.faults import Fault, Retries, parse_faults, parse_retries
from catalogs.deployments.routing import parse_router
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from simulator.cluster.cluster import Controller, RunOptions
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet
from simulator.cluster.controllers.autoscaler import Autoscaler
from simulator.cluster.controllers.faults import Faults, Placement
from simulator.costs.compile import compile_step_cost
from simulator.costs.step_cost import StepCost


def serving_options(written: Deployment, fleet: CompiledFleet) -> RunOptions:
    """Return the run options for a deployment.

    Raises:
        InputError: If a fault names a pool, replica or node that does not exist, or an option is invalid.
    """
    faults = parse_faults(written.faults or ())
    placements = _placements(fleet)
    for i, fault in enumerate(faults):
        _check_target(fault, placements, f"faults[{i}]")
    controllers: list[Controller] = [
        Autoscaler(number, compiled.resolved.scaling, cold_start_s(compiled))
        for number, compiled in enumerate(fleet.deployments)
        if compiled.resolved.scaling is not None
    ]
    if faults:
        controllers.append(Faults(faults, placements, _slow_links(fleet)))
    return RunOptions(
        router=parse_router(written.router),
        router_staleness_s=written.router_staleness_s,
        retries=Retries() if written.retries is None else parse_retries(written.retries),
        controllers=tuple(controllers),
    )


def cold_start_s(compiled: CompiledDeployment) -> float:
    """Return the seconds from the order of a replica to its first request; 0 without autoscaling."""
    scaling, memory = compiled.resolved.scaling, compiled.memory
    weights = memory.weights_bytes * compiled.resolved.accelerators_per_replica
    return scaling.cold_start.seconds(weights) if scaling else 0.0


def _placements(fleet: CompiledFleet) -> tuple[Placement, ...]:
    """Place the pools of each site one after the other, with each replica inside one node if it fits."""
    used: dict[str, int] = {}  # by site: number of accelerators used so far
    found = []
    for resolved in (compiled.resolved for compiled in fleet.deployments):
        size, per_node = resolved.accelerators_per_replica, resolved.hardware.accelerators_per_node
        first, nodes = used.get(resolved.site, 0), []
        for _ in range(resolved.most_replicas):
            if size <= per_node and first % per_node + size > per_node:
                first += per_node - first % per_node
            nodes.append(tuple(range(first // per_node, (first + size - 1) // per_node + 1)))
            first += size
        used[resolved.site] = first
        found.append(Placement(resolved.site, tuple(nodes)))
    return tuple(found)


def _check_target(fault: Fault, placements: Sequence[Placement], where: str) -> None:
    nodes = placements[min(fault.pool or 0, len(placements) - 1)].nodes
    last_node = max(node for slot in nodes for node in slot)
    numbers = {"pool": fault.pool, "replica": fault.replica, "node": fault.node}
    for (name, number), n in zip(numbers.items(), (len(placements), len(nodes), last_node + 1), strict=True):
        if number is not None and number >= n:
            raise InputError(f"{where}: there are {n} {name}s, numbered from 0", number, str(n - 1))


@dataclass(frozen=True, slots=True)
class _SlowLinks(AdjustedCosts):
    """The costs of a source with collectives that take `factor` times as long."""

    factor: float

    def cost(self, op: Operator) -> Cost:
        """Return the cost of an operator, with collectives slowed down."""
        cost = self.source.cost(op)
        return replace(cost, seconds=cost.seconds * self.factor) if isinstance(op, Collective) else cost


def _slow_links(fleet: CompiledFleet) -> Callable[[int, float], StepCost]:
    @cache
    def slowed(pool: int, factor: float) -> StepCost:
        return compile_step_cost(fleet.deployments[pool].resolved, _SlowLinks(fleet.deployments[pool].bundle, factor))

    return slowed
