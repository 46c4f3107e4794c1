"""Look up the hourly price of a deployment, and the carbon intensity of the electricity where it is rented."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from catalogs.economics.electricity import DEFAULT_PUE, DEFAULT_REGION, Grid, load_grid, read_hourly_carbon
from catalogs.economics.locations import LocatedGrid, locate_grid
from catalogs.economics.prices import Price, RentalNeed
from catalogs.hardware.specs import Hardware
from planner.economics.ownership import OwnedHardware
from planner.problem.accounting import Accounting
from planner.problem.candidate import Candidate
from planner.problem.tariff import Tariff, table_price

#: Why the grid of owned hardware is the default if `tariff.grid` names none.
OWN_PLACE_UNKNOWN: Final = "assumed: the place of the owned hardware is unknown"

#: Why the grid is that of a file of hourly carbon intensities.
GIVEN_HOURS: Final = "as given, the mean of its hours"

#: The source of its carbon intensity.
GIVEN_FILE: Final = "your file accounting.carbon_hours"


def rental_need(candidate: Candidate) -> RentalNeed:
    """Return the accelerators that a candidate uses, in the groups that must share an instance.

    A group is a replica, or its part in one node if it spans nodes. The prefill and decode replicas of a node form one
    group, because the simulation transfers KV blocks between them over the links of the node; so do the replicas of an
    encoder pool, which send embeddings.
    """
    hardware = candidate.hardware
    per_node, used = hardware.accelerators_per_node, candidate.accelerators
    if candidate.split or candidate.encoders[0]:
        return RentalNeed.of(hardware, min(used, per_node), -(-used // per_node))
    each = min(candidate.layout.accelerators, per_node)
    return RentalNeed.of(hardware, each, -(-used // each))


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices of deployments and hardware under one tariff.

    A candidate is billed for the whole instances that hold what it uses; hardware, for instances that hold its nodes.

    Attributes:
        tariff: The tariff of the request.
        whole: The hardware that the user's own price, if given, applies to.
        owned: The user's figures of owned hardware; energy and carbon are then those of its site.
        carbon_hours: File with the hourly carbon intensities of the user's own grid; None for the grids of the catalog.
    """

    tariff: Tariff
    whole: Hardware
    owned: OwnedHardware | None = None
    carbon_hours: str | None = None

    @classmethod
    def of(cls, tariff: Tariff, whole: Hardware, accounting: Accounting) -> PriceList:
        """Return the prices of hardware, with the owned hardware and the grid of the user's accounting."""
        return cls(tariff, whole, accounting.owned, accounting.carbon_hours)

    @property
    def pue(self) -> float:
        """Return the facility overhead of every kWh and gram: that of the owned hardware if given, or the default."""
        given = None if self.owned is None else self.owned.pue
        return DEFAULT_PUE if given is None else given

    def price(self, subject: Candidate | Hardware) -> Price | None:
        """Return the price of a candidate, or of all of some hardware; None if no price is known.

        The user's own price is divided in proportion to the accelerators of the hardware.

        Raises:
            InputError: The cloud or the region is unknown.
        """
        hardware = subject.hardware if isinstance(subject, Candidate) else subject
        if self.tariff.usd_per_hour is None:
            need = rental_need(subject) if isinstance(subject, Candidate) else RentalNeed.of(hardware)
            return table_price(need, self.tariff)
        whole, part = self.whole.n_accelerators, hardware.n_accelerators
        price = Price.user(self.tariff.usd_per_hour * part / whole)
        note = f"your price in proportion: {part} of {whole} accelerators"
        return price if part == whole else replace(price, note=note)

    def usd_per_hour(self, subject: Candidate | Hardware) -> float | None:
        """Return the price of a candidate or of hardware, US dollars per hour; None if no price is known."""
        price = self.price(subject)
        return None if price is None else price.usd_per_hour

    def usd_per_hour_of_replicas(self, candidate: Candidate, replicas: int) -> float | None:
        """Return the price of a number of replicas like those of a candidate; None if no price is known.

        The user's own price is divided in proportion to the replicas.
        """
        if not replicas:
            return 0.0
        if self.tariff.usd_per_hour is not None or candidate.split or candidate.encoders[0]:
            usd = self.usd_per_hour(candidate)
            return None if usd is None else usd * replicas / candidate.replicas
        return self.usd_per_hour(replace(candidate, replicas=replicas))

    def grid(self, subject: Candidate | Hardware) -> LocatedGrid:
        """Return the grid that supplies the hardware: the given one, or that of the region of the price.

        Hourly carbon intensities of the user are those of the user's own grid, which counts first, with their mean.
        Owned hardware is not in the region of a price, so its grid is the given one or the default.

        Raises:
            InputError: The grid is unknown, or the file of hourly carbon intensities cannot be read.
        """
        if self.carbon_hours is not None:
            day = read_hourly_carbon(Path(self.carbon_hours))
            return LocatedGrid(Grid(day.source, day.source, day.mean, GIVEN_FILE, None, ""), GIVEN_HOURS)
        if self.owned is not None and self.tariff.grid is None:
            return LocatedGrid(self.own_grid(), OWN_PLACE_UNKNOWN, known=False)
        return locate_grid(self.price(subject), self.tariff.grid)

    def own_grid(self) -> Grid:
        """Return the grid of the user's own hardware: the given one, or the default.

        Raises:
            InputError: The grid is unknown.
        """
        return load_grid(self.tariff.grid or DEFAULT_REGION)

    def of_other(self, hardware: Hardware) -> PriceList:
        """Return the catalog prices of other hardware; the user's own price applies to the requested hardware only."""
        return replace(self, tariff=self.tariff.replace(usd_per_hour=None), whole=hardware)

    def check(self) -> None:
        """Look up the price and the grid once.

        Raises:
            InputError: The cloud, the region or the grid is unknown.
        """
        self.grid(self.whole)
        self.own_grid()
