"""How a router chooses, as deployment.yaml says it: `router: NAME` or `router: {NAME: {its options}}`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

from catalogs.errors import InputError
from catalogs.io.yaml_files import choose_kind

Fraction = Annotated[float, Field(ge=0, le=1)]

Seed = Annotated[int, Field(ge=0, strict=True)]

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RouterOptions(BaseModel):
    """Base: one way to choose, and its options."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str]


class RoundRobin(RouterOptions):
    """Replicas in turn."""

    name = "round_robin"


class RandomChoice(RouterOptions):
    """Any replica, each as likely."""

    name = "random"
    seed: Seed = 0


class LeastOutstanding(RouterOptions):
    """The replica with the fewest unfinished requests."""

    name = "least_outstanding"


class LeastTokens(RouterOptions):
    """The replica whose unfinished requests have the fewest prompt tokens."""

    name = "least_tokens"


class PowerOfTwo(RouterOptions):
    """Two replicas at random, and of these the one with fewer unfinished requests."""

    name = "power_of_two"
    seed: Seed = 0


class SessionAffinity(RouterOptions):
    """A session stays with the replica its first request got, by hash, as long as that lives."""

    name = "session_affinity"


class PrefixAware(RouterOptions):
    """The longest prefix sent to a replica before, unless load is uneven. Defaults: SGLang's router (RouterArgs in
    sgl-router's router_args.py); what it does: its policies/cache_aware.rs."""

    name = "prefix_aware"
    cache_threshold: Fraction = 0.3  # of the prompt: a shorter match counts as none
    balance_abs_threshold: Annotated[int, Field(ge=0, strict=True)] = 64  # both must be passed for load to be uneven
    balance_rel_threshold: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.5


class KvAware(RouterOptions):
    """The replica whose KV cache holds the least."""

    name = "kv_aware"


class Scored(RouterOptions):
    """The highest weighted sum of scores from 0 to 1: cached prefix, short queue, free KV cache. Defaults: llm-d's
    default profile (prefix 3, queue 2)."""

    name = "scored"
    prefix: Weight = 3.0
    queue: Weight = 2.0
    kv: Weight = 0.0


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
    """`round_robin`, `{random: {seed: 1}}`, …; InputError names the nearest router or option."""
    found = choose_kind(ROUTER_OPTIONS, data, "router")
    if isinstance(found, Scored) and not found.prefix + found.queue + found.kv:
        raise InputError("router.scored needs a weight that is not zero", "0, 0, 0", "queue: 2")
    return found
