"""How KV blocks go from the ranks of one pool to those of another: how many bytes, over which link, in which pieces.

Which network cards the replicas of a fleet send and receive through.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product

from catalogs.engines.profile import KvTransfer
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet
from simulator.cluster.kv_transfer import LinkLoad, TransferLinks, own_port
from simulator.engine.replica import Replica
from simulator.layers.shard import Shard
from simulator.memory.plan import sequence_bytes
from simulator.network.collectives import NETWORK_LATENCY_S, NODE_LATENCY_S


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

    def load(self, tokens: int) -> LinkLoad:
        drafter = tokens * self.drafter_bytes_per_token
        sent = sequence_bytes(self.source, tokens) + drafter
        received = sequence_bytes(self.target, tokens) + drafter
        return LinkLoad(sent, sent / self.source_bytes_per_s, received / self.target_bytes_per_s)

    @classmethod
    def between(cls, source: CompiledDeployment, target: CompiledDeployment, fleet: CompiledFleet) -> RankPath:
        """The node's own link where both stand in one node, else each end's share of its network cards; or what was
        asked."""
        ends = (source, target)
        inside = _inside(source, target)
        rates = [h.node.link_bytes_per_s if inside else card_share(p) for p in ends for h in (p.resolved.hardware,)]
        asked = fleet.transfer_bytes_per_s
        out_rate, in_rate = (asked or rate for rate in rates)
        shards = Shard.of(source.resolved), Shard.of(target.resolved)
        latency_s = NODE_LATENCY_S if inside else NETWORK_LATENCY_S
        chunk = source.resolved.limits.max_num_batched_tokens
        drafter = source.memory.draft_kv_bytes_per_token
        return cls(*shards, out_rate, in_rate, latency_s, fleet.transfer, chunk, drafter)


def _inside(source: CompiledDeployment, target: CompiledDeployment) -> bool:
    """Both stand where one link joins everything."""
    hardware = source.resolved.hardware
    return source.resolved.site == target.resolved.site and hardware.link_domain == hardware.n_accelerators


def ports_of(fleet: CompiledFleet) -> TransferLinks | None:
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
    return TransferLinks(paths, NetworkCards.of(fleet).links if shared else own_port, fleet.transfer_queues)


def per_card(plant: CompiledDeployment) -> int:
    """Accelerators of a node that share a network card."""
    node = plant.resolved.hardware.node
    return -(-node.max_accelerators // node.cards) if node.cards else 1


def card_share(plant: CompiledDeployment) -> float:
    """Bytes per second of each of a replica's accelerators while no other replica uses their cards."""
    return plant.resolved.hardware.node.network_bytes_per_s * max(
        1.0, per_card(plant) / min(plant.resolved.accelerators_per_replica, per_card(plant))
    )


@dataclass(frozen=True, slots=True)
class NetworkCards:
    """Which network cards the replicas of a fleet use, by the accelerators they stand on: pool after pool, in the order
    of their slots."""

    fleet: CompiledFleet
    first: tuple[int, ...]  # accelerator of each pool at its site

    @classmethod
    def of(cls, fleet: CompiledFleet) -> NetworkCards:
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
        each, r = per_card(plant), plant.resolved
        if each == 1:
            return (replica.index,)
        begin = self.first[replica.pool] + replica.slot * r.accelerators_per_replica
        per_node = r.hardware.accelerators_per_node
        used = range(begin, begin + r.accelerators_per_replica)
        return tuple(dict.fromkeys((r.site, a // per_node, a % per_node // each) for a in used))
