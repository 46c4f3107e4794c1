"""Hourly prices of hardware: a dated public table, or the user's own price. Unknown is None, never zero.

data/prices.csv has one row per cloud, accelerator, instance size and part of the world. It holds the cheapest instance
type of that size, its on-demand, spot and reserved prices in a common region there, and the lowest and the median
on-demand price over all regions of that cloud. These rows of the public sources are left out: on-demand rows with
commitment prices, rows that price the accelerator without its host, rows without an on-demand price, local zones and
government regions. One-year reserved prices are those of standard instances without upfront payment, where the table of
AWS has them. Three-year reserved prices are the 3-year rental of InferenceX's cost constants. Rows of kind `ownership`
state the total cost of ownership, or a three-year rental; they are used only when requested by cloud or by commitment.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Annotated, Final, Literal, get_args

from pydantic import BeforeValidator, TypeAdapter

from catalogs.errors import InputError, nearest_name
from catalogs.hardware.specs import Hardware
from catalogs.io.yaml_files import DATA

Reading = Literal["cheapest", "median", "list", "spot"]

#: Commitments of a price: none, interruptible capacity (spot), or a reservation for one or three years.
Commitment = Literal["on-demand", "spot", "reserved-1y", "reserved-3y"]

ON_DEMAND: Final = "on-demand"

COMMITMENTS: Final[tuple[str, ...]] = get_args(Commitment)

FILE = DATA / "prices.csv"

_LIST_CLOUDS = ("aws", "azure", "gcp")  # clouds for the reading "list", in order of preference


#: The price in a cell of the table, or None where the cell is empty.
_OptionalPrice = Annotated[float | None, BeforeValidator(lambda cell: cell or None)]


@dataclass(frozen=True, slots=True)
class Price:
    """The price of all of the hardware (every node) in USD per hour, with its date and source."""

    usd_per_hour: float
    as_of: str
    source: str
    cloud: str = ""
    instance: str = ""
    region: str = ""
    note: str = ""  # how the price was scaled; empty for an exact match
    commitment: str = ON_DEMAND
    accelerators: int | None = None  # per instance; None: not an instance in the table

    def __post_init__(self) -> None:
        if not (math.isfinite(self.usd_per_hour) and self.usd_per_hour > 0):
            raise InputError("a price must be a positive number of USD per hour", self.usd_per_hour)

    @classmethod
    def user(cls, usd_per_hour: float) -> Price:
        """Return the user's own price of all of the hardware.

        Raises:
            InputError: The price is not positive.
        """
        return cls(usd_per_hour, as_of="given", source="given by the user")


@dataclass(frozen=True, slots=True)
class PriceRow:
    """One row of data/prices.csv, with prices in USD per hour of the whole instance."""

    kind: Literal["cloud", "ownership"]
    hardware: str
    cloud: str
    instance: str
    accelerators: int
    area: str  # "us", "eu", "ap", "other", "any"
    region: str
    on_demand_usd_per_hour: float
    spot_usd_per_hour: _OptionalPrice
    reserved_1y_usd_per_hour: _OptionalPrice
    reserved_3y_usd_per_hour: _OptionalPrice
    min_usd_per_hour: float
    median_usd_per_hour: float
    n_regions: int
    as_of: str
    source: str
    note: str

    def usd_per_hour(self, commitment: str) -> float | None:
        """Return the price of the whole instance, or None where the table has none."""
        return {
            "spot": self.spot_usd_per_hour,
            "reserved-1y": self.reserved_1y_usd_per_hour,
            "reserved-3y": self.reserved_3y_usd_per_hour,
        }.get(commitment, self.on_demand_usd_per_hour)


def node_price(
    hardware: Hardware,
    reading: Reading = "cheapest",
    cloud: str | None = None,
    region: str | None = None,
    commitment: Commitment = "on-demand",
) -> Price | None:
    """Return the price of all of `hardware`, or None where the table has none.

    The readings `cheapest` and `median` are over clouds, with one price each. `list` is the first of aws, azure and gcp
    with a price (else the median), and `spot` is the cheapest with the commitment spot. Instances with exactly this
    many accelerators come first, then the smallest larger one pro rata, then the sum of smaller ones; `note` states
    which. `region` is a region of a cloud or one of us, eu, ap; without it, the US price of a cloud is used, or else
    another. MIG slices cost as much as their whole GPU.

    Raises:
        InputError: The reading, cloud, region or commitment is unknown.
    """
    if reading not in get_args(Reading):
        raise InputError("unknown price reading", reading, nearest_name(reading, get_args(Reading)) or "cheapest")
    if commitment not in COMMITMENTS:
        near = nearest_name(commitment, COMMITMENTS) or ON_DEMAND
        raise InputError(f"a commitment must be one of {', '.join(COMMITMENTS)}", commitment, near)
    wanted = "spot" if reading == "spot" else commitment
    name, _, profile = hardware.accelerator.name.partition(":")
    count = 1 if profile else hardware.accelerators_per_node
    rows = [r for r in _matching(cloud, region, wanted) if r.hardware == name and r.usd_per_hour(wanted) is not None]
    offers = [_offer(r, count, hardware.n_nodes, wanted, whole_gpu=bool(profile)) for r in _same_size(rows, count)]
    return _choose(offers, reading) if offers else None


def discounted_price(price: Price, commitment: str, discount: float) -> Price:
    """Return an on-demand price reduced by the user's own discount, a fraction of it.

    Raises:
        InputError: The discount is not between 0 and 1.
    """
    if not 0 < discount < 1:
        raise InputError("a discount must be a fraction of the on-demand price between 0 and 1", discount, "0.35")
    stated = f"{commitment}: {discount:.0%} off the on-demand price, as you gave"
    note = "; ".join(n for n in (price.note, stated) if n)
    return replace(price, usd_per_hour=price.usd_per_hour * (1 - discount), note=note, commitment=commitment)


@cache
def list_prices() -> tuple[PriceRow, ...]:
    """Return every row of the table."""
    with FILE.open(encoding="utf-8", newline="") as lines:
        return TypeAdapter(tuple[PriceRow, ...]).validate_python(tuple(csv.DictReader(lines)))


def list_clouds() -> list[str]:
    """Return the cloud names that `node_price` accepts, sorted."""
    return sorted({r.cloud for r in list_prices()})


def _matching(cloud: str | None, region: str | None, commitment: str) -> list[PriceRow]:
    """Return the rows of a cloud and region.

    Ownership costs are included only where their cloud is named, or for a three-year reservation.
    """
    wanted = None if cloud is None else cloud.lower()
    if wanted not in (None, *list_clouds()):
        raise InputError("unknown cloud", cloud, nearest_name(str(cloud), list_clouds()) or ", ".join(list_clouds()))
    rows = list(list_prices())
    if wanted is not None:
        rows = [r for r in rows if r.cloud == wanted]
    elif commitment != "reserved-3y":
        rows = [r for r in rows if r.kind == "cloud"]
    if region is None:
        return rows
    known = {r.region for r in rows} | {r.area for r in rows}
    if region.lower() not in {k.lower() for k in known}:
        raise InputError("unknown price region", region, nearest_name(region, sorted(known - {""})) or "us")
    return [r for r in rows if region.lower() in (r.region.lower(), r.area)]


def _same_size(rows: Iterable[PriceRow], count: int) -> list[PriceRow]:
    """Return one row per cloud, all of the size that fits `count` best: exact, next larger, else the largest."""
    by_cloud: dict[tuple[str, int], PriceRow] = {}
    for row in sorted(rows, key=lambda r: (r.area != "us", r.area, r.region)):
        by_cloud.setdefault((row.cloud, row.accelerators), row)
    sizes = {row.accelerators for row in by_cloud.values()}
    if not sizes:
        return []
    best = min((s for s in sizes if s >= count), default=max(sizes))
    return [row for row in by_cloud.values() if row.accelerators == best]


def _offer(row: PriceRow, count: int, nodes: int, commitment: str, whole_gpu: bool) -> Price:
    per_instance = row.usd_per_hour(commitment)
    assert per_instance is not None
    notes = [row.note] if row.note else []
    if row.accelerators > count:
        notes.append(f"{count}/{row.accelerators} of an instance of {row.accelerators}, pro rata")
    elif row.accelerators < count and row.kind == "cloud":
        quoted = row.instance.endswith("per GPU")  # a price per GPU, not an instance with one GPU
        separate = "" if quoted else ", separate machines"
        notes.append(f"{count / row.accelerators:g} x an instance of {row.accelerators}{separate}")
    if whole_gpu:
        notes.append("the whole GPU that the slices are cut from")
    if commitment != ON_DEMAND:
        notes.append(commitment)
    return Price(
        usd_per_hour=per_instance * count / row.accelerators * nodes,
        as_of=row.as_of,
        source=row.source,
        cloud=row.cloud,
        instance=row.instance,
        region=row.region,
        note="; ".join(notes),
        commitment=commitment,
        accelerators=row.accelerators if row.kind == "cloud" else None,
    )


def _choose(offers: list[Price], reading: Reading) -> Price:
    """Return the offer that a reading means.

    The median of an even number of offers is the mean of the two middle ones, with the older date.
    """
    by_price = sorted(offers, key=lambda p: (p.usd_per_hour, p.cloud))
    if reading in ("cheapest", "spot"):
        return by_price[0]
    if reading == "list" and (named := [p for cloud in _LIST_CLOUDS for p in by_price if p.cloud == cloud]):
        return named[0]
    low, high = by_price[(len(by_price) - 1) // 2], by_price[len(by_price) // 2]
    if low is high:
        return low
    return Price(
        usd_per_hour=median((low.usd_per_hour, high.usd_per_hour)),
        as_of=min(low.as_of, high.as_of),
        source=f"mean of {low.cloud} and {high.cloud}: {low.source}; {high.source}",
        cloud=f"{low.cloud}, {high.cloud}",
        note="; ".join(n for n in (low.note, high.note) if n),
        commitment=low.commitment,
    )
