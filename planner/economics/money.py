"""The cost of a plan from dated prices, and its energy and carbon from simulated power.

An unknown cost is None, never zero. The module also lists the prices of the same plan in every region of every cloud by
commitment, and the estimates of owning its hardware.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field

from catalogs.economics.electricity import DEFAULT_PUE
from catalogs.economics.instances import COMMITMENTS
from catalogs.economics.locations import LocatedGrid, locate_grid
from catalogs.economics.prices import (
    OWNED,
    Price,
    RentalNeed,
    RentedInstances,
    list_estimates,
    offers_by_region,
)
from catalogs.io.json_block import JsonBlock
from catalogs.ui.words import dollars
from catalogs.units import HOUR_S

#: Hours of a mean year.
HOURS_PER_YEAR: Final = 365.25 * 24

#: Hours of a mean month.
HOURS_PER_MONTH: Final = HOURS_PER_YEAR / 12

#: Joules of a kilowatt-hour.
JOULES_PER_KWH: Final = 3.6e6

#: Tokens for which unit costs are stated.
MILLION: Final = 1e6


@dataclass(frozen=True, slots=True)
class Rates:
    """The output of a deployment per second, and the power of its accelerators and hosts.

    `requests_per_s` is None if the queue grows.
    """

    output_tokens_per_s: float
    total_tokens_per_s: float
    power_w: float
    requests_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class RentedPart:
    """A number of equal instances behind a price, US dollars per hour each."""

    instance: str
    accelerators: int
    count: int
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Money:
    """The cost of a plan in US dollars; None if no price is known.

    Each figure per token or request divides the whole bill by one kind of token or by the requests, so the figures do
    not add up. A month and a year are paid around the clock. The fields after `usd_per_request` describe the offer
    behind the price: `instances` are the whole instances that are rented, of which `idle_accelerators` are not used.
    """

    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_total_tokens: float | None
    price_as_of: str | None
    price_source: str | None
    price_note: str | None = None
    usd_per_million_input_tokens: float | None = None
    usd_per_request: float | None = None
    commitment: str | None = None
    instance: str | None = None
    accelerators_per_instance: int | None = None
    usd_per_month: float | None = None
    usd_per_year: float | None = None
    cloud: str | None = None
    region: str | None = None
    instances: list[RentedPart] = field(default_factory=list)
    idle_accelerators: int | None = None


@dataclass(frozen=True, slots=True)
class Energy:
    """The energy of a plan: kWh and grams include the facility (`pue`), watts and joules are at the servers.

    `grid_reason` states why the grid is the one of the hardware; it is a default if `grid_assumed`.
    """

    w_mean: float
    j_per_output_token: float
    kwh_per_million_output_tokens: float
    gco2e_per_million_output_tokens: float | None
    pue: float
    grid_gco2e_per_kwh: float | None
    grid_source: str | None
    j_per_total_token: float | None = None
    kwh_per_million_total_tokens: float | None = None
    grid_region: str | None = None
    grid_name: str | None = None
    grid_reason: str | None = None
    grid_assumed: bool | None = None


def money(rates: Rates, price: Price | None) -> Money:
    """Return the cost per hour, month, year and request, and per million tokens at these rates, US dollars."""
    if price is None:
        return Money(None, None, None, None, None)
    per_s = price.usd_per_hour / HOUR_S
    where = " ".join(part for part in (price.cloud, *(i.instance for i in price.instances), price.region) if part)
    only = price.instances[0] if len(price.instances) == 1 else None
    return Money(
        usd_per_hour=price.usd_per_hour,
        usd_per_million_output_tokens=per_million(per_s, rates.output_tokens_per_s),
        usd_per_million_total_tokens=per_million(per_s, rates.total_tokens_per_s),
        price_as_of=price.as_of,
        price_source=f"{price.source}: {where}" if where else price.source,
        price_note=price.note or None,
        usd_per_million_input_tokens=per_million(per_s, rates.total_tokens_per_s - rates.output_tokens_per_s),
        usd_per_request=per_s / rates.requests_per_s if rates.requests_per_s else None,
        commitment=price.commitment,
        instance=None if only is None else only.instance,
        accelerators_per_instance=None if only is None else only.accelerators,
        usd_per_month=price.usd_per_hour * HOURS_PER_MONTH,
        usd_per_year=price.usd_per_hour * HOURS_PER_YEAR,
        cloud=price.cloud or None,
        region=price.region or None,
        instances=rented_parts(price),
        idle_accelerators=price.idle_accelerators if price.instances else None,
    )


def rented_parts(price: Price) -> list[RentedPart]:
    """Return the instances of a price as they are written in an answer; [] if the price is not of instances."""
    return [RentedPart(i.instance, i.accelerators, i.count, i.usd_per_hour) for i in price.instances]


def rented_words(parts: Sequence[RentedPart | RentedInstances]) -> str:
    """Return instances in words, for example "3 x g6e.xlarge (1 GPU each) at $1.86/h each"; "" without any."""
    return " + ".join(RentedInstances(p.instance, p.accelerators, p.count, p.usd_per_hour).words for p in parts)


def energy(rates: Rates, located: LocatedGrid, pue: float = DEFAULT_PUE) -> Energy | None:
    """Return the energy per token at these rates; None without output tokens or a power figure."""
    if rates.output_tokens_per_s <= 0 or math.isnan(rates.power_w):
        return None
    joules, each = rates.power_w / rates.output_tokens_per_s, rates.power_w / rates.total_tokens_per_s
    kwh = joules * MILLION / JOULES_PER_KWH * pue
    grid = located.grid
    of_grid = kwh * grid.gco2e_per_kwh, pue, grid.gco2e_per_kwh, grid.gco2e_source
    all_kwh = each * MILLION / JOULES_PER_KWH * pue
    place = grid.region, grid.name, located.reason, not located.known
    return Energy(rates.power_w, joules, kwh, *of_grid, each, all_kwh, *place)


def grid_words(used: Energy) -> str:
    """Return the grid and why it is the one of the hardware, for example "grid fi (verda FIN-02 is in Finland)"."""
    name = " ".join(filter(None, ("grid", used.grid_region)))
    return f"{name} ({used.grid_reason})" if used.grid_reason else name


def per_million(amount_per_s: float, tokens_per_s: float) -> float | None:
    """Return the amount per million tokens; None if no tokens are produced."""
    return amount_per_s / tokens_per_s * MILLION if tokens_per_s > 0 else None


def calendar_words(cost: Money) -> str:
    """Return a known price per hour, and per month and year where they are known: "$1.55/h ($1,131 a month, ...)"."""
    if cost.usd_per_hour is None:
        raise ValueError("the price is not known")
    if cost.usd_per_month is None or cost.usd_per_year is None:
        return f"{dollars(cost.usd_per_hour)}/h"
    return f"{dollars(cost.usd_per_hour)}/h (${cost.usd_per_month:,.0f} a month, ${cost.usd_per_year:,.0f} a year)"


def offer_words(cost: Money) -> str:
    """Return the offer behind a price: instances, commitment, place, date and source."""
    if cost.price_as_of == "given":
        return "price given on the command line" + (f" ({cost.price_note})" if cost.price_note else "")
    place = " ".join(filter(None, (cost.cloud, cost.region)))
    offer = [rented_words(cost.instances), CONTRACT_WORDS.get(cost.commitment or "", ""), place]
    where = " ".join(filter(None, (cost.cloud, *(i.instance for i in cost.instances), cost.region)))
    dated = f"price of {cost.price_as_of}, {str(cost.price_source).removesuffix(f': {where}')}"
    return "; ".join(filter(None, (", ".join(filter(None, offer)), cost.price_note, dated)))


#: Names of commitments in tables.
CONTRACT_WORDS: Final = {
    "on-demand": "on demand",
    "spot": "spot",
    "reserved-1y": "reserved 1 year",
    "reserved-3y": "reserved 3 years",
    OWNED: "owned",
}


def price_words(price: Price) -> str:
    """Return the commitment, the place and the date of a price, for example "spot, aws us-east-1, 2026-01-21"."""
    place = " ".join(filter(None, (price.cloud, price.region)))
    if price.estimate:
        place = f"estimate: {price.estimate}"
    return ", ".join(filter(None, (CONTRACT_WORDS.get(price.commitment, ""), place, price.as_of)))


class RegionPrice(JsonBlock):
    """The price of a plan in one region of a cloud under one contract, per hour.

    An estimate that no cloud offers has no `cloud` but a name in `estimate`. `grid_region` is the grid of the region
    and None if it is unknown.
    """

    cloud: str | None
    contract: str
    usd_per_hour: float
    instance: str | None
    region: str | None
    as_of: str
    source: str
    note: str | None
    accelerators_per_instance: int | None = None
    instances: int | None = None
    usd_per_month: float | None = None
    usd_per_year: float | None = None
    estimate: str | None = None
    rented: list[RentedPart] = Field(default_factory=list)
    grid_region: str | None = None
    gco2e_per_kwh: float | None = None

    @property
    def place(self) -> str:
        """Return the cloud and its region, or the name of the estimate."""
        return " ".join(filter(None, (self.cloud, self.region))) or f"estimate: {self.estimate}"

    def grams(self, kwh: float | None) -> float | None:
        """Return the carbon of an amount of energy in this region, gCO2e; None if it or the grid is unknown."""
        return None if kwh is None or self.gco2e_per_kwh is None else kwh * self.gco2e_per_kwh


class PriceLine(RegionPrice):
    """The price of a plan in one region under one contract, per hour and per token of the plan.

    The carbon per million output tokens is None if the grid of the region is unknown.
    """

    usd_per_million_output_tokens: float | None
    usd_per_million_total_tokens: float | None
    gco2e_per_million_output_tokens: float | None = None


def region_prices(need: RentalNeed) -> list[tuple[Price, RegionPrice]]:
    """Return the price of each region of a cloud and commitment, and of each estimate, cheapest first.

    Regions that ask the same price stay in the order in which one of them is chosen for the bill. The result is empty
    without a price.
    """
    prices = [price for commitment in COMMITMENTS for price in offers_by_region(need, commitment)]
    rows = [(price, _region_price(price)) for price in (*prices, *list_estimates(need))]
    return sorted(rows, key=lambda row: (round(row[1].usd_per_hour, 6), row[1].estimate or ""))


def _region_price(price: Price) -> RegionPrice:
    located = locate_grid(price)
    grid = located.grid if located.known else None
    only = price.instances[0] if len(price.instances) == 1 else None
    return RegionPrice(
        cloud=price.cloud or None,
        contract=CONTRACT_WORDS[price.commitment],
        usd_per_hour=price.usd_per_hour,
        instance=None if only is None else only.instance,
        region=price.region or None,
        as_of=price.as_of,
        source=price.source,
        note=price.note or None,
        accelerators_per_instance=None if only is None else only.accelerators,
        instances=price.n_instances,
        usd_per_month=price.usd_per_hour * HOURS_PER_MONTH,
        usd_per_year=price.usd_per_hour * HOURS_PER_YEAR,
        estimate=price.estimate or None,
        rented=rented_parts(price),
        grid_region=None if grid is None else grid.region,
        gco2e_per_kwh=None if grid is None else grid.gco2e_per_kwh,
    )


def price_rows(
    need: RentalNeed,
    output_tokens_per_s: float,
    total_tokens_per_s: float,
    kwh_per_million: Callable[[int], float] | None = None,
) -> list[PriceLine]:
    """Return `region_prices` per token.

    Args:
        need: The accelerators of the plan.
        output_tokens_per_s: Output tokens of the plan per second, by which the prices are divided.
        total_tokens_per_s: All tokens of the plan per second.
        kwh_per_million: Returns the energy per million output tokens, the facility included, from the number of rented
            accelerators that are not used, which differs between the instances of the regions.
    """
    found = []
    for price, row in region_prices(need):
        per_s = price.usd_per_hour / HOUR_S
        kwh = None if kwh_per_million is None else kwh_per_million(price.idle_accelerators)
        found.append(
            PriceLine(
                **dict(row),
                usd_per_million_output_tokens=per_million(per_s, output_tokens_per_s),
                usd_per_million_total_tokens=per_million(per_s, total_tokens_per_s),
                gco2e_per_million_output_tokens=row.grams(kwh),
            )
        )
    return found
