"""Which replica serves a request, among those alive at one stage: one class per way, under one contract suite.

The choice is made when a request is handed to an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from catalogs.deployments.routing import RouterOptions, parse_router
from simulator.cluster.routers.base import ReplicaView, Router
from simulator.cluster.routers.least_loaded import (
    FewestRequestsRouter,
    FewestTokensRouter,
    FreestCacheRouter,
    PowerOfTwoRouter,
)
from simulator.cluster.routers.prefix_aware import LongestPrefixRouter, ScoredRouter
from simulator.cluster.routers.stateless import RandomRouter, RoundRobinRouter, SessionRouter

#: By name of catalogs/deployments/routing.py: how to make one, given how it sees replicas and its options.
ROUTERS: Final[Mapping[str, Callable[[ReplicaView, Any], Router]]] = {
    "round_robin": lambda sight, _: RoundRobinRouter(sight),
    "random": lambda sight, options: RandomRouter(sight, options.seed),
    "least_outstanding": lambda sight, _: FewestRequestsRouter(sight),
    "least_tokens": lambda sight, _: FewestTokensRouter(sight),
    "power_of_two": lambda sight, options: PowerOfTwoRouter(sight, options.seed),
    "session_affinity": lambda sight, _: SessionRouter(sight),
    "prefix_aware": LongestPrefixRouter,
    "kv_aware": lambda sight, _: FreestCacheRouter(sight),
    "scored": ScoredRouter,
}


def make_router(choice: str | RouterOptions, sight: ReplicaView) -> Router:
    """Raises InputError for an unknown name."""
    options = parse_router(choice) if isinstance(choice, str) else choice
    return ROUTERS[options.name](sight, options)
