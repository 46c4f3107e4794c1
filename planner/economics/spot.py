"""What interruptions do to a plan on spot instances: time lost, requests hit, spares. The rate is the user's own.

No public table of this catalog holds interruption rates, so none is assumed. An instance runs until it is taken (at a
constant rate), then its replacement needs `recovery_s` until it serves: a renewal process, which is up a share
A = 1 / (1 + rate x recovery) of the time. Instances are taken independently of each other; where a zone runs dry they
are not, and more spares are needed than said here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from catalogs.io.json_block import JsonBlock
from planner.economics.money import SECONDS_PER_HOUR

#: How much of the time enough units are up, with the spares named.
SURE: Final = 0.99

_MOST_SPARES: Final = 1000

#: Of a request that is hit, its place in its life is uniform: half of its work is done again.
_LOST_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Interruptions:
    """How often an instance is taken, per hour of running, and seconds until its replacement serves."""

    per_instance_hour: float
    recovery_s: float


@dataclass(frozen=True, slots=True)
class SpotFleet:
    """Instances of a plan and its replicas; requests per second they carry and can carry, seconds each is in flight."""

    instances: int
    replicas: int
    requests_per_s: float
    capacity_requests_per_s: float | None
    e2e_mean_s: float
    usd_per_hour: float

    @property
    def units(self) -> int:
        """What is lost together: an instance with its replicas, or a replica with its instances."""
        return max(1, min(self.instances, self.replicas))


class SpotEffect(JsonBlock):
    """units: parts of the plan that are lost one at a time. hit_fraction: of requests, interrupted once at least."""

    units: int
    interruptions_per_hour: float
    available_fraction: float  # of one unit
    all_up_fraction: float
    hit_requests_per_hour: float
    hit_fraction: float
    extra_work_fraction: float
    effective_capacity_requests_per_s: float | None
    holds_with_one_down: bool | None  # capacity left carries the planned rate; None: capacity unknown
    spares: int  # units more, so that enough are up SURE of the time
    usd_per_hour_with_spares: float


def spot_effect(fleet: SpotFleet, taken: Interruptions) -> SpotEffect:
    """What the interruptions do to the fleet; formulas in docs/costs.md."""
    units = fleet.units
    per_unit_hour = taken.per_instance_hour * fleet.instances / units
    per_unit_s = per_unit_hour / SECONDS_PER_HOUR
    up = 1.0 / (1.0 + per_unit_s * taken.recovery_s)
    spares = spares_needed(units, up)
    hit = 1.0 - math.exp(-per_unit_s * fleet.e2e_mean_s)
    capacity = fleet.capacity_requests_per_s
    left = None if capacity is None else capacity * (units - 1) / units
    return SpotEffect(
        units=units,
        interruptions_per_hour=per_unit_hour * units,
        available_fraction=up,
        all_up_fraction=up**units,
        hit_requests_per_hour=hit * fleet.requests_per_s * SECONDS_PER_HOUR,
        hit_fraction=hit,
        extra_work_fraction=_LOST_SHARE * hit,
        effective_capacity_requests_per_s=None if capacity is None else capacity * up / (1 + _LOST_SHARE * hit),
        holds_with_one_down=None if left is None else left >= fleet.requests_per_s,
        spares=spares,
        usd_per_hour_with_spares=fleet.usd_per_hour * (units + spares) / units,
    )


def spares_needed(units: int, up: float, sure: float = SURE) -> int:
    """The fewest spares s with P(at least `units` of units + s are up) >= sure, each up independently."""
    for spares in range(_MOST_SPARES):
        n = units + spares
        enough = sum(math.comb(n, k) * up**k * (1 - up) ** (n - k) for k in range(units, n + 1))
        if enough >= sure:
            return spares
    return _MOST_SPARES
