"""The paths of transfers between pools: bytes, links, pieces, and the network cards that replicas use.

KV blocks travel from prefill to decode replicas, embeddings from the replicas of an encoder pool to those that compute
prompts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import product, starmap

from catalogs.deployments.layout import Role
from catalogs.deployments.resolution.encoder_pools import embedding_bytes
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.engines.profile import TransferMoment
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet
from simulator.cluster.kv_transfer import LinkLoad, Links, TransferLinks, TransferPath
from simulator.costs.link_use import CollectiveLinkUse
from simulator.engine.replica import Replica
from simulator.interconnect.collectives import NETWORK_LATENCY_S, NODE_LATENCY_S
from simulator.layers.shard import Shard
from simulator.memory.plan import sequence_bytes


@dataclass(frozen=True, slots=True)
class RankPath:
    """The transfer path between the ranks of two pools.

    All ranks send and receive their parts at the same time, and the slower end determines the duration. Where several
    ranks of the target hold the same keys (latent attention under tensor parallelism), the source sends a copy to each
    of them. The rates are the nominal link rates in one direction per accelerator, without a deduction for protocol
    overhead.
    """

    source: Shard
    target: Shard
    source_bytes_per_s: float  # per accelerator
    target_bytes_per_s: float
    latency_s: float
    moment: TransferMoment = "at_end"
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
        received = sequence_bytes(self.target, tokens) + drafter
        copies = received * self.target.tp / self.source.tp  # sent by each rank if all ranks of the source send alike
        sent = max(sequence_bytes(self.source, tokens) + drafter, copies)
        return LinkLoad(sent, sent / self.source_bytes_per_s, received / self.target_bytes_per_s)

    @classmethod
    def between(cls, source: CompiledDeployment, target: CompiledDeployment, fleet: CompiledFleet) -> RankPath:
        """Return the path between two compiled deployments.

        Its rates are those that the fleet sets explicitly. Otherwise it uses the link within the node if both
        deployments are in one node, and else each end's share of its network cards.
        """
        inside = _inside(source, target)
        out_rate, in_rate = (
            fleet.transfer_bytes_per_s
            or (end.resolved.hardware.node.link_bytes_per_s if inside else card_share(end.resolved))
            for end in (source, target)
        )
        return cls(
            Shard.of(source.resolved),
            Shard.of(target.resolved),
            out_rate,
            in_rate,
            NODE_LATENCY_S if inside else NETWORK_LATENCY_S,
            fleet.transfer,
            source.resolved.limits.max_num_batched_tokens,
            source.memory.draft_kv_bytes_per_token,
        )


@dataclass(frozen=True, slots=True)
class EmbeddingPath:
    """The transfer path of embeddings from an encoder replica to a replica that computes prompts.

    One accelerator sends the embeddings of all items of a request once, when all of them are encoded. If several ranks
    receive them, the first of them passes them on inside its node, which takes no time here.
    """

    embedding_bytes: float
    source_bytes_per_s: float
    target_bytes_per_s: float
    latency_s: float

    def pieces(self, tokens: int) -> int:  # noqa: ARG002
        """Return 1: all embeddings of a request are sent together."""
        return 1

    def load(self, tokens: int) -> LinkLoad:
        """Return the load of `tokens` embeddings on the links."""
        size = tokens * self.embedding_bytes
        return LinkLoad(size, size / self.source_bytes_per_s, size / self.target_bytes_per_s)

    @classmethod
    def between(cls, source: CompiledDeployment, target: CompiledDeployment, fleet: CompiledFleet) -> EmbeddingPath:
        """Return the path between two compiled deployments, at the rates of `RankPath.between`."""
        inside = _inside(source, target)
        out_rate, in_rate = (
            fleet.embedding_bytes_per_s
            or (end.resolved.hardware.node.link_bytes_per_s if inside else card_share(end.resolved))
            for end in (source, target)
        )
        latency_s = NODE_LATENCY_S if inside else NETWORK_LATENCY_S
        return cls(embedding_bytes(source.resolved), out_rate, in_rate, latency_s)


def _inside(source: CompiledDeployment, target: CompiledDeployment) -> bool:
    """Return whether both deployments are at one site in which one link domain connects all accelerators."""
    hardware = source.resolved.hardware
    return source.resolved.site == target.resolved.site and hardware.link_domain == hardware.n_accelerators


def transfer_links(fleet: CompiledFleet) -> TransferLinks | None:
    """Return the links for transfers between the pools of a fleet; None if nothing is transferred."""
    kinds: dict[tuple[Role, Role], type[RankPath] | type[EmbeddingPath]] = {
        ("prefill", "decode"): RankPath,
        ("encode", "prefill"): EmbeddingPath,
        ("encode", "both"): EmbeddingPath,
        ("encode", "decode"): EmbeddingPath,  # of short prompts that a decode replica computes itself
    }
    pairs = {
        (i, j): (source, target)
        for (i, source), (j, target) in product(enumerate(fleet.deployments), repeat=2)
        if (source.resolved.role, target.resolved.role) in kinds
    }
    if not pairs:
        return None
    shared = not all(starmap(_inside, pairs.values()))
    paths: dict[tuple[int, int], TransferPath] = {
        pools: kinds[source.resolved.role, target.resolved.role].between(source, target, fleet)
        for pools, (source, target) in pairs.items()
    }
    return TransferLinks(paths, card_links(fleet) if shared else None, fleet.transfer_queues, _link_uses(fleet, pairs))


def _link_uses(
    fleet: CompiledFleet, pairs: Mapping[tuple[int, int], tuple[CompiledDeployment, CompiledDeployment]]
) -> dict[int, CollectiveLinkUse]:
    """Return by pool how the collectives of its steps use the link of its transfers, where they do.

    An encoder pool is left out: the collectives of its steps are those of the encoder, which has no table of tokens.
    """
    found = {}
    for pool, compiled in enumerate(fleet.deployments):
        ends = [pair for pools, pair in pairs.items() if pool in pools]
        if ends and compiled.resolved.role != "encode":
            use = CollectiveLinkUse.of(compiled.cost.tables, not all(starmap(_inside, ends)))
            if use is not None:
                found[pool] = use
    return found


def accelerators_per_card(resolved: ResolvedDeployment) -> int:
    """Return the number of accelerators of a node that share a network card."""
    node = resolved.hardware.node
    return -(-node.max_accelerators // node.cards) if node.cards else 1


def card_share(resolved: ResolvedDeployment) -> float:
    """Return the bytes per second of each of a replica's accelerators while no other replica uses their cards."""
    sharing = accelerators_per_card(resolved)
    share = max(1.0, sharing / min(resolved.accelerators_per_replica, sharing))
    return resolved.hardware.node.network_bytes_per_s * share


def card_links(fleet: CompiledFleet) -> Links:
    """Return the function that names the network cards of a replica.

    They follow from its accelerators, which are assigned pool after pool in the order of the slots. A replica whose
    accelerators each have their own card shares no card.
    """
    used: dict[str, int] = {}
    first = []  # index of the first accelerator of each pool at its site
    for resolved in (compiled.resolved for compiled in fleet.deployments):
        first.append(used.get(resolved.site, 0))
        used[resolved.site] = first[-1] + resolved.replicas * resolved.accelerators_per_replica

    def links(replica: Replica) -> tuple[Hashable, ...]:
        resolved = fleet.deployments[replica.pool].resolved
        per_card, per_node = accelerators_per_card(resolved), resolved.hardware.accelerators_per_node
        if per_card == 1:
            return (replica.index,)
        begin = first[replica.pool] + replica.slot * resolved.accelerators_per_replica
        own = range(begin, begin + resolved.accelerators_per_replica)
        return tuple(dict.fromkeys((resolved.site, a // per_node, a % per_node // per_card) for a in own))

    return links
