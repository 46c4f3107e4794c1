"""What an hour of a question's hardware costs, and the carbon intensity of its electricity."""

from __future__ import annotations

from dataclasses import dataclass, replace

from catalogs.economics.electricity import DEFAULT_REGION, Grid, load_grid
from catalogs.economics.prices import Price
from catalogs.hardware.specs import Hardware
from planner.problem.tariff import Tariff, table_price


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices under one tariff. whole: the hardware that the user's own price, if there is one, pays for."""

    tariff: Tariff
    whole: Hardware

    def price(self, hardware: Hardware) -> Price | None:
        """US dollars per hour of all of `hardware`; None where no price is known.

        The user's own price is shared by accelerators. Raises InputError for a cloud or region that is unknown.
        """
        if self.tariff.usd_per_hour is None:
            return table_price(hardware, self.tariff)
        whole, part = self.whole.n_accelerators, hardware.n_accelerators
        price = Price.user(self.tariff.usd_per_hour * part / whole)
        return price if part == whole else replace(price, note=f"{part} of {whole} accelerators")

    def grid(self) -> Grid:
        """Carbon intensity where the hardware stands. Raises InputError for a grid that is unknown."""
        return load_grid(self.tariff.grid or DEFAULT_REGION)

    def of_other(self, hardware: Hardware) -> PriceList:
        """The prices of other hardware, looked up: the user's own price was for the hardware they named."""
        return PriceList(self.tariff.replace(usd_per_hour=None), hardware)

    def check(self) -> None:
        """Look both up once. Raises InputError for a cloud, a region or a grid that is unknown."""
        self.price(self.whole)
        self.grid()
