"""Lengths of time as people write and read them, beyond the seconds of a latency."""

from __future__ import annotations

import re
from typing import Final

from catalogs.errors import InputError

HOUR_S: Final = 3600.0
_UNITS: Final = {"s": 1.0, "min": 60.0, "m": 60.0, "h": HOUR_S, "d": 24 * HOUR_S, "y": 365.25 * 24 * HOUR_S}
_SHOWN: Final = (("d", 24 * HOUR_S), ("h", HOUR_S), ("min", 60.0))


def seconds_of(text: str) -> float:
    """ "30d", "10min", "90s", "2h" in seconds. Raises InputError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|m|h|d|y)\s*", text.lower())
    if found is None or not float(found[1]) > 0:
        raise InputError(f"a length of time is a number above zero with a unit: {', '.join(_UNITS)}", text, "10min")
    return float(found[1]) * _UNITS[found[2]]


def long_words(value_s: float) -> str:
    """In the largest unit of which there is a whole one: "2.5 d"."""
    for unit, size_s in _SHOWN:
        if value_s >= size_s:
            return f"{value_s / size_s:.3g} {unit}"
    return f"{value_s:.3g} s"


def hours_words(value_s: float) -> str:
    """ "14.5 h"."""
    return f"{value_s / HOUR_S:.3g} h"
