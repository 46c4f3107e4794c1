"""Carbon intensity by hour of the day, from the user's file: none of the catalog's sources holds hourly figures."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from catalogs.errors import InputError

HOURS: Final = 24
UNKNOWN: Final = "the catalog holds yearly means; hourly figures are yours to give (--carbon-hours FILE.csv)"
_HOW: Final = "columns hour (0-23) or timestamp (ISO 8601), and gco2e_per_kwh"


@dataclass(frozen=True, slots=True)
class DayOfCarbon:
    """Mean grams of CO2-equivalent per kWh of each hour of the day, as the file's clock has them."""

    gco2e_per_kwh: tuple[float, ...]
    source: str

    @property
    def mean(self) -> float:
        return sum(self.gco2e_per_kwh) / HOURS

    def cleanest(self, hours: int) -> tuple[tuple[int, ...], float]:
        """The hours of least carbon, and their mean."""
        order = sorted(range(HOURS), key=lambda h: (self.gco2e_per_kwh[h], h))[:hours]
        return tuple(sorted(order)), sum(self.gco2e_per_kwh[h] for h in order) / hours


def read_day(path: Path) -> DayOfCarbon:
    """24 rows, or any number of time stamps, averaged by hour. Raises InputError for what is missing or no number."""
    found: dict[int, list[float]] = {}
    for row in _rows(path):
        hour, grams = _hour(row, path), _grams(row, path)
        found.setdefault(hour, []).append(grams)
    missing = [h for h in range(HOURS) if h not in found]
    if missing:
        raise InputError(f"{path} has no row for hour {missing[0]}", len(found), "24 hours")
    return DayOfCarbon(tuple(sum(found[h]) / len(found[h]) for h in range(HOURS)), str(path))


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            columns = set(reader.fieldnames or ())
            if "gco2e_per_kwh" not in columns or not columns & {"hour", "timestamp"}:
                raise InputError("hourly carbon needs its columns", ", ".join(sorted(columns)) or str(path), _HOW)
            return list(reader)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read hourly carbon: {error}", str(path), _HOW) from None


def _hour(row: dict[str, str], path: Path) -> int:
    text = row.get("hour") or row.get("timestamp") or ""
    try:
        hour = int(text) if row.get("hour") else datetime.fromisoformat(text).hour
    except ValueError:
        raise InputError(f"{path}: this is no hour", text, _HOW) from None
    if not 0 <= hour < HOURS:
        raise InputError(f"{path}: an hour is 0 to 23", hour, _HOW)
    return hour


def _grams(row: dict[str, str], path: Path) -> float:
    try:
        grams = float(row["gco2e_per_kwh"])
    except (TypeError, ValueError):
        grams = math.nan
    if not 0 <= grams < math.inf:
        raise InputError(f"{path}: gco2e_per_kwh is a number, not below zero", row["gco2e_per_kwh"], "385")
    return grams
