"""The electricity behind the plug: carbon intensity, industrial price, and how much of it reaches the servers."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from typing import Final

from catalogs.errors import InputError, nearest_name
from catalogs.load import DATA

FILE = DATA / "grid.csv"
DEFAULT_REGION: Final = "us"

#: Power usage effectiveness: site power over server power. Uptime Institute, Global Data Center Survey 2024: 1.56 on
#: average, 1.3 or better at newer and larger sites, which is where accelerators are.
DEFAULT_PUE: Final = 1.3

#: What the short names of data/grid.csv's source columns stand for.
SOURCES: Final = {
    "EMBER": "Ember, yearly electricity data (life cycle, generation mix), by way of Our World in Data",
    "EIA": "U.S. Energy Information Administration, Electric Power Annual, average industrial revenue per kWh",
    "EUROSTAT": "Eurostat, non-household electricity price, converted at 1.082 USD per EUR",
    "QUOTED": "industrial price as quoted in press comparisons, converted at 1.082 USD per EUR",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """One country or state. A figure that is not known here is its parent's (`*_source` says so) or None, never 0."""

    region: str
    name: str
    gco2e_per_kwh: float
    gco2e_source: str
    usd_per_kwh: float | None  # industrial price; None: not known, ask the user
    usd_source: str


@dataclass(frozen=True, slots=True)
class _Row:
    region: str
    name: str
    parent: str
    gco2e_per_kwh: float | None
    gco2e_source: str
    usd_per_kwh: float | None
    usd_source: str


def load_grid(region: str = DEFAULT_REGION) -> Grid:
    """A region by its code (`us`, `us-va`, `de`, ...; `world` is the average). Raises InputError with the nearest code.

    A state without its own carbon intensity has its country's; prices are not handed down from the world.
    """
    rows = _rows()
    found = rows.get(region.strip().lower())
    if found is None:
        named = {row.name.lower(): code for code, row in rows.items()}
        near = nearest_name(region, [*rows, *named]) or DEFAULT_REGION
        raise InputError("unknown grid region", region, named.get(near, near))
    carbon, price = _first_with_carbon(found), found if found.usd_per_kwh is not None else rows.get(found.parent)
    assert carbon.gco2e_per_kwh is not None
    return Grid(
        region=found.region,
        name=found.name,
        gco2e_per_kwh=carbon.gco2e_per_kwh,
        gco2e_source=_told(found, carbon, carbon.gco2e_source),
        usd_per_kwh=price.usd_per_kwh if price else None,
        usd_source=_told(found, price, price.usd_source) if price and price.usd_per_kwh is not None else "",
    )


def list_grids() -> list[str]:
    """Region codes, alphabetical."""
    return sorted(_rows())


def _first_with_carbon(row: _Row) -> _Row:
    while row.gco2e_per_kwh is None:
        row = _rows()[row.parent]
    return row


def _told(asked: _Row, answering: _Row, source: str) -> str:
    return source if asked is answering else f"{source}; {answering.name} for {asked.name}"


@cache
def _rows() -> dict[str, _Row]:
    with FILE.open(encoding="utf-8", newline="") as lines:
        return {record["region"]: _row(record) for record in csv.DictReader(lines)}


def _row(record: dict[str, str]) -> _Row:
    def figure(key: str) -> float | None:
        return float(record[key]) if record[key] else None

    def source(stem: str) -> str:
        return f"{SOURCES[record[f'{stem}_source']]} ({record[f'{stem}_year']})" if record[f"{stem}_source"] else ""

    return _Row(
        region=record["region"],
        name=record["name"],
        parent=record["parent"],
        gco2e_per_kwh=figure("gco2e_per_kwh"),
        gco2e_source=source("gco2e"),
        usd_per_kwh=figure("usd_per_kwh"),
        usd_source=source("usd"),
    )
