"""Which replica serves a request, among those alive at one stage: one class per way, under one contract suite.

The choice is made when a request is handed to an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from catalogs.routing import Routing, parse_routing
from simulator.routers.base import Router, Sight
from simulator.routers.blind import AtRandom, BySession, InTurn
from simulator.routers.load import BetterOfTwo, FewestRequests, FewestTokens, FreestCache
from simulator.routers.prefix import HighestScore, LongestPrefix

#: By name of catalogs/routing.py: how to make one, given how it sees replicas and its options.
ROUTERS: Final[Mapping[str, Callable[[Sight, Any], Router]]] = {
    "round_robin": lambda sight, _: InTurn(sight),
    "random": lambda sight, options: AtRandom(sight, options.seed),
    "least_outstanding": lambda sight, _: FewestRequests(sight),
    "least_tokens": lambda sight, _: FewestTokens(sight),
    "power_of_two": lambda sight, options: BetterOfTwo(sight, options.seed),
    "session_affinity": lambda sight, _: BySession(sight),
    "prefix_aware": LongestPrefix,
    "kv_aware": lambda sight, _: FreestCache(sight),
    "scored": HighestScore,
}


def make_router(choice: str | Routing, sight: Sight) -> Router:
    """Raises InputError for an unknown name."""
    options = parse_routing(choice) if isinstance(choice, str) else choice
    return ROUTERS[options.name](sight, options)
