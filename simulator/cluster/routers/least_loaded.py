"""Routers that choose the least loaded of all replicas, or of two random ones."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from random import Random

from simulator.cluster.routers.base import ReplicaView, Router
from simulator.core.request import Request
from simulator.engine.replica import Replica


class LeastLoadedRouter(Router):
    """A router that chooses the first replica with the smallest values of some signals, compared in turn."""

    def __init__(self, view: ReplicaView, *signals: str) -> None:
        """Create the router; `signals` are attributes of StaleView."""
        super().__init__(view)
        self._load = attrgetter(*signals)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        """Return the index in `replicas` of the replica with the smallest signals."""
        loads = list(map(self._load, self.view.of(replicas)))
        return loads.index(min(loads))


class PowerOfTwoRouter(Router):
    """A router that draws two replicas and chooses the one with fewer unfinished requests (Mitzenmacher 2001)."""

    def __init__(self, view: ReplicaView, seed: int) -> None:
        super().__init__(view)
        self._random = Random(seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        """Return the index in `replicas` of the less loaded of two random replicas."""
        n = len(replicas)
        if n == 1:
            return 0
        one, other = self._random.randrange(n), self._random.randrange(n - 1)
        other += other >= one
        first, second = self.view.of((replicas[one], replicas[other]))
        return other if second.outstanding < first.outstanding else one
