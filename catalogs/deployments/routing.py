"""The router options of deployment.yaml: `router: NAME` or `router: {NAME: {its options}}`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field, NonNegativeFloat

from catalogs.errors import InputError
from catalogs.io.yaml_files import Seed, Share, YamlBlock, choose_kind


class RouterOptions(YamlBlock):
    """Base class of the routers that deployment.yaml can name, each with its options."""

    name: ClassVar[str]


class RoundRobin(RouterOptions):
    """Send requests to the replicas in turn."""

    name = "round_robin"


class RandomChoice(RouterOptions):
    """Send each request to a random replica, all equally likely."""

    name = "random"
    seed: Seed = 0


class LeastOutstanding(RouterOptions):
    """Send each request to the replica with the fewest unfinished requests."""

    name = "least_outstanding"


class LeastTokens(RouterOptions):
    """Send each request to the replica whose unfinished requests have the fewest prompt tokens."""

    name = "least_tokens"


class PowerOfTwo(RouterOptions):
    """Pick two replicas at random and send the request to the one with fewer unfinished requests."""

    name = "power_of_two"
    seed: Seed = 0


class SessionAffinity(RouterOptions):
    """Keep each session on the replica that its first request was hashed to, until that replica fails."""

    name = "session_affinity"


class PrefixAware(RouterOptions):
    """Send each request to the replica that has received its longest prefix, unless the load is uneven.

    The defaults are those of SGLang's router (RouterArgs in sgl-router's router_args.py); the rule is that of its
    policies/cache_aware.rs.
    """

    name = "prefix_aware"
    cache_threshold: Share = 0.3  # fraction of the prompt; shorter matches are ignored
    balance_abs_threshold: Seed = 64  # the load is uneven above both thresholds
    balance_rel_threshold: Annotated[float, Field(ge=1)] = 1.5


class KvAware(RouterOptions):
    """Send each request to the replica with the least KV cache in use."""

    name = "kv_aware"


class Scored(RouterOptions):
    """Send each request to the replica with the highest weighted sum of scores.

    Each score lies between 0 and 1: cached prefix, short queue, free KV cache. The defaults are those of llm-d's
    default profile (prefix 3, queue 2).
    """

    name = "scored"
    prefix: NonNegativeFloat = 3.0
    queue: NonNegativeFloat = 2.0
    kv: NonNegativeFloat = 0.0


_KINDS: Final = (
    RoundRobin,
    RandomChoice,
    LeastOutstanding,
    LeastTokens,
    PowerOfTwo,
    SessionAffinity,
    PrefixAware,
    KvAware,
    Scored,
)

ROUTER_OPTIONS: Final[dict[str, type[RouterOptions]]] = {kind.name: kind for kind in _KINDS}


def parse_router(data: object) -> RouterOptions:
    """Return the router that `data` names, such as `round_robin` or `{random: {seed: 1}}`.

    Raises:
        InputError: The router or an option is unknown; the message names the nearest one.
    """
    found = choose_kind(ROUTER_OPTIONS, data, "router")
    if isinstance(found, Scored) and not found.prefix + found.queue + found.kv:
        raise InputError("router.scored needs at least one nonzero weight", "0, 0, 0", "queue: 2")
    return found
