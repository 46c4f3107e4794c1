"""Hourly prices of hardware: whole instances of a dated public table, or the user's own price.

A deployment is billed as the cheapest set of whole instances that one cloud sells in one region under one commitment
(`catalogs.economics.instances`). An unknown price is None, never zero. Estimates of the cost of owning, and of a rental
for three years, are in data/rate_estimates.csv: rates per accelerator that no cloud offers. They are used only on
request: by their reading, or by the commitment of three years.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import groupby
from statistics import median
from typing import Final, Literal, get_args

from pydantic import TypeAdapter

from catalogs.economics.instances import (
    COMMITMENTS,
    ON_DEMAND,
    SPOT,
    Commitment,
    InstanceSize,
    PriceRow,
    cheapest_cover,
    matching_rows,
)
from catalogs.economics.locations import locate_grid
from catalogs.errors import InputError, nearest_name
from catalogs.hardware.specs import Hardware
from catalogs.io.yaml_files import DATA
from catalogs.ui.words import percent

Reading = Literal["cheapest", "median", "list", "spot", "owned-hyperscaler", "owned-neocloud"]

#: The commitment of an estimated cost of owning.
OWNED: Final = "owned"

ESTIMATES_FILE = DATA / "rate_estimates.csv"

#: The estimate behind the commitment of three years.
_RENTAL: Final = "rental-3-years"

_LIST_CLOUDS = ("aws", "azure", "gcp")  # clouds for the reading "list", in order of preference


@dataclass(frozen=True, slots=True)
class RentalNeed:
    """The accelerators that a deployment uses, in groups that each need one instance.

    Attributes:
        accelerator: Name of the accelerator in the catalog; of a MIG slice, the whole GPU.
        together: Accelerators of a group, for example those of a replica, which share the link of an instance.
        groups: Number of groups.
        node: Accelerators of a full node.
        most_in_instance: Most groups that may share an instance. Where the hardware has several nodes, they are those
            of one node, since what is on different nodes must not be lost together.
        sliced: Whether the groups are GPUs that the user cuts into slices.
    """

    accelerator: str
    together: int
    groups: int
    node: int
    most_in_instance: int
    sliced: bool = False

    @property
    def accelerators(self) -> int:
        """Return the number of accelerators that are used."""
        return self.together * self.groups

    @classmethod
    def of(cls, hardware: Hardware, together: int | None = None, groups: int | None = None) -> RentalNeed:
        """Return the need for `groups` groups of `together` accelerators; by default, for whole nodes of `hardware`."""
        name, _, profile = hardware.accelerator.name.partition(":")
        if profile:
            return cls(name, 1, hardware.n_nodes, hardware.node.max_accelerators, hardware.n_nodes, sliced=True)
        each = hardware.accelerators_per_node if together is None else together
        count = hardware.n_accelerators // each if groups is None else groups
        most = max(1, hardware.accelerators_per_node // each) if hardware.n_nodes > 1 else count
        return cls(name, each, count, max(hardware.node.max_accelerators, each), most)


@dataclass(frozen=True, slots=True)
class RentedInstances:
    """A number of equal instances of a price, each at `usd_per_hour`."""

    instance: str
    accelerators: int
    count: int
    usd_per_hour: float

    @property
    def words(self) -> str:
        """Return the instances in words, for example "3 x g6e.xlarge (1 GPU each) at $1.86/h each"."""
        gpus = f"{self.accelerators} GPU{'' if self.accelerators == 1 else 's'}"
        if self.count == 1:
            return f"{self.instance} ({gpus}) at ${self.usd_per_hour:,.2f}/h"
        return f"{self.count} x {self.instance} ({gpus} each) at ${self.usd_per_hour:,.2f}/h each"


@dataclass(frozen=True, slots=True)
class Price:
    """The price of all accelerators of a need in USD per hour, with its commitment, date and source.

    Attributes:
        cloud: The cloud; empty for a user's own price and for an estimate.
        region: The region of the cloud; empty if the source names none.
        area: The part of the world: "us", "eu", "ap" or "other"; empty if unknown.
        commitment: One of COMMITMENTS, or OWNED; empty for a user's own price.
        instances: The whole instances that are rented; empty if the price is not of instances.
        idle_accelerators: Rented accelerators that the deployment does not use.
        estimate: Name of the estimate, where no cloud offers the price.
        note: Remarks about the price.
    """

    usd_per_hour: float
    as_of: str
    source: str
    cloud: str = ""
    region: str = ""
    area: str = ""
    commitment: str = ON_DEMAND
    instances: tuple[RentedInstances, ...] = ()
    idle_accelerators: int = 0
    estimate: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.usd_per_hour) and self.usd_per_hour > 0):
            raise InputError("a price must be a positive number of USD per hour", self.usd_per_hour)

    @property
    def n_instances(self) -> int | None:
        """Return the number of instances, or None if the price is not of instances."""
        return sum(i.count for i in self.instances) or None

    @classmethod
    def user(cls, usd_per_hour: float) -> Price:
        """Return the user's own price of all of the hardware.

        Raises:
            InputError: The price is not positive.
        """
        return cls(usd_per_hour, as_of="given", source="given by the user", commitment="")


def node_price(
    hardware: Hardware,
    reading: Reading = "cheapest",
    cloud: str | None = None,
    region: str | None = None,
    commitment: Commitment = "on-demand",
    together: int | None = None,
) -> Price | None:
    """Return the price of the whole instances that hold `hardware`, or None where the table has none.

    Args:
        hardware: The hardware.
        reading: Which of several prices; see `rental_price`.
        cloud: The cloud; None for any.
        region: A region of a cloud, or one of us, eu, ap; None for any.
        commitment: The commitment.
        together: Accelerators that must share an instance; by default, all of a node.

    Raises:
        InputError: The reading, cloud, region or commitment is unknown.
    """
    return rental_price(RentalNeed.of(hardware, together), reading, cloud, region, commitment)


@lru_cache(maxsize=4096)
def rental_price(
    need: RentalNeed,
    reading: Reading = "cheapest",
    cloud: str | None = None,
    region: str | None = None,
    commitment: Commitment = "on-demand",
) -> Price | None:
    """Return the price of the whole instances that hold `need`, or None where the table has none.

    The readings `cheapest` and `median` are over clouds, each with its cheapest region. `list` is the first of aws,
    azure and gcp with a price (else the median), and `spot` is the cheapest with the commitment spot. The readings
    `owned-hyperscaler` and `owned-neocloud` are estimated costs of owning. `region` is a region of a cloud or one of
    us, eu, ap.

    Raises:
        InputError: The reading, cloud, region or commitment is unknown.
    """
    if reading not in get_args(Reading):
        raise InputError("unknown price reading", reading, nearest_name(reading, get_args(Reading)) or "cheapest")
    if commitment not in COMMITMENTS:
        near = nearest_name(commitment, COMMITMENTS) or ON_DEMAND
        raise InputError(f"a commitment must be one of {', '.join(COMMITMENTS)}", commitment, near)
    if reading in _estimates():
        return _estimated(need, reading)
    wanted = "spot" if reading == "spot" else commitment
    offers = offers_by_region(need, wanted, cloud, region)
    if not offers and wanted == "reserved-3y" and cloud is None and region is None:
        return _estimated(need, _RENTAL)
    by_cloud: dict[str, Price] = {}
    for price in offers:
        by_cloud.setdefault(price.cloud, price)
    return _choose(list(by_cloud.values()), reading) if by_cloud else None


def offers_by_region(
    need: RentalNeed, commitment: str, cloud: str | None = None, region: str | None = None
) -> list[Price]:
    """Return the price of `need` in every cloud and region that can hold it, cheapest first; of equals, the cleanest.

    Instances of different clouds, regions or commitments are never mixed in one price.

    Raises:
        InputError: The cloud or the region is unknown.
    """
    rows = [r for r in matching_rows(cloud, region) if r.hardware == need.accelerator]
    priced = sorted((r for r in rows if r.usd_per_hour(commitment) is not None), key=_place)
    found = [_covered(list(group), need, commitment) for _, group in groupby(priced, key=_place)]
    return sorted((p for p in found if p is not None), key=_order)


def list_estimates(need: RentalNeed) -> list[Price]:
    """Return the estimates of the cost of `need`, cheapest first."""
    found = (_estimated(need, name) for name in _estimates())
    return sorted((p for p in found if p is not None), key=lambda p: p.usd_per_hour)


def discounted_price(price: Price, commitment: str, discount: float) -> Price:
    """Return an on-demand price reduced by the user's own discount, a fraction of it.

    Raises:
        InputError: The discount is not between 0 and 1.
    """
    if not 0 < discount < 1:
        raise InputError("a discount must be a fraction of the on-demand price between 0 and 1", discount, "0.35")
    stated = f"{commitment}: {percent(discount)} off the on-demand price, as you gave"
    note = "; ".join(n for n in (price.note, stated) if n)
    rented = tuple(replace(i, usd_per_hour=i.usd_per_hour * (1 - discount)) for i in price.instances)
    usd = price.usd_per_hour * (1 - discount)
    return replace(price, usd_per_hour=usd, note=note, commitment=commitment, instances=rented)


def _place(row: PriceRow) -> tuple[str, str, str]:
    return row.cloud, row.region, row.area


def _order(price: Price) -> tuple[float, float, bool, str, str]:
    """Return the key of sorting: price, then carbon intensity (unknown last), then regions in the US, then names."""
    located = locate_grid(price)
    intensity = located.grid.gco2e_per_kwh if located.known else math.inf
    return round(price.usd_per_hour, 6), intensity, price.area != "us", price.cloud, price.region


def _covered(rows: list[PriceRow], need: RentalNeed, commitment: str) -> Price | None:
    """Return the price of the cheapest whole instances of one place, or None if none is large enough."""
    sizes = []
    for row in rows:
        usd = row.usd_per_hour(commitment)
        assert usd is not None
        whole = need.node if row.quoted_per == "accelerator" else 1
        sizes.append(InstanceSize(row.accelerators * whole, usd * whole))
    counts = cheapest_cover(sizes, need.together, need.groups, need.most_in_instance)
    if counts is None:
        return None
    chosen = [(row, size, n) for row, size, n in zip(rows, sizes, counts, strict=True) if n]
    rented = tuple(
        RentedInstances(row.instance or f"node of {need.accelerator}", size.accelerators, n, size.usd_per_hour)
        for row, size, n in chosen
    )
    return Price(
        usd_per_hour=sum(i.count * i.usd_per_hour for i in rented),
        as_of=", ".join(sorted({row.as_of for row, _, _ in chosen})),
        source="; ".join(dict.fromkeys(row.source for row, _, _ in chosen)),
        cloud=rows[0].cloud,
        region=rows[0].region,
        area=rows[0].area,
        commitment=commitment,
        instances=rented,
        idle_accelerators=sum(i.count * i.accelerators for i in rented) - need.accelerators,
        note="; ".join(_notes([row for row, _, _ in chosen], rented, need)),
    )


def _notes(rows: list[PriceRow], rented: tuple[RentedInstances, ...], need: RentalNeed) -> list[str]:
    notes = list(dict.fromkeys(row.note for row in rows if row.note))
    if any(row.quoted_per == "accelerator" for row in rows):
        notes.append(f"quoted per accelerator; billed by the node of {need.node}, since no part is known to be sold")
    total = sum(i.count * i.accelerators for i in rented)
    if idle := total - need.accelerators:
        notes.append(f"{idle} of the {total} rented accelerators {'is' if idle == 1 else 'are'} not used")
    if need.sliced:
        notes.append("the whole GPU that the slices are cut from")
    return notes


@dataclass(frozen=True, slots=True)
class RateEstimate:
    """One row of data/rate_estimates.csv: an estimated rate of an accelerator, host and power included."""

    hardware: str
    estimate: Literal["owned-hyperscaler", "owned-neocloud", "rental-3-years"]
    usd_per_accelerator_hour: float
    as_of: str
    source: str
    note: str


@cache
def _estimates() -> dict[str, dict[str, RateEstimate]]:
    """Return the rows of data/rate_estimates.csv by the name of the estimate and the accelerator."""
    with ESTIMATES_FILE.open(encoding="utf-8", newline="") as lines:
        rows = TypeAdapter(tuple[RateEstimate, ...]).validate_python(tuple(csv.DictReader(lines)))
    found: dict[str, dict[str, RateEstimate]] = {}
    for row in rows:
        found.setdefault(row.estimate, {})[row.hardware] = row
    return found


def _estimated(need: RentalNeed, name: str) -> Price | None:
    """Return an estimate of the cost of the accelerators that are used, or None where there is none."""
    row = _estimates()[name].get(need.accelerator)
    if row is None:
        return None
    stated = "an estimate per accelerator, which no cloud offers"
    return Price(
        usd_per_hour=row.usd_per_accelerator_hour * need.accelerators,
        as_of=row.as_of,
        source=row.source,
        commitment="reserved-3y" if name == _RENTAL else OWNED,
        estimate=name,
        note="; ".join(n for n in (stated, row.note) if n),
    )


def _choose(offers: list[Price], reading: Reading) -> Price:
    """Return the offer that a reading means.

    The median of an even number of offers is the mean of the two middle ones, with the older date.
    """
    by_price = sorted(offers, key=_order)
    if reading in ("cheapest", SPOT):
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
        area=low.area if low.area == high.area else "",
        note="; ".join(dict.fromkeys(n for n in (low.note, high.note) if n)),
        commitment=low.commitment,
    )
