"""Look up the hourly price of the hardware of a request and the carbon intensity of its electricity."""

from __future__ import annotations

from dataclasses import dataclass, replace

from catalogs.economics.electricity import DEFAULT_REGION, Grid, load_grid
from catalogs.economics.prices import Price
from catalogs.hardware.specs import Hardware
from planner.problem.tariff import Tariff, table_price


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices of hardware under one tariff.

    Attributes:
        tariff: The tariff of the request.
        whole: The hardware that the user's own price, if given, applies to.
    """

    tariff: Tariff
    whole: Hardware

    def price(self, hardware: Hardware) -> Price | None:
        """Return the price of all of `hardware`, US dollars per hour; None if no price is known.

        The user's own price is divided in proportion to the accelerators.

        Raises:
            InputError: The cloud or the region is unknown.
        """
        if self.tariff.usd_per_hour is None:
            return table_price(hardware, self.tariff)
        whole, part = self.whole.n_accelerators, hardware.n_accelerators
        price = Price.user(self.tariff.usd_per_hour * part / whole)
        return price if part == whole else replace(price, note=f"{part} of {whole} accelerators")

    def usd_per_hour(self, hardware: Hardware) -> float | None:
        """Return the price of all of `hardware`, US dollars per hour; None if no price is known."""
        price = self.price(hardware)
        return None if price is None else price.usd_per_hour

    def grid(self) -> Grid:
        """Return the carbon intensity of the grid that supplies the hardware.

        Raises:
            InputError: The grid is unknown.
        """
        return load_grid(self.tariff.grid or DEFAULT_REGION)

    def of_other(self, hardware: Hardware) -> PriceList:
        """Return the catalog prices of other hardware; the user's own price applies to the requested hardware only."""
        return PriceList(self.tariff.replace(usd_per_hour=None), hardware)

    def check(self) -> None:
        """Look up the price and the grid once.

        Raises:
            InputError: The cloud, the region or the grid is unknown.
        """
        self.price(self.whole)
        self.grid()
