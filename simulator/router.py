"""Which replica serves a request, among those alive at one stage. The choice is made when it is handed to an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from catalogs.errors import InputError, nearest_name
from simulator.replica import Replica
from simulator.request import Request


class Router(ABC):
    """Sees requests without their output length, and what each replica shows: `outstanding`, `incoming`, `pool`,
    `scheduler.n_waiting`, `scheduler.kv.available`. Each stage has one of its own; replicas come and go."""

    @abstractmethod
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        """Index, in `replicas`, of the one that gets the request."""


class RoundRobin(Router):
    """Replicas in turn."""

    def __init__(self) -> None:
        self._next = -1

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        self._next = (self._next + 1) % len(replicas)
        return self._next


class LeastOutstanding(Router):
    """The replica with the fewest unfinished requests, the first of equals."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        return min(range(len(replicas)), key=lambda i: replicas[i].outstanding)


ROUTERS: dict[str, type[Router]] = {"round_robin": RoundRobin, "least_outstanding": LeastOutstanding}


def make_router(name: str) -> Router:
    """Raises InputError for an unknown name."""
    if name not in ROUTERS:
        raise InputError("unknown router", name, nearest_name(name, ROUTERS))
    return ROUTERS[name]()
