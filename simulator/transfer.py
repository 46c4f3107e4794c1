"""How a request's KV blocks come from the replica that prefilled it to the one that decodes it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from catalogs.engines import KvTransfer
from simulator.memory import sequence_bytes
from simulator.network import NETWORK_LATENCY_S, NODE_LATENCY_S
from simulator.plant import Fleet, Plant
from simulator.replica import Replica
from simulator.shard import Shard

#: Names of the links that what a replica sends or receives passes; each has a way out and a way in.
Links = Callable[[Replica], tuple[Hashable, ...]]


class Transfer(Protocol):
    """Asked once for each request that is handed over, in the order of time."""

    def arrives_s(self, tokens: int, source: Replica, target: Replica, now: float, begun_s: float) -> float:
        """When the blocks of `tokens` tokens, computed from `begun_s` until `now`, have all arrived. Not before now."""

    def slow(self, replica: Replica, factor: float) -> None:
        """From now on what goes to it or comes from it takes so many times as long; 1: as ever."""


class Instant:
    """Transfers that take no time."""

    def arrives_s(self, tokens: int, source: Replica, target: Replica, now: float, begun_s: float) -> float:  # noqa: ARG002
        return now

    def slow(self, replica: Replica, factor: float) -> None:
        """No time stays no time."""


class Path(Protocol):
    """What lies between two pools."""

    @property
    def latency_s(self) -> float:
        """From the last byte sent to all being usable."""

    def pieces(self, tokens: int) -> int:
        """Parts of equal size that leave as each is computed; 1: everything leaves when the prompt is done."""

    def wire_s(self, tokens: int) -> float:
        """Seconds the blocks of so many tokens occupy the links at both ends."""


def own_port(replica: Replica) -> tuple[Hashable, ...]:
    """Every replica has a link to itself."""
    return (replica.index,)


class Ports:
    """Every link carries one transfer at a time, first come first served, so that what shares a network card waits for
    it. (Queue pairs that share a card take turns by packets: each transfer then takes longer and the last one ends at
    the same time.)

    Piece by piece: piece i of n is there when i / n of the prompt is computed, an even share of the time since its
    first step began. The first leaves when the links are free, the others follow; the last cannot leave before the
    prompt is done.
    """

    def __init__(self, paths: Mapping[tuple[int, int], Path], links: Links = own_port) -> None:
        self._paths = paths  # by (source pool, target pool)
        self._links = links
        self._out_free_s: dict[Hashable, float] = {}
        self._in_free_s: dict[Hashable, float] = {}
        self._factors: dict[int, float] = {}  # by replica, whose link is degraded

    def path(self, source_pool: int, target_pool: int) -> Path:
        """Between replicas of these pools."""
        return self._paths[source_pool, target_pool]

    @property
    def was_slowed(self) -> bool:
        """Some link was degraded at some time."""
        return bool(self._factors)

    def slow(self, replica: Replica, factor: float) -> None:
        self._factors[replica.index] = factor

    def arrives_s(self, tokens: int, source: Replica, target: Replica, now: float, begun_s: float) -> float:
        path = self._paths[source.pool, target.pool]
        outs, ins = self._links(source), self._links(target)
        free_s = max(
            *(self._out_free_s.get(link, 0.0) for link in outs), *(self._in_free_s.get(link, 0.0) for link in ins)
        )
        factor = max(self._factors.get(source.index, 1.0), self._factors.get(target.index, 1.0))
        wire_s, n = factor * path.wire_s(tokens), path.pieces(tokens)
        ready_s = now if n == 1 else begun_s + (now - begun_s) / n
        end_s = max(max(ready_s, free_s) + wire_s, max(now, free_s) + wire_s / n)
        self._out_free_s |= dict.fromkeys(outs, end_s)
        self._in_free_s |= dict.fromkeys(ins, end_s)
        return end_s + path.latency_s


@dataclass(frozen=True, slots=True)
class RankPath:
    """All ranks send and receive at once, each its own part: the slower end decides.

    Rates are a link's nominal ones, in one direction per accelerator: nothing is taken off for protocols.
    """

    source: Shard
    target: Shard
    source_bytes_per_s: float  # of one accelerator
    target_bytes_per_s: float
    latency_s: float
    moment: KvTransfer = "at_end"
    chunk_tokens: int = 1  # of a prompt in one step
    drafter_bytes_per_token: float = 0.0  # that the drafter's cache has beside the target's, on one accelerator

    def pieces(self, tokens: int) -> int:
        if self.moment == "layerwise":
            return self.source.model.n_layers
        return -(-tokens // self.chunk_tokens) if self.moment == "chunkwise" else 1

    def wire_s(self, tokens: int) -> float:
        drafter = tokens * self.drafter_bytes_per_token
        out_s = (sequence_bytes(self.source, tokens) + drafter) / self.source_bytes_per_s
        in_s = (sequence_bytes(self.target, tokens) + drafter) / self.target_bytes_per_s
        return max(out_s, in_s)

    @classmethod
    def between(cls, source: Plant, target: Plant, fleet: Fleet) -> RankPath:
        """The node's own link where both stand in one node, else each end's share of its network cards; or what was
        asked."""
        ends = (source, target)
        inside = _inside(source, target)
        rates = [h.node.link_bytes_per_s if inside else _card_share(p) for p in ends for h in (p.resolved.hardware,)]
        asked = fleet.transfer_bytes_per_s
        out_rate, in_rate = (asked or rate for rate in rates)
        shards = Shard.of(source.resolved), Shard.of(target.resolved)
        latency_s = NODE_LATENCY_S if inside else NETWORK_LATENCY_S
        chunk = source.resolved.limits.max_num_batched_tokens
        drafter = source.memory.draft_kv_bytes_per_token
        return cls(*shards, out_rate, in_rate, latency_s, fleet.transfer, chunk, drafter)


def _inside(source: Plant, target: Plant) -> bool:
    """Both stand where one link joins everything."""
    hardware = source.resolved.hardware
    return source.resolved.site == target.resolved.site and hardware.link_domain == hardware.n_accelerators


def _per_card(plant: Plant) -> int:
    """Accelerators of a node that share a network card."""
    node = plant.resolved.hardware.node
    return -(-node.max_accelerators // node.cards) if node.cards else 1


def _card_share(plant: Plant) -> float:
    """Bytes per second of each of a replica's accelerators while no other replica uses their cards."""
    return plant.resolved.hardware.node.network_bytes_per_s * max(
        1.0, _per_card(plant) / min(plant.resolved.accelerators_per_replica, _per_card(plant))
    )


@dataclass(frozen=True, slots=True)
class Cards:
    """Which network cards the replicas of a fleet use, by the accelerators they stand on: pool after pool, in the order
    of their slots."""

    fleet: Fleet
    first: tuple[int, ...]  # accelerator of each pool at its site

    @classmethod
    def of(cls, fleet: Fleet) -> Cards:
        used: dict[str, int] = {}
        first = []
        for plant in fleet.plants:
            r = plant.resolved
            first.append(used.get(r.site, 0))
            used[r.site] = first[-1] + r.replicas * r.accelerators_per_replica
        return cls(fleet, tuple(first))

    def links(self, replica: Replica) -> tuple[Hashable, ...]:
        """Its cards; where each accelerator has its own, one name for all of them."""
        plant = self.fleet.plants[replica.pool]
        each, r = _per_card(plant), plant.resolved
        if each == 1:
            return (replica.index,)
        begin = self.first[replica.pool] + replica.slot * r.accelerators_per_replica
        per_node = r.hardware.accelerators_per_node
        used = range(begin, begin + r.accelerators_per_replica)
        return tuple(dict.fromkeys((r.site, a // per_node, a % per_node // each) for a in used))


def ports_of(fleet: Fleet) -> Ports | None:
    """What carries blocks from prefill pools to decode pools; None where there are none."""
    numbered = list(enumerate(fleet.plants))
    apart = [
        (i, j)
        for (i, source), (j, target) in product(numbered, numbered)
        if (source.resolved.role, target.resolved.role) == ("prefill", "decode")
    ]
    if not apart:
        return None
    plants = fleet.plants
    paths = {(i, j): RankPath.between(plants[i], plants[j], fleet) for i, j in apart}
    shared = any(not _inside(plants[i], plants[j]) for i, j in apart)
    return Ports(paths, Cards.of(fleet).links if shared else own_port)
