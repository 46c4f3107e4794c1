"""Step costs of a deployment on a device of which one resource is faster: a counterfactual, not a product.

The time of an operator is its roofline time over a utilisation. The utilisation stays as measured, and the roofline
moves with the resource. An operator far from its roofline (see `simulator.analysis.operators`) is bound by the fixed
cost of its kernels, and its whole time changes with that cost. A collective is bound by the links, and its whole time
changes with their rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from calibration.operators.cost import AdjustedCosts, Cost, CostSource
from calibration.operators.operators import Collective, Operator
from calibration.operators.roofline import compute_s, memory_s
from catalogs.arrays import FloatArray
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.hardware.specs import Accelerator, Node
from simulator.costs.compile import compile_step_cost
from simulator.costs.step_cost import StepCost

#: An operator that takes more than this many times its roofline time is bound by neither arithmetic nor bytes. It is
#: short, and the fixed cost of a kernel (launch, waves that do not fill the device) determines its time. A judgement:
#: kernels that are bound by arithmetic or bytes reach more than a quarter of the roofline.
FIXED_COST_FACTOR: Final = 4.0

#: The resources of a device and of its links.
DeviceResource = Literal["compute", "memory", "link", "fixed"]


@dataclass(frozen=True, slots=True)
class ImprovedSource(AdjustedCosts):
    """The costs of a source with one resource of the accelerator faster by `factor`."""

    accelerator: Accelerator
    resource: DeviceResource
    factor: float

    def cost(self, op: Operator) -> Cost:
        """Return the seconds, watts and origin of an operator; the watts and the origin are those of the source."""
        cost = self.source.cost(op)
        if isinstance(op, Collective):
            return replace(cost, seconds=cost.seconds / self.factor) if self.resource == "link" else cost
        arithmetic, memory = compute_s(op, self.accelerator), memory_s(op, self.accelerator)
        return replace(cost, seconds=cost.seconds * self._share(cost.seconds, arithmetic, memory))

    def _share(self, seconds: FloatArray, arithmetic_s: FloatArray, memory_s: FloatArray) -> FloatArray:
        """Return the remaining share of an operator's time. All arrays have the broadcast shape of its fields."""
        roofline_s = np.maximum(np.maximum(arithmetic_s, memory_s), 1e-300)
        fixed = seconds > FIXED_COST_FACTOR * roofline_s
        if self.resource == "fixed":
            return np.where(fixed, 1.0 / self.factor, 1.0)
        arithmetic = arithmetic_s / (self.factor if self.resource == "compute" else 1.0)
        memory = memory_s / (self.factor if self.resource == "memory" else 1.0)
        return np.where(fixed, 1.0, np.maximum(arithmetic, memory) / roofline_s)


def improved_cost(
    resolved: ResolvedDeployment, source: CostSource, resource: DeviceResource, factor: float
) -> StepCost:
    """Return the step costs with one resource faster by `factor`.

    With faster links, modelled collectives use the faster links too, and ranks wait less for each other.

    Raises:
        InputError: The model has a property that serving does not cover.
    """
    accelerator = resolved.hardware.accelerator
    if resource == "link":
        host = resolved.engine.host
        engine = replace(resolved.engine, host=replace(host, collective_skew_s=host.collective_skew_s / factor))
        hardware = replace(resolved.hardware, node=with_faster_links(resolved.hardware.node, factor))
        resolved = replace(resolved, engine=engine, hardware=hardware)
    return compile_step_cost(resolved, ImprovedSource(source, accelerator, resource, factor))


def with_faster_links(node: Node, factor: float) -> Node:
    """Return the node with the rate of every link between accelerators multiplied by `factor`."""
    routed = node.routed
    if routed is not None:
        routed = replace(routed, bytes_per_s=routed.bytes_per_s * factor, hop_s=routed.hop_s / factor)
    return replace(
        node,
        link_bytes_per_s=node.link_bytes_per_s * factor,
        network_bytes_per_s=node.network_bytes_per_s * factor,
        pair_bytes_per_s=node.pair_bytes_per_s * factor,
        routed=routed,
    )
