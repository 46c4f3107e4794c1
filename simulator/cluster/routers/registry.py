"""The registry of routing policies, which choose the replica of a request among the live ones of a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from catalogs.deployments.routing import RouterOptions, parse_router
from simulator.cluster.routers.base import ReplicaView, Router
from simulator.cluster.routers.least_loaded import LeastLoadedRouter, PowerOfTwoRouter
from simulator.cluster.routers.prefix_aware import LongestPrefixRouter, ScoredRouter
from simulator.cluster.routers.stateless import RandomRouter, RoundRobinRouter, SessionRouter

#: Constructors of routers from a view of the replicas and options, by the names in catalogs/deployments/routing.py. The
#: prompt length (least_tokens) is the part of a request's work that is known before it is served.
ROUTERS: Final[Mapping[str, Callable[[ReplicaView, Any], Router]]] = {
    "round_robin": lambda view, _: RoundRobinRouter(view),
    "random": lambda view, options: RandomRouter(view, options.seed),
    "least_outstanding": lambda view, _: LeastLoadedRouter(view, "outstanding"),
    "least_tokens": lambda view, _: LeastLoadedRouter(view, "outstanding_tokens"),
    "power_of_two": lambda view, options: PowerOfTwoRouter(view, options.seed),
    "session_affinity": lambda view, _: SessionRouter(view),
    "prefix_aware": LongestPrefixRouter,
    "kv_aware": lambda view, _: LeastLoadedRouter(view, "kv_used_fraction", "outstanding"),
    "scored": ScoredRouter,
}


def make_router(choice: str | RouterOptions, view: ReplicaView) -> Router:
    """Return the router for a name or for routing options.

    Raises:
        InputError: If the name is unknown.
    """
    options = parse_router(choice) if isinstance(choice, str) else choice
    return ROUTERS[options.name](view, options)
