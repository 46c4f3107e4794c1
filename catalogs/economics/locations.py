"""The place of a price, and the electricity grid there: data/cloud_regions.csv."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol

from catalogs.economics.electricity import DEFAULT_REGION, Grid, load_grid
from catalogs.io.yaml_files import DATA

FILE = DATA / "cloud_regions.csv"

#: The sources behind the short names in the source column of data/cloud_regions.csv.
SOURCES: Final = {
    "AWS": "AWS, Regions (docs.aws.amazon.com/global-infrastructure/latest/regions)",
    "AZURE": "Microsoft, Azure geographies (azure.microsoft.com/explore/global-infrastructure/geographies)",
    "GCP": "Google Cloud, regions (docs.cloud.google.com/compute/docs/regions-zones)",
    "DO": "DigitalOcean, regional availability (docs.digitalocean.com/platform/regional-availability)",
    "LAMBDA": "Lambda, public cloud regions (docs.lambda.ai/public-cloud)",
    "NEBIUS": "Nebius, regions (docs.nebius.com/overview/regions)",
    "NAME": "the name of the region",
}

#: Parts of the world in data/prices.csv that have one grid.
_AREA_GRIDS: Final = {"us": "us"}


@dataclass(frozen=True, slots=True)
class CloudRegion:
    """One region of a cloud: the place in words, the code of its electricity grid, and the source of both."""

    cloud: str
    region: str
    place: str
    grid: str
    source: str


class Place(Protocol):
    """Where an offer is, as its source states it: a cloud, a region (may be empty) and a part of the world."""

    @property
    def cloud(self) -> str:
        """Return the cloud; empty if no cloud sells the offer."""

    @property
    def region(self) -> str:
        """Return the region of the cloud; empty if the source names none."""

    @property
    def area(self) -> str:
        """Return the part of the world; empty if unknown."""


@dataclass(frozen=True, slots=True)
class LocatedGrid:
    """A grid with the reason why it is the one of the hardware; `known` is False for the assumed default."""

    grid: Grid
    reason: str
    known: bool = True


@cache
def list_cloud_regions() -> dict[tuple[str, str], CloudRegion]:
    """Return the regions of data/cloud_regions.csv by cloud and region, both in lower case."""
    with FILE.open(encoding="utf-8", newline="") as lines:
        rows = [CloudRegion(**row) for row in csv.DictReader(lines)]
    return {(row.cloud.lower(), row.region.lower()): row for row in rows}


def locate_grid(place: Place | None, given: str | None = None) -> LocatedGrid:
    """Return the grid that supplies rented hardware: the given one, else that of its region, else the default.

    If the region is unknown, a part of the world that has one grid is used.

    Raises:
        InputError: The given grid is unknown.
    """
    if given is not None:
        return LocatedGrid(load_grid(given), "as given")
    default = load_grid(DEFAULT_REGION)
    if place is None or not place.cloud:
        return LocatedGrid(default, "assumed: the place is unknown", known=False)
    where = f"{place.cloud} {place.region}".strip()
    row = list_cloud_regions().get((place.cloud.lower(), place.region.lower()))
    if row is not None:
        return LocatedGrid(load_grid(row.grid), f"{where} is in {row.place}")
    code = _AREA_GRIDS.get(place.area)
    if code is None:
        return LocatedGrid(default, f"assumed: the grid of {where} is unknown", known=False)
    return LocatedGrid(load_grid(code), f"{where} names no region, only a part of the world with this grid")
