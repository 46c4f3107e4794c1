"""Instances that clouds sell, from data/prices.csv, and the cheapest whole number of them that holds a deployment.

The table has one row per cloud, accelerator, instance size and part of the world. It holds the cheapest instance type
of that size, its on-demand, spot and reserved prices in a common region there, and the lowest and the median on-demand
price over all regions of that cloud. These rows of the public sources are left out: on-demand rows with commitment
prices, rows that price the accelerator without its host, rows without an on-demand price, local zones and government
regions. One-year reserved prices are those of standard instances without upfront payment, where the table of AWS has
them. Some sources quote a price per accelerator without the instance that it is sold in (`quoted_per`); such a price is
only offered for whole nodes, because no part of a node is known to be sold.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, Literal, get_args

from pydantic import BeforeValidator, TypeAdapter

from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import DATA

#: Commitments of a price: none, interruptible capacity (spot), or a reservation for one or three years.
Commitment = Literal["on-demand", "spot", "reserved-1y", "reserved-3y"]

ON_DEMAND: Final = "on-demand"

SPOT: Final = "spot"

COMMITMENTS: Final[tuple[str, ...]] = get_args(Commitment)

FILE = DATA / "prices.csv"

#: Costs are compared in whole millionths of a dollar, so that equal bills are equal despite rounding.
MICRODOLLARS: Final = 1e6

#: Estimates that earlier versions listed among the clouds, and the choices that replace them.
_ESTIMATES: Final = {
    "tco-hyperscaler": "--set tariff.reading=owned-hyperscaler",
    "tco-neocloud": "--set tariff.reading=owned-neocloud",
    "tco-3-year": "--set tariff.commitment=reserved-3y",
}

#: The price in a cell of the table, or None where the cell is empty.
_OptionalPrice = Annotated[float | None, BeforeValidator(lambda cell: cell or None)]


@dataclass(frozen=True, slots=True)
class PriceRow:
    """One row of data/prices.csv, with prices in USD per hour of the whole instance."""

    quoted_per: Literal["instance", "accelerator"]
    hardware: str
    cloud: str
    instance: str  # empty where the price is per accelerator
    accelerators: int
    area: str  # "us", "eu", "ap", "other"
    region: str  # empty where the source names none
    on_demand_usd_per_hour: float
    spot_usd_per_hour: _OptionalPrice
    reserved_1y_usd_per_hour: _OptionalPrice
    min_usd_per_hour: float
    median_usd_per_hour: float
    n_regions: int
    as_of: str
    source: str
    note: str

    def usd_per_hour(self, commitment: str) -> float | None:
        """Return the price of the whole instance under a commitment, or None where the table has none."""
        return {
            ON_DEMAND: self.on_demand_usd_per_hour,
            SPOT: self.spot_usd_per_hour,
            "reserved-1y": self.reserved_1y_usd_per_hour,
        }.get(commitment)


@cache
def list_prices() -> tuple[PriceRow, ...]:
    """Return every row of the table."""
    with FILE.open(encoding="utf-8", newline="") as lines:
        return TypeAdapter(tuple[PriceRow, ...]).validate_python(tuple(csv.DictReader(lines)))


def list_clouds() -> list[str]:
    """Return the names of the clouds in the table, sorted."""
    return sorted({r.cloud for r in list_prices()})


def matching_rows(cloud: str | None, region: str | None) -> list[PriceRow]:
    """Return the rows of a cloud (None: of all) in a region or a part of the world (None: anywhere).

    Raises:
        InputError: The cloud or the region is unknown; the message names the nearest one.
    """
    rows = list(list_prices())
    if cloud is not None:
        wanted = cloud.lower()
        if wanted in _ESTIMATES:
            raise InputError("an estimate of a cost is not the price of a cloud", cloud, _ESTIMATES[wanted])
        if wanted not in list_clouds():
            raise InputError("unknown cloud", cloud, nearest_name(cloud, list_clouds()) or ", ".join(list_clouds()))
        rows = [r for r in rows if r.cloud == wanted]
    if region is None:
        return rows
    known = {r.region for r in rows} | {r.area for r in rows}
    if region.lower() not in {k.lower() for k in known - {""}}:
        raise InputError("unknown price region", region, nearest_name(region, sorted(known - {""})) or "us")
    return [r for r in rows if region.lower() in (r.region.lower(), r.area)]


@dataclass(frozen=True, slots=True)
class InstanceSize:
    """An instance type as the cover needs it: its accelerators and its price in US dollars per hour."""

    accelerators: int
    usd_per_hour: float


def cheapest_cover(
    sizes: Sequence[InstanceSize], together: int, groups: int, most_in_instance: int
) -> tuple[int, ...] | None:
    """Return how many whole instances of each size hold the groups at the lowest cost; None if none is large enough.

    It is the integer covering problem, solved exactly by dynamic programming over the number of groups (Kellerer,
    Pferschy and Pisinger, *Knapsack Problems*, 2004, chapter 8): every size may be used any number of times. At equal
    cost, fewer instances are preferred.

    Args:
        sizes: The instance types on sale at one place.
        together: Accelerators of a group, all of which must be in one instance.
        groups: Number of groups, at least 1.
        most_in_instance: Most groups that one instance may hold, at least 1.
    """
    # Per size that holds a group: its index, the groups that it holds, and its cost (millionths of a dollar).
    usable = [
        (i, min(size.accelerators // together, most_in_instance), round(size.usd_per_hour * MICRODOLLARS))
        for i, size in enumerate(sizes)
        if size.accelerators >= together
    ]
    if not usable:
        return None
    least: list[tuple[int, int]] = [(0, 0)]  # cost and number of instances, by number of groups
    last: list[tuple[int, int]] = [(-1, 0)]  # the instance that was added last, and the groups that were left then
    for n in range(1, groups + 1):
        options = []
        for i, held, cost in usable:
            left = max(n - held, 0)
            options.append((least[left][0] + cost, least[left][1] + 1, i, left))
        best = min(options)
        least.append(best[:2])
        last.append(best[2:])
    counts, n = [0] * len(sizes), groups
    while n > 0:
        i, n = last[n]
        counts[i] += 1
    return tuple(counts)
