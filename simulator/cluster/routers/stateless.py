"""Routers that use no replica signals: round robin, random, and by session."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from random import Random
from typing import Final

from simulator.cluster.routers.base import ReplicaView, Router
from simulator.core.request import Request
from simulator.engine.replica import Replica

#: Fibonacci hashing: odd, about 2**64 / golden ratio.
_SPREAD: Final = 0x9E3779B97F4A7C15

#: The low 64 bits, in which hashes wrap.
_MASK: Final = (1 << 64) - 1

_INDEX: Final = attrgetter("index")


class RoundRobinRouter(Router):
    """A router that chooses the replicas in turn."""

    ignores_replicas = True

    def __init__(self, view: ReplicaView) -> None:
        super().__init__(view)
        self._next = -1

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        """Return the next index in `replicas`."""
        self._next = (self._next + 1) % len(replicas)
        return self._next


class RandomRouter(Router):
    """A router that chooses a replica at random."""

    ignores_replicas = True

    def __init__(self, view: ReplicaView, seed: int) -> None:
        super().__init__(view)
        self._random = Random(seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        """Return a random index in `replicas`."""
        return self._random.randrange(len(replicas))


class SessionRouter(Router):
    """A router that sends all requests of a session to one replica, chosen by hash, while it accepts requests.

    Without sessions in the workload, requests with the same first content block form a session. If the contents are
    unique, every request is a session.
    """

    ignores_replicas = True

    def __init__(self, view: ReplicaView) -> None:
        super().__init__(view)
        self._homes: dict[int, int] = {}  # session: index of its replica

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        """Return the index in `replicas` of the session's replica."""
        sessions = self.view.sessions
        if sessions is not None:
            session = sessions[request.index]
        elif request.keys:
            session = request.keys[0]
        else:
            return _spread(request.index, len(replicas))
        home = self._homes.get(session, -1)
        at = bisect_left(replicas, home, key=_INDEX)
        if at == len(replicas) or replicas[at].index != home:
            at = _spread(session, len(replicas))
            self._homes[session] = replicas[at].index
        return at


def _spread(number: int, n: int) -> int:
    """Hash a number evenly to 0..n - 1 (splitmix64's finaliser)."""
    mixed = ((number + 1) * _SPREAD) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) * n) >> 64
