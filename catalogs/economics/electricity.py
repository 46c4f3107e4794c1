"""Electricity: carbon intensity, industrial price, and power usage effectiveness.

Carbon intensity by hour of the day comes from a file of the user; the sources of the catalog have no hourly figures.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import DATA

FILE = DATA / "electricity_grids.csv"

DEFAULT_REGION: Final = "us"

#: Power usage effectiveness: site power over server power. Uptime Institute, Global Data Center Survey 2024: 1.56 on
#: average, 1.3 or better at newer and larger sites, where accelerators usually are.
DEFAULT_PUE: Final = 1.3

#: The sources behind the short names in the source columns of data/electricity_grids.csv.
SOURCES: Final = {
    "EMBER": "Ember, yearly electricity data (life cycle, generation mix), by way of Our World in Data",
    "EIA": "U.S. Energy Information Administration, Electric Power Annual, average industrial revenue per kWh",
    "EUROSTAT": "Eurostat, non-household electricity price, converted at 1.082 USD per EUR",
    "QUOTED": "industrial price as quoted in press comparisons, converted at 1.082 USD per EUR",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """The electricity grid of a country or state: its carbon intensity and its industrial price.

    An unknown figure is that of the parent region (`*_source` states this) or None, never 0.
    """

    region: str
    name: str
    gco2e_per_kwh: float
    gco2e_source: str
    usd_per_kwh: float | None  # industrial price; None: not known, so the user must give it
    usd_source: str


def load_grid(region: str = DEFAULT_REGION) -> Grid:
    """Return a region by its code (`us`, `us-va`, `de`, ...; `world` is the average).

    A state without its own carbon intensity has that of its country. Prices are never taken from the world average.

    Raises:
        InputError: The region is unknown; the message names the nearest code.
    """
    rows = _rows()
    found = rows.get(region.strip().lower())
    if found is None:
        named = {row["name"].lower(): code for code, row in rows.items()}
        near = nearest_name(region, [*rows, *named]) or DEFAULT_REGION
        raise InputError("unknown grid region", region, named.get(near, near))
    carbon, price = found, found if found["usd_per_kwh"] else rows.get(found["parent"], found)
    while not carbon["gco2e_per_kwh"]:
        carbon = rows[carbon["parent"]]
    return Grid(
        region=found["region"],
        name=found["name"],
        gco2e_per_kwh=float(carbon["gco2e_per_kwh"]),
        gco2e_source=_source(carbon, "gco2e", found),
        usd_per_kwh=float(price["usd_per_kwh"]) if price["usd_per_kwh"] else None,
        usd_source=_source(price, "usd", found) if price["usd_per_kwh"] else "",
    )


def list_grids() -> list[str]:
    """Return the region codes, sorted."""
    return sorted(_rows())


def _source(row: dict[str, str], figure: str, requested: dict[str, str]) -> str:
    """Return the source of a figure, which states the region of `row` where that is not the requested one."""
    source = f"{SOURCES[row[f'{figure}_source']]} ({row[f'{figure}_year']})"
    return source if row is requested else f"{source}; {row['name']} for {requested['name']}"


@cache
def _rows() -> dict[str, dict[str, str]]:
    """Return the rows of data/electricity_grids.csv by region; a cell whose value is not known is empty."""
    with FILE.open(encoding="utf-8", newline="") as lines:
        return {row["region"]: row for row in csv.DictReader(lines)}


#: Hours of a day.
HOURS: Final = 24

UNKNOWN: Final = "the catalog holds yearly means; give hourly figures with --set accounting.carbon_hours=FILE.csv"

_HOW: Final = "give the columns hour (0-23) or timestamp (ISO 8601), and gco2e_per_kwh"


@dataclass(frozen=True, slots=True)
class HourlyCarbon:
    """Mean grams of CO2-equivalent per kWh for each hour of the day, in the time zone of the file."""

    gco2e_per_kwh: tuple[float, ...]
    source: str

    @property
    def mean(self) -> float:
        """Return the mean over the day."""
        return sum(self.gco2e_per_kwh) / HOURS

    def cleanest(self, hours: int) -> tuple[tuple[int, ...], float]:
        """Return the `hours` hours with the least carbon, and their mean."""
        order = sorted(range(HOURS), key=lambda h: (self.gco2e_per_kwh[h], h))[:hours]
        return tuple(sorted(order)), sum(self.gco2e_per_kwh[h] for h in order) / hours


def read_hourly_carbon(path: Path) -> HourlyCarbon:
    """Read 24 rows, or any number of timestamped rows, which are averaged by hour.

    Raises:
        InputError: The file cannot be read, a column or an hour is missing, or a value is invalid.
    """
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise InputError(f"cannot read hourly carbon: {error}", str(path), hint=_HOW) from None
    return _hourly_carbon(path, changed)


@lru_cache(maxsize=8)
def _hourly_carbon(path: Path, changed: int) -> HourlyCarbon:  # noqa: ARG001 - a changed file is read again
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            columns, rows = set(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read hourly carbon: {error}", str(path), hint=_HOW) from None
    if "gco2e_per_kwh" not in columns or not columns & {"hour", "timestamp"}:
        raise InputError("the file of hourly carbon lacks a column", ", ".join(sorted(columns)) or str(path), hint=_HOW)
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(_hour(row, path), []).append(_grams(row, path))
    missing = [h for h in range(HOURS) if h not in found]
    if missing:
        raise InputError(f"{path} has no row for hour {missing[0]}", len(found), "24 hours")
    return HourlyCarbon(tuple(sum(found[h]) / len(found[h]) for h in range(HOURS)), str(path))


def _hour(row: dict[str, str], path: Path) -> int:
    text = row.get("hour") or row.get("timestamp") or ""
    try:
        hour = int(text) if row.get("hour") else datetime.fromisoformat(text).hour
    except ValueError:
        raise InputError(f"{path}: not an hour", text, hint=_HOW) from None
    if not 0 <= hour < HOURS:
        raise InputError(f"{path}: an hour must be 0 to 23", hour, hint=_HOW)
    return hour


def _grams(row: dict[str, str], path: Path) -> float:
    try:
        grams = float(row["gco2e_per_kwh"])
    except (TypeError, ValueError):
        grams = math.nan
    if not 0 <= grams < math.inf:
        raise InputError(f"{path}: gco2e_per_kwh must be a number of at least 0", row["gco2e_per_kwh"], "385")
    return grams
