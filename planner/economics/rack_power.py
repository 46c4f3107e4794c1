"""Watts a node and a rack draw: simulated on average, and the most the boards and hosts can ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibration.power.model import capped_w
from catalogs.hardware.specs import Hardware


@dataclass(frozen=True, slots=True)
class RackPower:
    """nodes_per_rack None: not said, then a rack is all nodes of the plan. w_most: every accelerator at its limit."""

    nodes: int
    nodes_per_rack: int | None
    racks: int
    node_w_mean: float
    node_w_most: float
    rack_w_mean: float
    rack_w_most: float
    gpu_w_mean: float | None  # of one accelerator
    host_w_idle: float  # of one node's part of a host
    host_w_per_busy_accelerator: float
    source: str


def idle_w(hardware: Hardware) -> float:
    """Of all the hardware, with nothing to do."""
    return hardware.n_accelerators * hardware.accelerator.idle_w + hardware.n_nodes * _host_idle_w(hardware)


def most_w(hardware: Hardware) -> float:
    """Of all the hardware, every accelerator at its limit."""
    busy_w = capped_w(hardware.accelerator) + hardware.node.host_w_per_accelerator
    return hardware.n_accelerators * busy_w + hardware.n_nodes * _host_idle_w(hardware)


def rack_power(hardware: Hardware, w_mean: float, gpu_w_mean: float | None, nodes_per_rack: int | None) -> RackPower:
    """w_mean: of all servers, simulated. A rack has no more nodes than the plan; the last may be emptier."""
    n = hardware.n_nodes
    full = n if nodes_per_rack is None else min(nodes_per_rack, n)
    node_mean, node_most = w_mean / n, most_w(hardware) / n
    return RackPower(
        nodes=n,
        nodes_per_rack=nodes_per_rack,
        racks=math.ceil(n / full),
        node_w_mean=node_mean,
        node_w_most=node_most,
        rack_w_mean=full * node_mean,
        rack_w_most=full * node_most,
        gpu_w_mean=gpu_w_mean,
        host_w_idle=_host_idle_w(hardware),
        host_w_per_busy_accelerator=hardware.node.host_w_per_accelerator,
        source=f"accelerators: simulated from the fitted power model; hosts: {hardware.accelerator.source}",
    )


def _host_idle_w(hardware: Hardware) -> float:
    """Of one node's part of its host."""
    return hardware.node.host_idle_w * hardware.accelerators_per_node / hardware.node.max_accelerators
