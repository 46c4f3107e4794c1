"""Routers that choose the least loaded replica."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from simulator.cluster.routers.base import ReplicaView, Router, least
from simulator.core.request import Request
from simulator.engine.replica import Replica


class FewestRequestsRouter(Router):
    """Chooses the replica with the fewest unfinished requests, and the first of several."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        """Return the index in `replicas` of the replica with the fewest unfinished requests."""
        return least([seen.outstanding for seen in self.sight.of(replicas)])


class FewestTokensRouter(Router):
    """Chooses the replica with the fewest prompt tokens in unfinished requests.

    The prompt length is the part of a request's work that is known before it is served.
    """

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        """Return the index in `replicas` of the replica with the fewest outstanding prompt tokens."""
        return least([seen.outstanding_tokens for seen in self.sight.of(replicas)])


class FreestCacheRouter(Router):
    """Chooses the replica with the least used KV cache; ties go to the one with the fewest unfinished requests."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        """Return the index in `replicas` of the replica with the least used KV cache."""
        seen = [(each.kv_used_fraction, each.outstanding) for each in self.sight.of(replicas)]
        return seen.index(min(seen))


class PowerOfTwoRouter(Router):
    """Draws two different replicas and chooses the one with fewer unfinished requests (Mitzenmacher 2001)."""

    def __init__(self, sight: ReplicaView, seed: int) -> None:
        super().__init__(sight)
        self._random = Random(seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        """Return the index in `replicas` of the less loaded of two random replicas."""
        n, sight = len(replicas), self.sight
        if n == 1:
            return 0
        one = self._random.randrange(n)
        other = self._random.randrange(n - 1)
        other += other >= one
        fewer = sight.one(replicas[other]).outstanding < sight.one(replicas[one]).outstanding
        return other if fewer else one
