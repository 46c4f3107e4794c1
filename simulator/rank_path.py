"""How KV blocks go from the ranks of one pool to those of another: how many bytes, over which link, in which pieces."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from catalogs.engines import KvTransfer
from simulator.memory import sequence_bytes
from simulator.network import NETWORK_LATENCY_S, NODE_LATENCY_S
from simulator.network_cards import Cards, card_share
from simulator.plant import Fleet, Plant
from simulator.shard import Shard
from simulator.transfer import Load, Ports, own_port


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

    def load(self, tokens: int) -> Load:
        drafter = tokens * self.drafter_bytes_per_token
        sent = sequence_bytes(self.source, tokens) + drafter
        received = sequence_bytes(self.target, tokens) + drafter
        return Load(sent, sent / self.source_bytes_per_s, received / self.target_bytes_per_s)

    @classmethod
    def between(cls, source: Plant, target: Plant, fleet: Fleet) -> RankPath:
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


def _inside(source: Plant, target: Plant) -> bool:
    """Both stand where one link joins everything."""
    hardware = source.resolved.hardware
    return source.resolved.site == target.resolved.site and hardware.link_domain == hardware.n_accelerators


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
    return Ports(paths, Cards.of(fleet).links if shared else own_port, fleet.transfer_queues)
