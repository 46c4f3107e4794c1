"""The price of an hour of hardware under the tariff of a request.

An unknown price is None; if the request names a cloud, a region or a commitment without a price, it is refused.
"""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from catalogs.economics.prices import COMMITMENTS, ON_DEMAND, Price, discounted_price, list_clouds, node_price
from catalogs.errors import InputError, nearest_name
from catalogs.hardware.specs import Hardware
from planner.problem.request_model import POWER, PRICE, Number, RequestModel, option

#: An example of a discount: AWS, one year without upfront payment (data/prices.csv).
_EXAMPLE_DISCOUNT: Final = "--set tariff.discount=0.37"


class Tariff(RequestModel):
    """The prices of hardware and electricity: the user's own, or how to read the catalogs."""

    usd_per_hour: Annotated[
        Number | None,
        Field(
            description="Price of all the hardware in --hw, US dollars per hour.",
            json_schema_extra=option("--price", PRICE, metavar="USD"),
        ),
    ] = None
    reading: Annotated[
        str,
        Field(
            description="Which price of the catalog to use: cheapest, median, list or spot.",
            json_schema_extra=option(panel=PRICE, former=["--price-reading"]),
        ),
    ] = "cheapest"
    cloud: Annotated[
        str | None,
        Field(description="Use the price of this cloud.", json_schema_extra=option(panel=PRICE, former=["--cloud"])),
    ] = None
    region: Annotated[
        str | None,
        Field(description="Use the price of this region.", json_schema_extra=option(panel=PRICE, former=["--region"])),
    ] = None
    commitment: Annotated[
        str,
        Field(
            description="Commitment: on-demand, spot, reserved-1y or reserved-3y.",
            json_schema_extra=option(panel=PRICE, former=["--commitment"]),
        ),
    ] = ON_DEMAND
    discount: Annotated[
        Number | None,
        Field(
            description="Your discount on the on-demand price, as a share: 0.4.",
            json_schema_extra=option(panel=PRICE, metavar="SHARE", former=["--discount"]),
        ),
    ] = None
    grid: Annotated[
        str | None,
        Field(
            description="Electricity grid of the hardware (default: us).",
            json_schema_extra=option(panel=POWER, former=["--grid"]),
        ),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.commitment not in COMMITMENTS:
            near = nearest_name(self.commitment, COMMITMENTS) or ON_DEMAND
            raise InputError(f"a commitment is one of {', '.join(COMMITMENTS)}", self.commitment, near)
        if self.reading == "spot" and self.commitment not in (ON_DEMAND, "spot"):
            rule = "tariff.reading spot excludes a reserved commitment"
            raise InputError(rule, self.commitment, "tariff.reading=cheapest")
        if self.usd_per_hour is not None and self.committed != ON_DEMAND:
            raise InputError("--price and tariff.commitment exclude each other", self.committed, "one of the two")
        if self.discount is not None and self.committed == ON_DEMAND:
            raise InputError("a discount needs a commitment", self.discount, "tariff.commitment=reserved-1y")
        if self.discount is not None and not 0 < self.discount < 1:
            raise InputError("a discount is a share of the on-demand price between 0 and 1", self.discount, "0.35")
        self._check_own_price()
        return self

    def _check_own_price(self) -> None:
        price = self.usd_per_hour
        if price is None:
            return
        if not 0 < price < float("inf"):
            raise InputError("a price is a number of US dollars per hour above zero", price, "24.5")
        for name, chosen in (("cloud", self.cloud), ("region", self.region)):
            if chosen is not None:
                rule = f"--price and tariff.{name} exclude each other"
                raise InputError(rule, chosen, f"--price or tariff.{name}")

    @property
    def committed(self) -> str:
        """Return the commitment; the reading `spot` implies the commitment `spot`."""
        return "spot" if self.reading == "spot" else self.commitment


def table_price(hardware: Hardware, tariff: Tariff) -> Price | None:
    """Return the catalog's price of all of `hardware` after the user's discount; None if the catalog has none.

    Raises:
        InputError: The cloud, the region or the reading is unknown.
    """
    if tariff.discount is not None:
        listed = _read(hardware, tariff, ON_DEMAND)
        return None if listed is None else discounted_price(listed, tariff.committed, tariff.discount)
    return _read(hardware, tariff, tariff.committed)


def require_price(hardware: Hardware, tariff: Tariff) -> None:
    """Check that a price exists if the tariff names a cloud, a region or a commitment.

    Raises:
        InputError: No such price of this hardware is known; the error names the nearest choice that has one.
    """
    named = [tariff.cloud, tariff.region, None if tariff.committed == ON_DEMAND else tariff.committed]
    if tariff.usd_per_hour is not None or not any(named) or table_price(hardware, tariff) is not None:
        return
    where = " ".join(n for n in (tariff.cloud, tariff.region) if n)
    rule = f"no {tariff.committed} price of {hardware.text} is known{f' at {where}' if where else ''}"
    raise InputError(rule, None, _nearest(hardware, tariff))


def _read(hardware: Hardware, tariff: Tariff, commitment: str) -> Price | None:
    reading = "cheapest" if tariff.reading == "spot" else tariff.reading
    return node_price(hardware, reading, tariff.cloud, tariff.region, commitment)  # type: ignore[arg-type]


def _nearest(hardware: Hardware, tariff: Tariff) -> str:
    """Return a choice with a price: another commitment, the user's discount, another cloud, or the user's price."""
    here = [c for c in COMMITMENTS if _read(hardware, tariff, c) is not None]
    if here:
        others = f"--set tariff.commitment={here[0]}" + (f" ({', '.join(here)} are known)" if len(here) > 1 else "")
        reserved = ON_DEMAND in here and tariff.committed not in (ON_DEMAND, "spot")
        return f"{_EXAMPLE_DISCOUNT} (yours), or {others}" if reserved else others
    clouds = [c for c in list_clouds() if _read(hardware, tariff.replace(cloud=c, region=None), tariff.committed)]
    if clouds:
        known = f" ({', '.join(clouds)} are known)" if len(clouds) > 1 else ""
        return f"--set tariff.cloud={clouds[0]}{known}"
    return "--price USD_PER_HOUR"
