"""The effect of interruptions on a plan with spot instances: availability, interrupted requests and spares.

The interruption rate comes from the user: no public table of this catalog has one, so none is assumed. An instance runs
until it is interrupted (at a constant rate), then its replacement needs `recovery_s` until it serves: a renewal
process, which is available a share A = 1 / (1 + rate x recovery) of the time. Interruptions are independent of each
other. If a zone runs out of capacity they are not, and more spares are needed than computed here.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from catalogs.io.json_block import JsonBlock
from catalogs.units import HOUR_S

#: Required share of the time in which enough units are available, spares included. A judgement: all but a quarter of an
#: hour a day.
SURE: Final = 0.99

#: Most spares of a fleet. It only bounds the bisection; real fleets need far fewer.
_MAX_SPARES: Final = 1000

#: An interruption hits a request at a uniform point, so half of its work is repeated on average.
_LOST_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class SpotFleet:
    """Instances and replicas of a plan, its rate and capacity, and the mean time that a request is in flight."""

    instances: int
    replicas: int
    requests_per_s: float
    capacity_requests_per_s: float | None
    e2e_mean_s: float
    usd_per_hour: float

    @property
    def units(self) -> int:
        """Return the number of units that fail as a whole: instances with their replicas, or the reverse."""
        return max(1, min(self.instances, self.replicas))


class SpotEffect(JsonBlock):
    """The effect of interruptions on a plan.

    `units` counts the parts of the plan that fail as a whole; `hit_fraction` is the share of requests with at least
    one interruption.
    """

    units: int
    interruptions_per_hour: float
    available_fraction: float  # of one unit
    all_up_fraction: float
    hit_requests_per_hour: float
    hit_fraction: float
    extra_work_fraction: float
    effective_capacity_requests_per_s: float | None
    holds_with_one_down: bool | None  # whether the remaining capacity serves the rate; None: unknown
    spares: int  # further units, so that enough are available SURE of the time
    usd_per_hour_with_spares: float


def spot_effect(fleet: SpotFleet, per_instance_hour: float, recovery_s: float) -> SpotEffect:
    """Return the effect of interruptions on a fleet; the formulas are in docs/costs.md.

    Args:
        fleet: The instances and replicas of the plan.
        per_instance_hour: Interruptions of one instance per hour of running.
        recovery_s: Seconds from an interruption until the replacement serves.
    """
    units = fleet.units
    per_unit_hour = per_instance_hour * fleet.instances / units
    per_unit_s = per_unit_hour / HOUR_S
    up = 1.0 / (1.0 + per_unit_s * recovery_s)
    spares = spares_needed(units, up)
    hit = 1.0 - math.exp(-per_unit_s * fleet.e2e_mean_s)
    capacity = fleet.capacity_requests_per_s
    return SpotEffect(
        units=units,
        interruptions_per_hour=per_unit_hour * units,
        available_fraction=up,
        all_up_fraction=up**units,
        hit_requests_per_hour=hit * fleet.requests_per_s * HOUR_S,
        hit_fraction=hit,
        extra_work_fraction=_LOST_SHARE * hit,
        effective_capacity_requests_per_s=None if capacity is None else capacity * up / (1 + _LOST_SHARE * hit),
        holds_with_one_down=None if capacity is None else capacity * (units - 1) / units >= fleet.requests_per_s,
        spares=spares,
        usd_per_hour_with_spares=fleet.usd_per_hour * (units + spares) / units,
    )


def enough_up(units: int, needed: int, up: float) -> float:
    """Return the probability that at least `needed` of `units` independent units are available (binomial).

    `up` is the probability that one unit is available.
    """
    terms = (math.comb(units, k) * up**k * (1 - up) ** (units - k) for k in range(needed, units + 1))
    return min(1.0, sum(terms))


def spares_needed(units: int, up: float) -> int:
    """Return the fewest spares with which at least `units` units are available SURE of the time, up to _MAX_SPARES.

    The probability grows with each spare, so the number is found by halving.
    """
    return bisect_left(range(_MAX_SPARES), SURE, key=lambda n: enough_up(units + n, units, up))
