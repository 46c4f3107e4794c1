"""Faults: replicas crash, recover, slow down or lose link bandwidth; nodes fail with all their replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from catalogs.deployments.faults import Fault
from catalogs.errors import InputError
from simulator.core.batch import BatchShape
from simulator.core.clock import Process
from simulator.core.step_timer import Segment, StepTimer, output_s, segment_of
from simulator.engine.replica import Replica

if TYPE_CHECKING:
    from simulator.cluster.cluster import Cluster


#: Number of consecutive faults without an answered request after which a run is aborted.
MOST_IN_VAIN: Final = 10_000


@dataclass(frozen=True, slots=True)
class SlowedReplica:
    """A step timer under which every step takes `factor` times as long."""

    timer: StepTimer
    factor: float

    def cycle_s(self, shape: BatchShape) -> float:
        """Return the seconds from the start of this step to the start of the next."""
        return self.factor * self.timer.cycle_s(shape)

    def decode_segment(self, decodes: int, context_sum: float, context_max: float) -> tuple[float, float, int]:
        """Return the segment of a batch with exactly these decodes."""
        first_s, slope_s, steps = self.timer.decode_segment(decodes, context_sum, context_max)
        return self.factor * first_s, self.factor * slope_s, steps

    def output_s(self, shape: BatchShape) -> float:
        """Return the seconds of the step that follow its layers."""
        return self.factor * output_s(self.timer, shape)

    def ranks_segment(self, ranks: Sequence[BatchShape | None]) -> Segment:
        """Return the segment of data-parallel ranks with these shares of a batch."""
        first_s, slope_s, steps = segment_of(self.timer, ranks)
        return self.factor * first_s, self.factor * slope_s, steps


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of a pool: `nodes[slot]` are the numbers of the nodes at `site` that a slot's replica uses."""

    site: str
    nodes: tuple[tuple[int, ...], ...]


#: (number of the fault, site or pool, node or slot)
_Place = tuple[int, str, int]


@dataclass(eq=False)
class Faults:
    """The controller of all faults of a run.

    Attributes:
        faults: The faults to simulate.
        placements: The placement of each pool.
        slow_link: Returns the cost model of a pool whose collectives are slower by a factor; None if it is unknown, so
            that only transfers slow down.
    """

    faults: Sequence[Fault]
    placements: Sequence[Placement]
    slow_link: Callable[[int, float], StepTimer] | None = None

    def start(self, cluster: Cluster) -> None:
        """Start the processes of all faults."""
        self._cluster = cluster
        self._slowdowns: dict[Replica, list[Fault]] = {}
        self._streams: dict[_Place, np.random.Generator] = {}
        self._lost_nodes: set[tuple[str, int]] = set()  # nodes that are lost for the rest of the run
        self._in_vain = self._answered = 0
        for fault in self.faults:
            if fault.at_s is not None:
                cluster.timetable.process(self._scripted(fault, fault.at_s))
        for number, fault in enumerate(self.faults):
            if fault.scripted:
                continue
            if fault.kind == "node":
                placements = self.placements if fault.pool is None else [self.placements[fault.pool]]
                nodes = dict.fromkeys((p.site, node) for p in placements for slot in p.nodes for node in slot)
                for site, node in nodes:
                    lose = partial(self._lose_node, site, node)
                    over = partial(self._node_is_over, site, node)
                    cluster.timetable.process(self._recurring(fault, (number, site, node), lose, over))
                continue
            for replica in cluster.replicas:
                self._watch(number, fault, replica)
            cluster.on_new_replica.append(partial(self._watch, number, fault))

    def _watch(self, number: int, fault: Fault, replica: Replica) -> None:
        """Start the recurring fault of a replica, which lasts as long as the replica exists."""
        if fault.pool is None or replica.pool == fault.pool:
            place = number, f"pool {replica.pool}", replica.slot
            strike, over = partial(self._strike, fault, replica), partial(self._has_ended, replica)
            self._cluster.timetable.process(self._recurring(fault, place, strike, over))

    def _has_ended(self, replica: Replica) -> bool:
        return replica.removed_s <= self._cluster.clock.now

    # ---- faults at given times

    def _scripted(self, fault: Fault, at_s: float) -> Process:
        yield self._cluster.timetable.after(at_s)  # the process begins with the run, at time zero
        pool = fault.pool or 0
        if fault.node is not None:
            self._lose_node(self.placements[pool].site, fault.node, fault.lasts_s)
            return
        for replica in self._live(pool):
            if replica.slot == fault.replica:
                self._strike(fault, replica, fault.lasts_s)

    def _live(self, pool: int) -> list[Replica]:
        """Return the live replicas of a pool, including draining ones."""
        return [r for r in self._cluster.replicas if r.pool == pool and not self._has_ended(r)]

    def _strike(self, fault: Fault, replica: Replica, lasts_s: float | None) -> None:
        if fault.kind != "crash":
            self._cluster.timetable.process(self._slow_down(replica, fault, lasts_s))
            return
        drains = self._cluster.is_draining(replica)
        self._cluster.fail(replica)
        if lasts_s is not None and not drains:
            self._cluster.orders.place(replica.pool, lasts_s)

    def _slow_down(self, replica: Replica, fault: Fault, lasts_s: float | None) -> Process:
        """Slow a replica or its links down for lasts_s seconds (None: permanently)."""
        self._slowdowns.setdefault(replica, []).append(fault)
        self._adjust(replica)
        if lasts_s is not None:
            yield self._cluster.timetable.after(lasts_s)
            self._slowdowns[replica].remove(fault)
            if not self._has_ended(replica):
                self._adjust(replica)

    def _adjust(self, replica: Replica) -> None:
        """Apply the combined slowdown of a replica's current faults."""
        timer, current = self._cluster.pools[replica.pool].pool.timer, self._slowdowns[replica]
        slow = prod((fault.factor or 1.0 for fault in current if fault.kind == "slow"), start=1.0)
        link = prod((fault.factor or 1.0 for fault in current if fault.kind != "slow"), start=1.0)
        if link > 1.0 and self.slow_link is not None:
            timer = self.slow_link(replica.pool, link)
        replica.run_by(SlowedReplica(timer, slow) if slow > 1.0 else timer)
        self._cluster.transfer.slow(replica, link)

    # ---- nodes

    def _lose_node(self, site: str, node: int, lasts_s: float | None) -> None:
        """End the replicas of a node and close their slots until the node is repaired."""
        cluster = self._cluster
        places = [
            (pool, slot)
            for pool, placement in enumerate(self.placements)
            if placement.site == site
            for slot, nodes in enumerate(placement.nodes)
            if node in nodes
        ]
        for pool, slot in places:
            cluster.slots[pool].close(slot)
        replaced = []
        for pool in {pool for pool, _ in places}:
            for replica in self._live(pool):
                if (pool, replica.slot) in places:
                    replaced += [] if cluster.is_draining(replica) else [pool]
                    cluster.fail(replica)
        if lasts_s is None:
            self._lost_nodes.add((site, node))
            return
        cluster.timetable.process(self._repair(places, lasts_s))
        for pool in replaced:
            cluster.orders.place(pool, lasts_s)

    def _repair(self, places: Sequence[tuple[int, int]], lasts_s: float) -> Process:
        """Reopen the slots of a node after its repair."""
        yield self._cluster.timetable.after(lasts_s)
        for pool, slot in places:
            self._cluster.slots[pool].open(slot)

    def _node_is_over(self, site: str, node: int) -> bool:
        """Return whether a node is lost for good, or no replica is live or pending and no controller could add one."""
        cluster = self._cluster
        others = len(cluster.options.controllers) > 1 or any(not self._has_ended(r) for r in cluster.replicas)
        return (site, node) in self._lost_nodes or not (others or any(order.pending for order in cluster.orders.placed))

    # ---- faults at random times

    def _draw_s(self, fault: Fault, place: _Place, mean_s: float, cv: float) -> float:
        """Draw a duration from the random stream of a fault and its slot or node, independent of all other draws."""
        if not cv:
            return mean_s
        if place not in self._streams:
            number, site, slot = place
            self._streams[place] = np.random.default_rng([fault.seed, number, slot, *site.encode()])
        return float(self._streams[place].gamma(1.0 / cv**2, mean_s * cv**2))

    def _recurring(
        self, fault: Fault, place: _Place, strike: Callable[[float], None], over: Callable[[], bool]
    ) -> Process:
        """Alternate between normal operation and a fault of a replica or node until `over` returns true."""
        while True:
            yield self._cluster.timetable.after(self._draw_s(fault, place, fault.mtbf_s or 0.0, fault.mtbf_cv))
            if over():
                return
            self._check_progress()
            lasts_s = max(1e-9, self._draw_s(fault, place, fault.mttr_s or 0.0, fault.mttr_cv))
            strike(lasts_s)
            if fault.kind == "crash":
                return  # the replacement has a process of its own
            yield self._cluster.timetable.after(lasts_s)

    def _check_progress(self) -> None:
        """Check that requests are answered between faults.

        Raises:
            InputError: Faults keep happening and no request is answered.
        """
        answered = self._cluster.n_answered
        self._in_vain = self._in_vain + 1 if answered == self._answered else 0
        self._answered = answered
        if self._in_vain > MOST_IN_VAIN:
            rule = f"no progress: {MOST_IN_VAIN} consecutive faults during which no request was answered"
            raise InputError(rule, hint="give faults a larger mtbf_s")
