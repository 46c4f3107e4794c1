"""How a request's KV blocks come from the replica that prefilled it to the one that decodes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from simulator.memory import sequence_bytes
from simulator.network import NETWORK_LATENCY_S, NODE_LATENCY_S
from simulator.plant import Plant
from simulator.replica import Replica
from simulator.shard import Shard


class Transfer(Protocol):
    """Asked once for each request that is handed over, in the order of time."""

    def arrives_s(self, tokens: int, source: Replica, target: Replica, now: float) -> float:
        """When the blocks of `tokens` tokens, ready at `now`, have all arrived. Not before now."""


class Instant:
    """Transfers that take no time."""

    def arrives_s(self, tokens: int, source: Replica, target: Replica, now: float) -> float:  # noqa: ARG002
        return now


class Path(Protocol):
    """What lies between two pools."""

    @property
    def latency_s(self) -> float:
        """From the last byte sent to all being usable."""

    def wire_s(self, tokens: int) -> float:
        """Seconds the blocks of so many tokens occupy both ports."""


class Ports:
    """Every replica has one port out and one in, and each carries one transfer at a time, first come first served."""

    def __init__(self, paths: Mapping[tuple[int, int], Path]) -> None:
        self._paths = paths  # by (source pool, target pool)
        self._out_free_s: dict[int, float] = {}
        self._in_free_s: dict[int, float] = {}

    def arrives_s(self, tokens: int, source: Replica, target: Replica, now: float) -> float:
        path = self._paths[source.pool, target.pool]
        begin_s = max(now, self._out_free_s.get(source.index, 0.0), self._in_free_s.get(target.index, 0.0))
        end_s = begin_s + path.wire_s(tokens)
        self._out_free_s[source.index] = self._in_free_s[target.index] = end_s
        return end_s + path.latency_s


@dataclass(frozen=True, slots=True)
class RankPath:
    """All ranks send and receive at once, each its own part: the slower end decides.

    Rates are a link's nominal ones, in one direction per accelerator: nothing is taken off for protocols.
    """

    source: Shard
    target: Shard
    bytes_per_s: float  # of one accelerator
    latency_s: float

    def wire_s(self, tokens: int) -> float:
        return max(sequence_bytes(self.source, tokens), sequence_bytes(self.target, tokens)) / self.bytes_per_s

    @classmethod
    def between(cls, source: Plant, target: Plant, asked_bytes_per_s: float | None = None) -> RankPath:
        """The node's own link where both stand in one node, else the slower of the two networks; or what was asked."""
        here, there = source.resolved.hardware, target.resolved.hardware
        inside = source.resolved.site == target.resolved.site and here.n_nodes == 1
        rate = here.node.link_bytes_per_s if inside else min(h.node.network_bytes_per_s for h in (here, there))
        latency_s = NODE_LATENCY_S if inside else NETWORK_LATENCY_S
        shards = Shard.of(source.resolved), Shard.of(target.resolved)
        return cls(*shards, asked_bytes_per_s or rate, latency_s)
