"""The path of KV transfers between pools: bytes, links, pieces, and the network cards that replicas use."""

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
    """The transfer path between the ranks of two pools.

    All ranks send and receive their parts at the same time, and the slower end determines the duration. The rates are
    the nominal link rates in one direction per accelerator, without a deduction for protocol overhead.
    """

    source: Shard
    target: Shard
    source_bytes_per_s: float  # per accelerator
    target_bytes_per_s: float
    latency_s: float
    moment: KvTransfer = "at_end"
    chunk_tokens: int = 1  # prompt tokens per step
    drafter_bytes_per_token: float = 0.0  # additional bytes of the drafter's cache on one accelerator

    def pieces(self, tokens: int) -> int:
        """Return the number of equal pieces in which the blocks of `tokens` tokens are sent."""
        if self.moment == "layerwise":
            return self.source.model.n_layers
        return -(-tokens // self.chunk_tokens) if self.moment == "chunkwise" else 1

    def load(self, tokens: int) -> LinkLoad:
        """Return the load that the blocks of `tokens` tokens put on the links."""
        drafter = tokens * self.drafter_bytes_per_token
        sent = sequence_bytes(self.source, tokens) + drafter
        received = sequence_bytes(self.target, tokens) + drafter
        return LinkLoad(sent, sent / self.source_bytes_per_s, received / self.target_bytes_per_s)

    @classmethod
    def between(cls, source: CompiledDeployment, target: CompiledDeployment, fleet: CompiledFleet) -> RankPath:
        """Return the path between two compiled deployments.

        Its rates are those that the fleet sets explicitly. Otherwise it uses the link within the node if both
        deployments are in one node, and else each end's share of its network cards.
        """
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
    """Return whether both deployments are at one site in which one link domain connects all accelerators."""
    hardware = source.resolved.hardware
    return source.resolved.site == target.resolved.site and hardware.link_domain == hardware.n_accelerators


def ports_of(fleet: CompiledFleet) -> TransferLinks | None:
    """Return the links for transfers from prefill to decode pools; None if the fleet has no such pools."""
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
    """Return the number of accelerators of a node that share a network card."""
    node = plant.resolved.hardware.node
    return -(-node.max_accelerators // node.cards) if node.cards else 1


def card_share(plant: CompiledDeployment) -> float:
    """Return the bytes per second of each of a replica's accelerators while no other replica uses their cards."""
    return plant.resolved.hardware.node.network_bytes_per_s * max(
        1.0, per_card(plant) / min(plant.resolved.accelerators_per_replica, per_card(plant))
    )


@dataclass(frozen=True, slots=True)
class NetworkCards:
    """The network cards that the replicas of a fleet use.

    They follow from the accelerators of each replica, which are assigned pool after pool in the order of the slots.
    """

    fleet: CompiledFleet
    first: tuple[int, ...]  # index of the first accelerator of each pool at its site

    @classmethod
    def of(cls, fleet: CompiledFleet) -> NetworkCards:
        """Return the network cards of a fleet."""
        used: dict[str, int] = {}
        first = []
        for plant in fleet.plants:
            r = plant.resolved
            first.append(used.get(r.site, 0))
            used[r.site] = first[-1] + r.replicas * r.accelerators_per_replica
        return cls(fleet, tuple(first))

    def links(self, replica: Replica) -> tuple[Hashable, ...]:
        """Return the names of the cards of a replica; one name for all if each accelerator has its own card."""
        plant = self.fleet.plants[replica.pool]
        each, r = per_card(plant), plant.resolved
        if each == 1:
            return (replica.index,)
        begin = self.first[replica.pool] + replica.slot * r.accelerators_per_replica
        per_node = r.hardware.accelerators_per_node
        used = range(begin, begin + r.accelerators_per_replica)
        return tuple(dict.fromkeys((r.site, a // per_node, a % per_node // each) for a in used))
