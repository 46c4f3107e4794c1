"""Other numbers of the same replica, on hardware that has room for them and no more."""

from __future__ import annotations

from dataclasses import replace

from simulator.plant import Plant


def with_replicas(plant: Plant, replicas: int, room_for: int | None = None) -> Plant:
    """The plant with so many replicas, side by side on one node with room for `room_for` of them (None: for all)."""
    resolved = plant.resolved
    accelerators = (room_for or replicas) * resolved.accelerators_per_replica
    room = replace(resolved.hardware, accelerators_per_node=accelerators, n_nodes=1)
    return replace(plant, resolved=replace(resolved, replicas=replicas, hardware=room))
