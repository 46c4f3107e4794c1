"""Which network cards the replicas of a fleet send and receive through."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from simulator.plant import Fleet, Plant
from simulator.replica import Replica


def per_card(plant: Plant) -> int:
    """Accelerators of a node that share a network card."""
    node = plant.resolved.hardware.node
    return -(-node.max_accelerators // node.cards) if node.cards else 1


def card_share(plant: Plant) -> float:
    """Bytes per second of each of a replica's accelerators while no other replica uses their cards."""
    return plant.resolved.hardware.node.network_bytes_per_s * max(
        1.0, per_card(plant) / min(plant.resolved.accelerators_per_replica, per_card(plant))
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
        each, r = per_card(plant), plant.resolved
        if each == 1:
            return (replica.index,)
        begin = self.first[replica.pool] + replica.slot * r.accelerators_per_replica
        per_node = r.hardware.accelerators_per_node
        used = range(begin, begin + r.accelerators_per_replica)
        return tuple(dict.fromkeys((r.site, a // per_node, a % per_node // each) for a in used))
