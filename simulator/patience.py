"""Clients that give up, and what they ask of the order in which they are served."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from catalogs.errors import InputError
from simulator.clock import ARRIVAL, Tick
from simulator.request import Request
from simulator.results import TIMED_OUT, UNFINISHED
from simulator.rules import EngineRules

if TYPE_CHECKING:
    from simulator.cluster import Cluster


class Patience:
    """When clients give up. The engine notices when the step on the device has ended; tokens in flight are lost.

    A request of a closed loop that is given up is followed by its client's next one.
    """

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster, self._timeout_s = cluster, timeout_s
        self._watched: set[int] = set()

    @classmethod
    def of(cls, cluster: Cluster, rules: Sequence[EngineRules]) -> Patience | None:
        """None where nobody gives up and nobody asks for anything."""
        limits = [each.queueing.timeout_s for each in rules if each.queueing.timeout_s is not None]
        timeout_s = min(limits, default=inf)
        terms = cluster.requests.terms
        if terms is None and timeout_s == inf:
            return None
        gives_up = timeout_s < inf or (terms is not None and bool((terms.timeout_s < inf).any()))
        if gives_up and any(opened.pool.role != "both" for opened in cluster.pools):
            raise InputError("timeouts are not simulated with prefill and decode pools yet", "timeout_s", "null")
        return cls(cluster, timeout_s)

    def begin(self, request: Request) -> bool:
        """A request reaches the router, perhaps again; False where its client is gone."""
        cluster, index = self._cluster, request.index
        arrival_s, terms = cluster.results.arrival_s[index], cluster.requests.terms
        limit_s = self._timeout_s
        if terms is not None:
            request.priority = int(terms.priority[index])
            request.deadline_s = arrival_s + float(terms.deadline_s[index])
            limit_s = min(limit_s, float(terms.timeout_s[index]))
        if limit_s == inf or index in self._watched:
            return cluster.results.status[index] != TIMED_OUT
        self._watched.add(index)
        if arrival_s + limit_s <= cluster.clock.now:
            self._give_up(index)
            return False
        cluster.clock.at(arrival_s + limit_s, ARRIVAL, [partial(self._expire, index)])
        return True

    def _give_up(self, index: int) -> None:
        self._cluster.results.status[index] = TIMED_OUT
        self._cluster.answered(index)

    def _expire(self, index: int, _: Tick) -> None:
        cluster = self._cluster
        if cluster.results.status[index] != UNFINISHED:
            return
        self._give_up(index)
        number = cluster.results.replica[index]  # the last that had it
        if number >= 0 and cluster.replicas[number].died_s > cluster.clock.now:
            replica = cluster.replicas[number]
            held = next((request for request in replica.held_requests() if request.index == index), None)
            if held is not None:
                replica.abandon(held)
