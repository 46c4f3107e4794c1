"""The links between accelerators, and the duration of a collective on them: algorithm x topology x message size.

Within one link domain (NVLink switch, PCIe host), collectives are measured for up to eight ranks and come from the
calibration bundle. This module prices collectives without measurements, by the model with which NCCL itself chooses
algorithms (src/graph/tuning.cc, 2.27): a base latency, a latency for each hop inside and between nodes, and bytes over
the narrowest link, for ring and tree in three protocols, and for reduction inside an NVLink switch. The cheapest one
determines the time.

    ring   2 (r - 1) hops, 2 (r - 1) / r of the message over every link          (all-reduce; its halves: half of both)
    tree   2 x (chain inside a node + log2 of the nodes) hops, twice the message
    switch NVLink domains only: one fixed latency, the message once up and once down

A ring enters each node through as many network cards as it has ranks there, so the network's rate is the sum of their
rates. The exchange with experts (DeepEP) has two formulas of its own below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from calibration.operators.cost import broadcast
from calibration.operators.operators import Collective
from calibration.operators.roofline import link_bytes
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Hardware


@dataclass(frozen=True, slots=True)
class ExpertRouting:
    """The multiplication of tokens in an exchange: each token goes to the ranks that hold one of its experts."""

    experts_per_token: int
    bytes_per_token: float
    low_latency: bool  # whether the kernels for few tokens run


class NcclProtocol(NamedTuple):
    """Latencies in microseconds and the share of a link's rate, each as (ring, tree); hops: NVLink, PCIe, network."""

    base_us: tuple[float, float]
    nvlink_us: tuple[float, float]
    pcie_us: tuple[float, float]
    network_us: tuple[float, float]
    rate: tuple[float, float]


#: LL, LL128 and Simple: baseLat, hwLat and the bandwidth factors of NCCL's ncclTopoTuneModel. LL's quarter applies to
#: several nodes; a tree reaches 0.9 of the rate of the links.
PROTOCOLS: Final = (
    NcclProtocol((6.6, 6.8), (0.6, 0.6), (1.0, 1.0), (2.7, 5.0), (0.25, 0.9 / 3.8)),
    NcclProtocol((14.0, 14.0), (1.9, 1.25), (2.5, 1.9), (4.0, 8.5), (0.92, 0.9 * 0.915)),
    NcclProtocol((8.4, 8.4), (3.4, 4.0), (5.7, 4.0), (14.0, 14.0), (1.0, 0.9)),
)

#: Share of the link rate that a reduction inside the NVLink switch (NVLS) reaches, by link: NCCL's nvlsEfficiency for
#: Hopper and Blackwell (src/graph/tuning.cc). The switches of other links cannot add.
SWITCH_RATES: Final[Mapping[str, float]] = MappingProxyType({"nvlink4": 0.85, "nvlink5": 0.74})

#: Latency of a reduction inside the NVLink switch (NVLS) in NCCL's model, microseconds.
SWITCH_US: Final = 25.0

#: Achieved share of a network card's nominal rate: DeepEP's normal kernels over 4 and 8 nodes move 43.5 and 44.6 GB/s
#: to other nodes through 50 GB/s cards (DeepEP's docs/legacy.md: 58 and 51 GB/s with the local share).
NETWORK_RATE: Final = 0.88

#: Shares of a network card's and of an NVLink's nominal rate that the low-latency kernels of an exchange reach, from
#: DeepEP's tables: they fill the card, and move 160 of an H800's 200 GB/s.
LOW_LATENCY_RATES: Final = (1.0, 0.8)

#: The same shares of the normal kernels: 153 GB/s in a node includes each rank's own tokens, which cross no link, so
#: 134 of 200; 71 % on B200.
NORMAL_RATES: Final = (NETWORK_RATE, 0.67)

#: Fixed time of a DeepEP low-latency dispatch or combine, microseconds: with it the model reproduces the twelve
#: published latencies (8 to 256 ranks, 77 to 369 us) within 14 %, the median within 5 %.
EXCHANGE_US: Final = 42.0

#: Most tokens of one rank in a low-latency kernel (vLLM: VLLM_MOE_DP_CHUNK_SIZE; DeepEP advises below 256).
PIECE_TOKENS: Final = 256

#: First byte of a message between nodes over RDMA, seconds: one network hop of the Simple protocol in `PROTOCOLS`.
NETWORK_LATENCY_S: Final = 14e-6

#: First byte of a message between two accelerators of a node, seconds. A judgement: a kernel launch with a flag.
NODE_LATENCY_S: Final = 5e-6


@dataclass(frozen=True, slots=True)
class CollectiveSpan:
    """How the ranks of one group are distributed over nodes: `inside` of them are in one link domain."""

    ranks: int
    inside: int

    @property
    def nodes(self) -> int:
        """Return the number of link domains over which the group is distributed."""
        return -(-self.ranks // self.inside)


@dataclass(frozen=True, slots=True)
class Interconnect:
    """The links between the accelerators of one kind of hardware, and the durations of collectives on them."""

    hardware: Hardware

    def span(self, ranks: int, stride: int = 1) -> CollectiveSpan:
        """Return how a group of ranks is distributed over nodes.

        Args:
            ranks: The number of ranks.
            stride: The distance between neighbouring ranks, in accelerators; the first rank is the first accelerator of
                a node.
        """
        return CollectiveSpan(ranks, min(ranks, max(self.hardware.link_domain // stride, 1)))

    def link_bytes_per_s(self, span: CollectiveSpan) -> float:
        """Return the rate of each rank to the others of its domain: a pair's own bridge, or the node's links."""
        node = self.hardware.node
        if span.inside <= 2 and node.pair_bytes_per_s:
            return node.pair_bytes_per_s
        return node.link_bytes_per_s_of(span.inside)

    def collective_s(self, op: Collective, span: CollectiveSpan) -> FloatArray:
        """Return the seconds of the cheapest algorithm, which rise with ranks, nodes and bytes.

        The result has the shape of the message sizes.
        """
        found = [self._ring_s(op, span, p) for p in PROTOCOLS]
        if op.kind == "all_reduce":
            found += [self._tree_s(op, span, p) for p in PROTOCOLS]
            share = SWITCH_RATES.get(self.hardware.node.link_name)
            if span.nodes == 1 and share is not None:
                rate = share * self.link_bytes_per_s(span)
                found.append(SWITCH_US * 1e-6 + broadcast(op.message_bytes)[0] / rate)
        least: FloatArray = np.minimum.reduce(found)
        return least

    def send_s(self, message_bytes: FloatArray) -> FloatArray:
        """Return the seconds of a message from one rank to another in a different domain. Shape of `message_bytes`."""
        return NETWORK_LATENCY_S + message_bytes / (NETWORK_RATE * self.hardware.node.network_bytes_per_s)

    def exchange_s(self, op: Collective, routing: ExpertRouting) -> FloatArray:
        """Return the seconds of a dispatch to experts or of the combine after it. Shape of the message sizes.

        Low-latency kernels send one copy for each expert directly to its rank, in pieces of PIECE_TOKENS.
        High-throughput kernels send one copy to each node that holds one of a token's experts, where it is forwarded to
        each rank that holds one. Routing is assumed to be balanced: neither group-limited routing nor overloaded
        experts are modelled.
        """
        (sent_bytes,) = broadcast(op.message_bytes)
        pieces: FloatArray | float = 1.0
        if routing.low_latency:
            pieces = np.ceil(np.maximum(sent_bytes / (PIECE_TOKENS * routing.bytes_per_token), 1.0))
        card, peer = LOW_LATENCY_RATES if routing.low_latency else NORMAL_RATES
        wire_s, link_s = (self._exchange_wire_s(op, routing, between) for between in (True, False))
        return pieces * (EXCHANGE_US * 1e-6) + np.maximum(wire_s / card, link_s / peer)

    def _exchange_wire_s(self, op: Collective, routing: ExpertRouting, between_nodes: bool) -> FloatArray:
        """Return the seconds at the nominal rate for which an exchange occupies a card, or the link inside a node."""
        span, k = self.span(op.ranks), routing.experts_per_token
        (sent_bytes,) = broadcast(op.message_bytes)
        if between_nodes:
            copies = k * (1 - span.inside / span.ranks)
            if not routing.low_latency:
                copies = _distinct(span.nodes, k) * (1 - 1 / span.nodes)
            return sent_bytes * copies / self.hardware.node.network_bytes_per_s
        copies = k * (span.inside - 1) / span.ranks
        if not routing.low_latency:
            copies = _distinct(span.ranks, k) * (1 - 1 / span.inside)
        return sent_bytes * copies / self.link_bytes_per_s(span)

    def occupied_s(self, op: Collective, stride: int, routing: ExpertRouting | None, between_nodes: bool) -> FloatArray:
        """Return for how many seconds the bytes of a collective occupy a link of each rank, at the link's nominal rate.

        The result has the shape of the message sizes. A ring enters a node through as many cards as it has ranks there.
        Sends between pipeline stages count nothing.

        Args:
            op: The collective.
            stride: The distance between neighbouring ranks, in accelerators.
            routing: The routing of an exchange with experts; None for other collectives.
            between_nodes: Whether the link is the network card of each rank, or the link inside the node.
        """
        if routing is not None:
            return self._exchange_wire_s(op, routing, between_nodes)
        span, size = self.span(op.ranks, stride), link_bytes(op)
        if op.kind == "send_recv" or (span.nodes if between_nodes else span.inside) == 1:
            return np.zeros_like(size)
        cards = span.inside * self.hardware.node.network_bytes_per_s
        return size / (cards if between_nodes else self.link_bytes_per_s(span))

    def _bus_bytes_per_s(self, span: CollectiveSpan) -> float:
        link, cards = self.link_bytes_per_s(span), span.inside * self.hardware.node.network_bytes_per_s * NETWORK_RATE
        return link if span.nodes == 1 else min(link, cards)

    def _hop_us(self, p: NcclProtocol, tree: int, span: CollectiveSpan) -> float:
        """Return the latency of a hop inside a node; LL takes longer there if the group spans several nodes."""
        hop = (p.nvlink_us if self.hardware.node.link_name.startswith(("nvlink", "infinity")) else p.pcie_us)[tree]
        return hop * 1.8 if p is PROTOCOLS[0] and span.nodes > 1 else hop

    def _ring_s(self, op: Collective, span: CollectiveSpan, p: NcclProtocol) -> FloatArray:
        double = 2 if op.kind == "all_reduce" else 1
        between = double * (span.nodes - 1)
        inside = double * (span.ranks - 1) - between
        latency_us = p.base_us[0] + inside * self._hop_us(p, 0, span) + between * p.network_us[0]
        return latency_us * 1e-6 + link_bytes(op) / (p.rate[0] * self._bus_bytes_per_s(span))

    def _tree_s(self, op: Collective, span: CollectiveSpan, p: NcclProtocol) -> FloatArray:
        inside, between = ceil(span.ranks / span.nodes) - 1, log2(span.nodes)
        latency_us = p.base_us[1] + 2 * (inside * self._hop_us(p, 1, span) + between * p.network_us[1])
        (size,) = broadcast(op.message_bytes)
        return latency_us * 1e-6 + 2.0 * size / (p.rate[1] * self._bus_bytes_per_s(span))


def _distinct(places: int, experts_per_token: int) -> float:
    """Return the expected number of places that hold at least one of a token's experts, under balanced routing."""
    return places * (1.0 - (1.0 - 1.0 / places) ** experts_per_token)
