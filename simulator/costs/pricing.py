"""Prices of the operators of a step in channels: seconds by operator class, joules, and calibration coverage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from calibration.operators.cost import INTERPOLATED, MEASURED, ROOFLINE, Cost, CostSource, by_lender
from calibration.operators.flops_and_bytes import QUANTISE_BYTES
from calibration.operators.operators import Collective, Elementwise, Gemm, Matmul
from calibration.operators.roofline import link_bytes, memory_s
from calibration.power.sustained import at_clock
from catalogs.arrays import FloatArray
from catalogs.deployments.resolution.parallelism import MOST_MEASURED
from catalogs.hardware.specs import Hardware
from simulator.interconnect.collectives import CollectiveSpan, Interconnect
from simulator.layers.operator_call import CLASSES, OperatorCall

N_CLASSES: Final = len(CLASSES)

#: Share of the multiprocessors that the normal kernels of DeepEP occupy: 20 of 132 (Buffer.num_sms, VLLM_DBO_COMM_SMS).
#: The low-latency kernels receive through hooks and occupy none while they wait.
EXCHANGE_SMS: Final = 20 / 132


#: The channel of the joules of one accelerator, behind the seconds of each class of operators.
JOULES: Final = N_CLASSES

#: The channel of the seconds that were measured.
MEASURED_S: Final = N_CLASSES + 1

#: The channel of the seconds that are interpolated between measured ones, of any accelerator's tables.
INTERPOLATED_S: Final = N_CLASSES + 2

#: Number of channels.
N_CHANNELS: Final = N_CLASSES + 3


@dataclass(slots=True)
class Pricer:
    """Prices operator calls on one kind of accelerator and records the operator families of each class."""

    source: CostSource
    hardware: Hardware
    # Time that ranks wait for each other before a collective, in addition to its measured time.
    collective_skew_s: float = 0.0
    families: dict[str, set[str]] = field(default_factory=dict)

    @property
    def interconnect(self) -> Interconnect:
        """Return the links of the hardware."""
        return Interconnect(self.hardware)

    def price(self, lines: Iterable[OperatorCall], shape: tuple[int, ...], at_nodes: bool = False) -> FloatArray:
        """Return the channels of all calls together. Shape `shape` + (N_CHANNELS,).

        Args:
            lines: The operator calls.
            shape: The shape to which the counts of the operators broadcast.
            at_nodes: Whether every value will be read exactly where it was priced. Otherwise readers interpolate
                between the values, so a measured value counts as interpolated.
        """
        total = np.zeros((*shape, N_CHANNELS))
        for line, cost in self.costs(lines):
            self.families.setdefault(line.kind, set()).add(line.op.family)
            seconds = cost.seconds * line.count * line.runs * line.parts
            measured = (cost.origin == MEASURED) & at_nodes
            known = cost.origin <= INTERPOLATED
            total[..., CLASSES.index(line.kind)] += seconds
            total[..., JOULES] += seconds * cost.watts
            total[..., MEASURED_S] += seconds * measured
            total[..., INTERPOLATED_S] += seconds * (known & ~measured)
        return total

    def evidence_s(self, channels: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the seconds in channels that are measured, interpolated, and from another accelerator's tables.

        Shape of `channels`: (..., N_CHANNELS); of each result: (...).
        """
        return by_lender(self.source, channels[..., MEASURED_S], channels[..., INTERPOLATED_S])

    def costs(self, lines: Iterable[OperatorCall]) -> Iterator[tuple[OperatorCall, Cost]]:
        """Yield each call with the cost of one execution, without calls whose time another operator's rows hold."""
        for line in lines:
            if line.name == "kv_write" and self.source.attention_writes_cache:
                continue  # measured together with attention
            if line.name == "routing" and self.source.experts_are_chosen:
                continue  # measured together with the experts
            yield line, self._cost(line)

    def _cost(self, line: OperatorCall) -> Cost:
        cost = self._unclocked(line)
        if line.clock is None:
            return cost
        return at_clock(line.op, cost, line.clock, self.hardware.accelerator)

    def _unclocked(self, line: OperatorCall) -> Cost:
        """Return the cost of a call at the clock at which its table was timed."""
        op = line.op
        if isinstance(op, (Gemm, Matmul, Elementwise)) and line.overlapped_rows:
            # Up to this number of rows, the call runs beside a longer kernel. Only its bytes take time, because both
            # kernels read from the same memory.
            alone, rows = self.source.cost(op), op.tokens if isinstance(op, Elementwise) else op.m
            hidden = np.minimum(alone.seconds, memory_s(op, self.hardware.accelerator))
            return replace(alone, seconds=np.where(np.asarray(rows) <= line.overlapped_rows, hidden, alone.seconds))
        if isinstance(op, Elementwise) and line.fused_rows:
            alone = self.source.cost(op)
            return replace(alone, seconds=np.where(np.asarray(op.tokens) <= line.fused_rows, 0.0, alone.seconds))
        if isinstance(op, Gemm) and line.quantised_before:
            return self._without_quantisation(op)
        if not isinstance(op, Collective):
            return self.source.cost(op)
        if line.routing is not None:
            alone = self._modelled(self.interconnect.exchange_s(op, line.routing))
        else:
            alone = self._send(op, line) if op.kind == "send_recv" else self._collective(op, line.stride)
        skew_s = self.collective_skew_s if op.ranks > 1 and line.skewed else 0.0
        whole = replace(alone, seconds=alone.seconds + skew_s)
        return self._exposed(whole, line) if line.behind else whole

    def _exposed(self, whole: Cost, line: OperatorCall) -> Cost:
        """Return the cost of an exchange that runs while the kernels of the other half of the step run.

        What exceeds half of their time is exposed (the other half hides the second exchange of the layer). The normal
        kernels of the exchange occupy multiprocessors, so that the kernels beside them take longer: at least this share
        of the overlapped time is exposed.
        """
        per_layer = (self._cost(call).seconds * (call.count / line.count) for call in line.behind)
        hiding = sum(per_layer, start=np.zeros(())) / 2
        taken = 0.0 if line.routing is None or line.routing.low_latency else EXCHANGE_SMS
        exposed = np.maximum(whole.seconds - hiding, taken * np.minimum(whole.seconds, hiding))
        return replace(whole, seconds=np.where(np.asarray(line.parts) > 1.0, exposed, whole.seconds))

    def _without_quantisation(self, op: Gemm) -> Cost:
        """Return the cost of a product without the kernel that quantises its 16-bit input, which its rows include."""
        whole, kernel = self.source.cost(op), Elementwise("quantize", op.m, float(op.k) * QUANTISE_BYTES)
        seconds = np.maximum(whole.seconds - self.source.cost(kernel).seconds, memory_s(op, self.hardware.accelerator))
        return replace(whole, seconds=np.minimum(seconds, whole.seconds))

    def _collective(self, op: Collective, stride: int) -> Cost:
        """Return the cost of a collective.

        Within one link domain the cost is measured. Over several domains it is that of NCCL's cheapest algorithm (see
        `simulator.interconnect.collectives`), and at least that of the part within one domain.
        """
        interconnect = self.interconnect
        span = interconnect.span(op.ranks, stride)
        if span.nodes == 1:
            return self._in_node(op, span)
        cost = self._modelled(interconnect.collective_s(op, span))
        if span.inside == 1:
            return cost
        within = self._in_node(replace(op, ranks=span.inside), interconnect.span(span.inside, stride))
        return replace(cost, seconds=np.maximum(cost.seconds, within.seconds), watts=within.watts)

    def _modelled(self, seconds: FloatArray) -> Cost:
        """Return the cost of communication that is not measured, during which accelerators are idle."""
        return Cost(seconds, np.full_like(seconds, self.hardware.accelerator.idle_w), np.full_like(seconds, ROOFLINE))

    def _send(self, op: Collective, line: OperatorCall) -> Cost:
        """Return the cost of sends from one pipeline stage to the next.

        The call's `stride` is the number of accelerators of a stage, and `count` the number of stage boundaries.
        Boundaries between link domains cross the network.
        """
        per_domain = max(self.hardware.link_domain // line.stride, 1)
        crossing = line.count // per_domain / line.count
        inside = self._in_node(op, self.interconnect.span(2))
        if not crossing:
            return inside
        across = self.interconnect.send_s(np.asarray(op.message_bytes, dtype=np.float64))
        seconds = (1 - crossing) * inside.seconds + crossing * np.maximum(across, inside.seconds)
        return Cost(seconds, inside.watts, np.full_like(seconds, ROOFLINE))

    def _in_node(self, op: Collective, span: CollectiveSpan) -> Cost:
        """Return the cost of a collective within one link domain, as measured between peers.

        It is no faster than a host that routes the traffic (a ring of hops and bytes), and no faster than NCCL's model
        for groups without measurements: more than eight ranks, or more ranks than a pair's bridge connects.
        """
        cost, node = self.source.cost(op), self.hardware.node
        least = np.zeros(())
        if node.routed is not None:
            least = 2 * (op.ranks - 1) * node.routed.hop_s + link_bytes(op) / node.routed.bytes_per_s
        if op.ranks > MOST_MEASURED or (node.pair_bytes_per_s and op.ranks > 2):
            least = np.maximum(least, self.interconnect.collective_s(op, span))
        known = INTERPOLATED if node.routed is not None and op.ranks <= MOST_MEASURED else ROOFLINE
        origin = np.where(least > cost.seconds, np.maximum(cost.origin, known), cost.origin)
        return Cost(np.maximum(cost.seconds, least), cost.watts, origin)
