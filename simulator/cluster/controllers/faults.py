"""Faults: replicas crash, recover, slow down or lose link bandwidth; nodes fail with all their replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from catalogs.deployments.faults import Fault
from simulator.core.batch import BatchShape
from simulator.core.clock import Process
from simulator.core.step_timer import Segment, StepTimer, segment_of
from simulator.engine.replica import Replica

if TYPE_CHECKING:
    from simulator.cluster.cluster import FleetControl


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

    def decode_segment(self, decodes: int, context_sum: int, context_max: int) -> tuple[float, float, int]:
        """Return the segment of exactly these decodes."""
        first_s, slope_s, steps = self.timer.decode_segment(decodes, context_sum, context_max)
        return self.factor * first_s, self.factor * slope_s, steps

    def ranks_segment(self, ranks: Sequence[BatchShape | None]) -> Segment:
        """Return the segment of ranks with these shares."""
        first_s, slope_s, steps = segment_of(self.timer, ranks)
        return self.factor * first_s, self.factor * slope_s, steps


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of a pool: `nodes[slot]` are the numbers of the nodes at `site` that a slot's replica uses."""

    site: str
    nodes: tuple[tuple[int, ...], ...]


@dataclass(slots=True, eq=False)
class _Ailment:
    """A temporary slowdown of one replica or its links."""

    kind: str
    factor: float


@dataclass(eq=False)
class Faults:
    """The controller of all faults of a run.

    Attributes:
        faults: The faults to simulate.
        grounds: The placement of each pool.
        slow_link: Returns the cost model of a pool whose collectives are slower by a factor; None if it is unknown, so
            that only transfers slow down.
        n_struck: Number of faults that have happened.
    """

    faults: Sequence[Fault]
    grounds: Sequence[Placement]
    slow_link: Callable[[int, float], StepTimer] | None = None
    n_struck: int = field(default=0, init=False)

    def start(self, cluster: FleetControl) -> None:
        """Start the processes of all faults."""
        self._cluster = cluster
        self._ailments: dict[Replica, list[_Ailment]] = {}
        self._streams: dict[tuple[int, str, int], np.random.Generator] = {}
        self._gone: set[tuple[str, int]] = set()  # nodes that never come back: nothing befalls them any more
        self.n_struck, self._vain, self._answered = 0, 0, 0
        for fault in self.faults:
            if fault.at_s is not None:
                cluster.process(self._scripted(fault, fault.at_s))
        for number, fault in enumerate(self.faults):
            if fault.scripted:
                continue
            if fault.kind == "node":
                for site, node in self._nodes_of(fault):
                    cluster.process(self._node_failures(number, fault, site, node))
                continue
            for replica in cluster.replicas:
                self._watch(number, fault, replica)
            cluster.on_birth.append(partial(self._watch, number, fault))

    def _watch(self, number: int, fault: Fault, replica: Replica) -> None:
        """Start the recurring fault of a replica, which lasts as long as the replica exists."""
        if fault.pool is None or replica.pool == fault.pool:
            self._cluster.process(self._failures(number, fault, replica))

    # ---- faults at given times

    def _scripted(self, fault: Fault, at_s: float) -> Process:
        yield self._cluster.after(at_s)  # all of them begin with the run, at time zero
        pool = fault.pool or 0
        if fault.node is not None:
            self._lose_node(self.grounds[pool].site, fault.node, fault.lasts_s)
            return
        victim = next((r for r in self._standing(pool) if r.slot == fault.replica), None)
        if victim is not None:  # else it is dead already
            self._strike(fault, victim, fault.lasts_s)

    def _standing(self, pool: int) -> list[Replica]:
        """Return the live replicas of a pool, including draining ones."""
        now = self._cluster.clock.now
        return [r for r in self._cluster.replicas if r.pool == pool and r.died_s > now]

    def _strike(self, fault: Fault, victim: Replica, lasts_s: float | None) -> None:
        self.n_struck += 1
        if fault.kind != "crash":
            self._cluster.process(self._illness(victim, _Ailment(fault.kind, fault.factor or 1.0), lasts_s))
            return
        leaves = self._cluster.drains(victim)
        self._cluster.fail(victim)
        if lasts_s is not None and not leaves:
            self._cluster.orders.place(victim.pool, lasts_s)

    def _illness(self, replica: Replica, ailment: _Ailment, lasts_s: float | None) -> Process:
        """Slow a replica or its links down for lasts_s seconds (None: permanently)."""
        self._ailments.setdefault(replica, []).append(ailment)
        self._adjust(replica)
        if lasts_s is not None:
            yield self._cluster.after(lasts_s)
            self._ailments[replica].remove(ailment)
            if replica.died_s > self._cluster.clock.now:
                self._adjust(replica)

    def _adjust(self, replica: Replica) -> None:
        """Apply the combined slowdown of a replica's current faults."""
        timer = self._cluster.pools[replica.pool].pool.timer
        slow = link = 1.0
        for ailment in self._ailments[replica]:
            slow, link = (slow * ailment.factor, link) if ailment.kind == "slow" else (slow, link * ailment.factor)
        if link > 1.0 and self.slow_link is not None:
            timer = self.slow_link(replica.pool, link)
        replica.run_by(SlowedReplica(timer, slow) if slow > 1.0 else timer)
        self._cluster.transfer.slow(replica, link)

    # ---- nodes

    def _lose_node(self, site: str, node: int, lasts_s: float | None) -> None:
        """End the replicas of a node and close their slots until the node is repaired."""
        self.n_struck += 1
        cluster, lost = self._cluster, []
        places = [
            (pool, slot)
            for pool, ground in enumerate(self.grounds)
            if ground.site == site
            for slot, nodes in enumerate(ground.nodes)
            if node in nodes
        ]
        for pool, slot in places:
            cluster.slots[pool].close(slot)
        there = set(places)
        for pool in {pool for pool, _ in places}:
            for replica in self._standing(pool):
                if (pool, replica.slot) in there:
                    lost += [] if cluster.drains(replica) else [pool]
                    cluster.fail(replica)
        if lasts_s is None:
            self._gone.add((site, node))
            return
        cluster.process(self._repair(places, lasts_s))
        for pool in lost:
            cluster.orders.place(pool, lasts_s)

    def _repair(self, places: Sequence[tuple[int, int]], lasts_s: float) -> Process:
        """Reopen the slots of a node after its repair."""
        yield self._cluster.after(lasts_s)
        for pool, slot in places:
            self._cluster.slots[pool].open(slot)

    def _nodes_of(self, fault: Fault) -> list[tuple[str, int]]:
        grounds = self.grounds if fault.pool is None else [self.grounds[fault.pool]]
        return list(dict.fromkeys((g.site, node) for g in grounds for nodes in g.nodes for node in nodes))

    # ---- faults at random times

    def _draw_s(self, fault: Fault, place: tuple[int, str, int], mean_s: float, cv: float) -> float:
        """Draw a duration from the random stream of a fault and its slot or node, independent of all other draws."""
        if not cv:
            return mean_s
        stream = self._streams.get(place)
        if stream is None:
            number, site, slot = place
            seed = [fault.seed, number, slot, *site.encode()]
            stream = self._streams[place] = np.random.default_rng(seed)
        return float(stream.gamma(1.0 / cv**2, mean_s * cv**2))

    def _failures(self, number: int, fault: Fault, replica: Replica) -> Process:
        """Alternate between normal operation and the fault until the replica ends."""
        place = number, f"pool {replica.pool}", replica.slot
        while True:
            yield self._cluster.after(self._draw_s(fault, place, fault.mtbf_s or 0.0, fault.mtbf_cv))
            if replica.died_s <= self._cluster.clock.now:
                return
            self._check_use()
            lasts_s = max(1e-9, self._draw_s(fault, place, fault.mttr_s or 0.0, fault.mttr_cv))
            self._strike(fault, replica, lasts_s)
            if fault.kind == "crash":
                return  # the replica that takes its place has failures of its own
            yield self._cluster.after(lasts_s)

    def _node_failures(self, number: int, fault: Fault, site: str, node: int) -> Process:
        """Alternate between normal operation of a node and its loss with all its replicas."""
        place = number, site, node
        while True:
            yield self._cluster.after(self._draw_s(fault, place, fault.mtbf_s or 0.0, fault.mtbf_cv))
            if (site, node) in self._gone or self._all_is_over():
                return
            self._check_use()
            lasts_s = max(1e-9, self._draw_s(fault, place, fault.mttr_s or 0.0, fault.mttr_cv))
            self._lose_node(site, node, lasts_s)
            yield self._cluster.after(lasts_s)

    def _all_is_over(self) -> bool:
        """Return whether no replica is live or pending and no other controller could add one."""
        cluster = self._cluster
        if len(cluster.options.controllers) > 1 or any(r.died_s > cluster.clock.now for r in cluster.replicas):
            return False
        return not any(order.pending for order in cluster.orders.given)

    def _check_use(self) -> None:
        """Raise RuntimeError if faults keep happening and no request is answered."""
        answered = self._cluster.n_answered
        self._vain = self._vain + 1 if answered == self._answered else 0
        self._answered = answered
        if self._vain > MOST_IN_VAIN:
            raise RuntimeError(f"no progress: {MOST_IN_VAIN} faults in a row, and no request was answered")
