"""The price of an hour of hardware under the tariff of a request.

An unknown price is None; if the request names a cloud, a region or a commitment without a price, it is refused.
"""

from __future__ import annotations

import math
from typing import Annotated, Final, Self

from pydantic import model_validator

from catalogs.economics.instances import COMMITMENTS, ON_DEMAND, list_clouds
from catalogs.economics.prices import Price, RentalNeed, discounted_price, rental_price
from catalogs.errors import InputError
from catalogs.hardware.specs import Hardware
from planner.problem.key_definition import POWER, PRICE, Number, RequestModel, key, need_one_of, refuse_if

#: An example of a discount: AWS, one year without upfront payment (data/prices.csv).
_EXAMPLE_DISCOUNT: Final = "--set tariff.discount=0.37"


class Tariff(RequestModel):
    """The prices of hardware and electricity: the user's own, or how to read the catalogs."""

    usd_per_hour: Annotated[
        Number | None, key("Price of all the hardware in --hw, US dollars per hour.", PRICE, "--price", "USD")
    ] = None
    reading: Annotated[
        str,
        key(
            "Which price to use: cheapest, median, list, spot, owned-hyperscaler or owned-neocloud.",
            PRICE,
            former="--price-reading",
        ),
    ] = "cheapest"
    cloud: Annotated[str | None, key("Use the price of this cloud.", PRICE, former="--cloud")] = None
    region: Annotated[str | None, key("Use the price of this region.", PRICE, former="--region")] = None
    commitment: Annotated[
        str, key("Commitment: on-demand, spot, reserved-1y or reserved-3y.", PRICE, former="--commitment")
    ] = ON_DEMAND
    discount: Annotated[
        Number | None,
        key("Your discount on the on-demand price, as a share: 0.4.", PRICE, metavar="SHARE", former="--discount"),
    ] = None
    grid: Annotated[
        str | None, key("Electricity grid of the hardware (default: at the price's region).", POWER, former="--grid")
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        need_one_of("a commitment", self.commitment, COMMITMENTS)
        reserved = self.commitment not in (ON_DEMAND, "spot")
        rule = "tariff.reading spot excludes a reserved commitment"
        refuse_if(self.reading == "spot" and reserved, rule, self.commitment, "tariff.reading=cheapest")
        estimated = self.reading.startswith("owned-")
        for name, chosen in (("cloud", self.cloud), ("region", self.region), ("discount", self.discount)):
            rule = f"an estimated cost of owning and tariff.{name} exclude each other"
            refuse_if(estimated and chosen is not None, rule, chosen, "tariff.reading=cheapest")
        rule = "an estimated cost of owning and a commitment exclude each other"
        refuse_if(estimated and self.commitment != ON_DEMAND, rule, self.commitment, "tariff.reading=cheapest")
        price, discount, on_demand = self.usd_per_hour, self.discount, self.committed == ON_DEMAND
        if price is not None:
            refuse_if(
                not on_demand, "--price and tariff.commitment exclude each other", self.committed, "one of the two"
            )
        if discount is not None:
            refuse_if(on_demand, "a discount needs a commitment", discount, "tariff.commitment=reserved-1y")
            rule = "a discount is a share of the on-demand price between 0 and 1"
            refuse_if(not 0 < discount < 1, rule, discount, "0.35")
        if price is not None:
            rule = "a price is a number of US dollars per hour above zero"
            refuse_if(not 0 < price < math.inf, rule, price, "24.5" if price > 0 or math.isnan(price) else "0.01")
            for name, chosen in (("cloud", self.cloud), ("region", self.region)):
                rule = f"--price and tariff.{name} exclude each other"
                refuse_if(chosen is not None, rule, chosen, f"--price or tariff.{name}")
        return self

    @property
    def chooses_offers(self) -> bool:
        """Return whether the tariff names a cloud, a region or a commitment, so that other offers do not count."""
        return self.cloud is not None or self.region is not None or self.committed != ON_DEMAND

    @property
    def words(self) -> str:
        """Return the commitment, the cloud and the region in words, for example "spot aws us-east-1"."""
        return " ".join(n for n in (self.committed, self.cloud, self.region) if n)

    @property
    def committed(self) -> str:
        """Return the commitment; the reading `spot` implies the commitment `spot`."""
        return "spot" if self.reading == "spot" else self.commitment


def table_price(need: RentalNeed, tariff: Tariff) -> Price | None:
    """Return the catalog's price of what is needed, after the user's discount; None if the catalog has none.

    Raises:
        InputError: The cloud, the region or the reading is unknown.
    """
    if tariff.discount is not None:
        listed = _read(need, tariff, ON_DEMAND)
        return None if listed is None else discounted_price(listed, tariff.committed, tariff.discount)
    return _read(need, tariff, tariff.committed)


def least_or_given_price(hardware: Hardware, tariff: Tariff) -> Price | None:
    """Return the price that the user gives, or else the least price of hardware; None if it is unknown."""
    return least_price(hardware, tariff) if tariff.usd_per_hour is None else Price.user(tariff.usd_per_hour)


def least_price(hardware: Hardware, tariff: Tariff) -> Price | None:
    """Return the least that all accelerators of `hardware` can cost, each in any instance; None if unknown.

    Raises:
        InputError: The cloud, the region or the reading is unknown.
    """
    return table_price(RentalNeed.of(hardware, together=1), tariff)


def require_price(hardware: Hardware, tariff: Tariff) -> None:
    """Check that a price exists if the tariff names a cloud, a region or a commitment.

    Raises:
        InputError: No such price of this hardware is known; the error names the nearest choice that has one.
    """
    need = RentalNeed.of(hardware, together=1)
    if tariff.usd_per_hour is not None or not tariff.chooses_offers or table_price(need, tariff) is not None:
        return
    where = " ".join(n for n in (tariff.cloud, tariff.region) if n)
    rule = f"no {tariff.committed} price of {hardware.text} is known{f' at {where}' if where else ''}"
    raise InputError(rule, None, _nearest(need, tariff))


def _read(need: RentalNeed, tariff: Tariff, commitment: str) -> Price | None:
    reading = "cheapest" if tariff.reading == "spot" else tariff.reading
    return rental_price(need, reading, tariff.cloud, tariff.region, commitment)


def _nearest(need: RentalNeed, tariff: Tariff) -> str:
    """Return a choice with a price: another commitment, the user's discount, another cloud, or the user's price."""
    here = [c for c in COMMITMENTS if _read(need, tariff, c) is not None]
    if here:
        others = f"--set tariff.commitment={here[0]}" + (f" ({', '.join(here)} are known)" if len(here) > 1 else "")
        reserved = ON_DEMAND in here and tariff.committed not in (ON_DEMAND, "spot")
        return f"{_EXAMPLE_DISCOUNT} (yours), or {others}" if reserved else others
    clouds = [c for c in list_clouds() if _read(need, tariff.replace(cloud=c, region=None), tariff.committed)]
    if clouds:
        known = f" ({', '.join(clouds)} are known)" if len(clouds) > 1 else ""
        return f"--set tariff.cloud={clouds[0]}{known}"
    return "--price USD_PER_HOUR"
