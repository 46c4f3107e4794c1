"""The registry of routing policies, which choose the replica of a request among the live ones of a stage.

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

#: Constructors of routers from a view of the replicas and options, by the names in catalogs/deployments/routing.py.
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
    """Return the router for a name or for routing options.

    Raises:
        InputError: If the name is unknown.
    """
    options = parse_router(choice) if isinstance(choice, str) else choice
    return ROUTERS[options.name](sight, options)
