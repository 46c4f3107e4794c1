"""The run options of a deployment: its router, autoscalers and faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from calibration.operators.cost import Cost, CostSource
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
    grounds = _grounds(fleet)
    for i, fault in enumerate(faults):
        _check_place(fault, grounds, f"faults[{i}]")
    controllers: list[Controller] = [
        Autoscaler(number, plant.resolved.scaling, cold_start_s(plant))
        for number, plant in enumerate(fleet.plants)
        if plant.resolved.scaling is not None
    ]
    if faults:
        controllers.append(Faults(faults, grounds, _slow_links(fleet)))
    return RunOptions(
        router=parse_router(written.router),
        router_staleness_s=written.router_staleness_s,
        retries=Retries() if written.retries is None else parse_retries(written.retries),
        controllers=tuple(controllers),
    )


def cold_start_s(plant: CompiledDeployment) -> float:
    """Return the seconds from the order of a replica to its first request; 0 without autoscaling."""
    scaling, memory = plant.resolved.scaling, plant.memory
    weights = memory.weights_bytes * plant.resolved.accelerators_per_replica
    return scaling.cold_start.seconds(weights) if scaling else 0.0


def _grounds(fleet: CompiledFleet) -> tuple[Placement, ...]:
    """Place the pools of each site one after the other, with each replica inside one node if it fits."""
    used: dict[str, int] = {}
    found = []
    for plant in fleet.plants:
        resolved = plant.resolved
        nodes, used[resolved.site] = _packed(
            used.get(resolved.site, 0),
            resolved.most_replicas,
            resolved.accelerators_per_replica,
            resolved.hardware.accelerators_per_node,
        )
        found.append(Placement(resolved.site, nodes))
    return tuple(found)


def _packed(first: int, replicas: int, size: int, per_node: int) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Return the nodes of each replica, and the accelerator after the last; `first` is the first accelerator."""
    found, at = [], first
    for _ in range(replicas):
        if size <= per_node and at % per_node + size > per_node:
            at += per_node - at % per_node
        found.append(tuple(range(at // per_node, (at + size - 1) // per_node + 1)))
        at += size
    return tuple(found), at


def _check_place(fault: Fault, grounds: Sequence[Placement], where: str) -> None:
    if fault.pool is not None and fault.pool >= len(grounds):
        raise InputError(f"{where}: no such pool among {len(grounds)}", fault.pool, str(len(grounds) - 1))
    nodes = grounds[fault.pool or 0].nodes
    if fault.replica is not None and fault.replica >= len(nodes):
        raise InputError(f"{where}: no such replica among {len(nodes)}", fault.replica, str(len(nodes) - 1))
    last = max(node for places in nodes for node in places)
    if fault.node is not None and fault.node > last:
        raise InputError(f"{where}: no such node among {last + 1}", fault.node, str(last))


@dataclass(frozen=True, slots=True)
class _SlowLinks:
    """A calibration in which collectives take `factor` times as long."""

    source: CostSource
    factor: float

    def cost(self, op: Operator) -> Cost:
        """Return the cost of an operator, with collectives slowed down."""
        cost = self.source.cost(op)
        return replace(cost, seconds=cost.seconds * self.factor) if isinstance(op, Collective) else cost

    def relative_error(self, family: str) -> float:
        return self.source.relative_error(family)

    def joins_decodes(self, head_dim: int, kv_dtype: str) -> bool:
        return self.source.joins_decodes(head_dim, kv_dtype)

    @property
    def attention_writes_cache(self) -> bool:
        return self.source.attention_writes_cache


def _slow_links(fleet: CompiledFleet) -> Callable[[int, float], StepCost]:
    @cache
    def slowed(pool: int, factor: float) -> StepCost:
        plant = fleet.plants[pool]
        return compile_step_cost(plant.resolved, _SlowLinks(plant.bundle, factor))

    return slowed
