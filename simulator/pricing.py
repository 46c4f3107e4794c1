"""Operators of a step priced into channels: seconds by operator class, joules, and how well the seconds are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np

from calibration.cost import INTERPOLATED, MEASURED, ROOFLINE, Cost
from calibration.operators import Collective, Elementwise, Gemm, Operator
from calibration.roofline import link_bytes, memory_s
from catalogs.hardware import Hardware
from simulator.layers import CLASSES, Line
from simulator.table import FloatArray

N_CLASSES: Final = len(CLASSES)
JOULES: Final = N_CLASSES  # per accelerator
MEASURED_S: Final = N_CLASSES + 1
INTERPOLATED_S: Final = N_CLASSES + 2
N_CHANNELS: Final = N_CLASSES + 3

#: One message between nodes (RDMA through NCCL): launch, proxy and wire, seconds. nccl-tests report 20-30 us for small
#: all-reduces over two nodes against 10-15 us within one.
NETWORK_LATENCY_S: Final = 15e-6


class CostSource(Protocol):
    """What the simulator needs of a calibration bundle."""

    def cost(self, op: Operator) -> Cost: ...

    def relative_error(self, family: str) -> float: ...

    def joins_decodes(self, head_dim: int, kv_dtype: str) -> bool: ...

    @property
    def attention_writes_cache(self) -> bool: ...


@dataclass(slots=True)
class Pricer:
    """Prices lines on one kind of accelerator; remembers which operator families it met in each class."""

    source: CostSource
    hardware: Hardware
    collective_skew_s: float = 0.0  # what ranks wait for each other before a collective, beyond its lone-run time
    families: dict[str, set[str]] = field(default_factory=dict)

    def price(self, lines: Iterable[Line], shape: tuple[int, ...], at_nodes: bool = False) -> FloatArray:
        """Channels of all lines together, shape + (N_CHANNELS,).

        at_nodes: every value will be read exactly where it was asked for. Otherwise readers interpolate between these
        values, and what was measured here is interpolated there.
        """
        total = np.zeros((*shape, N_CHANNELS))
        for line in lines:
            if line.name == "kv_write" and self.source.attention_writes_cache:
                continue  # timed with attention
            cost = self._cost(line)
            self.families.setdefault(line.kind, set()).add(line.op.family)
            seconds = np.broadcast_to(cost.seconds, shape) * line.count
            measured = (np.broadcast_to(cost.origin, shape) == MEASURED) & at_nodes
            known = np.broadcast_to(cost.origin, shape) <= INTERPOLATED
            total[..., CLASSES.index(line.kind)] += seconds
            total[..., JOULES] += seconds * cost.watts
            total[..., MEASURED_S] += seconds * measured
            total[..., INTERPOLATED_S] += seconds * (known & ~measured)
        return total

    def _cost(self, line: Line) -> Cost:
        op = line.op
        if isinstance(op, (Gemm, Elementwise)) and line.beside_tokens:
            return self._beside(op, line.beside_tokens)
        if not isinstance(op, Collective):
            return self.source.cost(op)
        alone = self._collective(op, line.stride)
        return replace(alone, seconds=alone.seconds + (self.collective_skew_s if op.ranks > 1 else 0.0))

    def _beside(self, op: Gemm | Elementwise, most: int) -> Cost:
        """Up to `most` rows hidden behind a longer kernel, but for the bytes both read from the same memory."""
        alone, rows = self.source.cost(op), op.m if isinstance(op, Gemm) else op.tokens
        hidden = np.minimum(alone.seconds, memory_s(op, self.hardware.accelerator))
        return replace(alone, seconds=np.where(np.asarray(rows) <= most, hidden, alone.seconds))

    def _collective(self, op: Collective, stride: int) -> Cost:
        """A collective over more ranks than a node holds runs inside each node, then between nodes."""
        inside = max(self.hardware.accelerators_per_node // stride, 1)
        if op.ranks <= inside:
            return self._in_node(op)
        within = self._in_node(replace(op, ranks=inside)) if inside > 1 else None
        share = np.asarray(op.message_bytes, dtype=np.float64) / inside
        between = replace(op, ranks=-(-op.ranks // inside), message_bytes=share)
        seconds = NETWORK_LATENCY_S + link_bytes(between) / self.hardware.node.network_bytes_per_s
        if within is None:
            return Cost(
                seconds, np.full_like(seconds, self.hardware.accelerator.idle_w), np.full_like(seconds, ROOFLINE)
            )
        return Cost(seconds + within.seconds, within.watts, np.full_like(seconds, ROOFLINE))

    def _in_node(self, op: Collective) -> Cost:
        """As measured between peers, and no faster than a host that routes their traffic: a ring of hops and bytes."""
        cost, routed = self.source.cost(op), self.hardware.node.routed
        if routed is None:
            return cost
        ring = 2 * (op.ranks - 1) * routed.hop_s + link_bytes(op) / routed.bytes_per_s
        origin = np.where(ring > cost.seconds, np.maximum(cost.origin, INTERPOLATED), cost.origin)
        return Cost(np.maximum(cost.seconds, ring), cost.watts, origin)
