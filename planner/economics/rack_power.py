"""The power of a node and of a rack: the simulated mean, and the most that boards and hosts can draw."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibration.power.model import capped_w
from catalogs.hardware.specs import Hardware
from catalogs.ui.words import counted, kilowatts, percent


@dataclass(frozen=True, slots=True)
class RackPower:
    """The power of nodes and racks, watts.

    If `nodes_per_rack` is None, one rack holds all nodes of the plan. `node_w_most` and `rack_w_most` have every
    accelerator at its limit.
    """

    nodes: int
    nodes_per_rack: int | None
    racks: int
    node_w_mean: float
    node_w_most: float
    rack_w_mean: float
    rack_w_most: float
    gpu_w_mean: float | None  # of one accelerator
    host_w_idle: float  # of the share of a host that one node has
    host_w_per_busy_accelerator: float
    source: str

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the rows of the account: quantity, value and source."""
        full = min(self.nodes_per_rack or self.nodes, self.nodes)
        rack = f"a rack of {full} node{'' if full == 1 else 's'}; {self.racks} required"
        most = "every accelerator at its limit, hosts busy"
        hosts = f"{self.host_w_idle:.0f} W idle, {self.host_w_per_busy_accelerator:.0f} W per busy accelerator"
        return [
            ("Node, mean", kilowatts(self.node_w_mean), f"{self.source}: {hosts}"),
            ("Node, maximum", kilowatts(self.node_w_most), most),
            ("Rack, mean", kilowatts(self.rack_w_mean), rack),
            ("Rack, maximum", kilowatts(self.rack_w_most), most),
        ]


def idle_w(hardware: Hardware) -> float:
    """Return the power of all the hardware when idle, watts."""
    return hardware.n_accelerators * hardware.accelerator.idle_w + hardware.n_nodes * _host_idle_w(hardware)


def unused_w(hardware: Hardware, accelerators: int) -> float:
    """Return the power of further accelerators that idle in the nodes of the hardware, and of their share of the hosts.

    They are those of a rented instance that a deployment does not use. The result is in watts.
    """
    return accelerators * idle_w(hardware) / hardware.n_accelerators


def unused_words(unused_w: float, w_mean: float, accelerators: int) -> str:
    """Return in words which part of a mean power the unused accelerators of rented instances draw; empty if none."""
    if not unused_w:
        return ""
    which = f"the {counted(accelerators, 'rented accelerator')} that {'is' if accelerators == 1 else 'are'} not used"
    return f"{percent(unused_w / w_mean)} of it ({kilowatts(unused_w)}) is drawn by {which}"


def most_w(hardware: Hardware) -> float:
    """Return the power of all the hardware with every accelerator at its limit, watts."""
    busy_w = capped_w(hardware.accelerator) + hardware.node.host_w_per_accelerator
    return hardware.n_accelerators * busy_w + hardware.n_nodes * _host_idle_w(hardware)


def rack_power(hardware: Hardware, w_mean: float, gpu_w_mean: float | None, nodes_per_rack: int | None) -> RackPower:
    """Return the power of nodes and racks; `w_mean` is the simulated mean power of all servers.

    A rack has no more nodes than the plan; the last rack may have fewer.
    """
    n = hardware.n_nodes
    full = n if nodes_per_rack is None else min(nodes_per_rack, n)
    w_most = most_w(hardware)
    return RackPower(
        nodes=n,
        nodes_per_rack=nodes_per_rack,
        racks=math.ceil(n / full),
        node_w_mean=w_mean / n,
        node_w_most=w_most / n,
        rack_w_mean=w_mean * full / n,
        rack_w_most=w_most * full / n,
        gpu_w_mean=gpu_w_mean,
        host_w_idle=_host_idle_w(hardware),
        host_w_per_busy_accelerator=hardware.node.host_w_per_accelerator,
        source=f"accelerators: simulated from the fitted power model; hosts: {hardware.accelerator.source}",
    )


def _host_idle_w(hardware: Hardware) -> float:
    """Return the idle power of the share of its host that one node has, watts."""
    return hardware.node.host_idle_w * hardware.accelerators_per_node / hardware.node.max_accelerators
