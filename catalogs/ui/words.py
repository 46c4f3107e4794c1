"""Numbers as text with their units, and durations as users write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.units import HOUR_S

#: Amounts of USD below this are written with an exponent.
_LEAST_DOLLARS: Final = 1e-9


def human_s(value_s: float) -> str:
    """Return seconds with three digits and a suitable unit: 0.0123 -> "12.3 ms", 10800.0 -> "3 h"."""
    if not math.isfinite(value_s):
        return "unbounded"
    if value_s >= 0.9995:
        return f"{value_s:.3g} s" if value_s < 999.5 else duration_text(value_s)
    return f"{value_s * 1e3:.3g} ms" if value_s >= 0.9995e-3 or value_s == 0 else f"{value_s * 1e6:.3g} µs"


def rate(per_s: float | None, unit: str = "requests/s") -> str:
    """Return a rate of requests, or of another unit, as text; "none" for None."""
    return "none" if per_s is None else f"{digits(per_s)} {unit}"


def counted(n: float, noun: str) -> str:
    """Return a number of things in words: "1 request", "1,000 requests"."""
    return f"{n:,.0f} {noun}{'' if n == 1 else 's'}"


def plan_name(i: int) -> str:
    """Return the name of the i-th plan of an answer."""
    return f"Alternative {i}" if i else "Best"


def with_sign(value: float, decimals: int = 0) -> str:
    """Return a difference with its sign, "+12" or "−3.5"; one that rounds to zero has no sign.

    Every difference of a screen or page has this form.
    """
    text = f"{value:+,.{decimals}f}"
    return text[1:] if float(f"{value:.{decimals}f}") == 0 else text.replace("-", "−")


def dollars(value: float | None) -> str:
    """Return an amount of USD as text, with two digits where it is small ("$0.000053"); "unknown" for None."""
    if value is None:
        return "unknown"
    if abs(value) >= 0.1 or value == 0:
        return f"${value:,.2f}"
    short = f"{value:.2g}"
    return f"${Decimal(short):f}" if abs(value) >= _LEAST_DOLLARS else f"${short}"


def extra_dollars(value: float | None) -> str:
    """Return a difference of costs in USD with its sign, "+$0.31" or "−$1.00"; "unknown" for None."""
    if value is None:
        return "unknown"
    text = with_sign(value, 2)
    return f"{text[0]}${text[1:]}" if text[0] in "+−" else f"${text}"


def seconds(value: float | None) -> str:
    """Return a duration as text; "unbounded" for None."""
    return "unbounded" if value is None else human_s(value)


def percent(share: float | None, decimals: int = 0, signed: bool = False) -> str:
    """Return a fraction as percent, such as "57 %"; every percentage of a screen or page has this form.

    Whole percents near 0 and 1 become "under 1 %" and "over 99 %", unless they are exact.

    Args:
        share: The fraction; None is "unknown".
        decimals: Digits after the decimal point.
        signed: Whether it is a difference, such as "+12 %" (see `with_sign`).
    """
    if share is None:
        return "unknown"
    if signed:
        return f"{with_sign(100 * share, decimals)} %"
    if not decimals and 0.99 < share < 1:
        return "over 99 %"
    if not decimals and 0 < share < 0.01:
        return "under 1 %"
    return f"{100 * share:,.{decimals}f} %"


def were(n: int) -> str:
    """Return a number of things with its verb: "1 was", "1,000 were"."""
    return f"{n:,} {'was' if n == 1 else 'were'}"


def unused_accelerators_words(n: int, total: int, name: str) -> str:
    """Return the words for accelerators that are not used: "1 of the 4 accelerators of h100x4 is not used"."""
    return f"{n} of the {total} accelerators of {name} {'is' if n == 1 else 'are'} not used"


def whole_percents(parts: Sequence[float]) -> list[str]:
    """Return the shares of parts in their sum as percent, whose whole numbers add up to 100.

    They are rounded down, and the parts that lose most by it are rounded up. Parts that are 0 % or 100 % only then
    are "under 1 %" and "over 99 %".

    Args:
        parts: Numbers of at least zero, not all of them zero.
    """
    total = sum(parts)
    exact = [100 * part / total for part in parts]
    whole = [math.floor(share) for share in exact]
    by_loss = sorted(range(len(parts)), key=lambda i: whole[i] - exact[i])
    for i in by_loss[: 100 - sum(whole)]:
        whole[i] += 1
    is_rounded = (n in (0, 100) for n in whole)
    return [
        percent(share / 100 if rounded else n / 100) for n, share, rounded in zip(whole, exact, is_rounded, strict=True)
    ]


def evidence_words(block: Mapping[str, Any]) -> str:
    """Return the shares of a time by its evidence in words: "6 % measured, 85 % interpolated, 9 % roofline only".

    They add up to 100 %. A share from the tables of another accelerator is named only if there is one.

    Args:
        block: The keys `measured_fraction`, `interpolated_fraction` and `roofline_fraction`, all 0 if no time was
            spent; and `borrowed_fraction` and `borrowed_from`, the accelerator that lends its tables, where they apply.
    """
    lender = block.get("borrowed_from") or "another accelerator"
    words = {"measured": "measured", "interpolated": "interpolated"}
    if block.get("borrowed_fraction"):
        words["borrowed"] = f"borrowed from {lender}"
    words["roofline"] = "roofline only"
    parts = [block[f"{name}_fraction"] for name in words]
    shares = whole_percents(parts) if sum(parts) > 0 else [percent(part) for part in parts]
    return ", ".join(f"{share} {word}" for share, word in zip(shares, words.values(), strict=True))


def shares_words(parts: Mapping[str, float], most: int) -> str:
    """Return named parts as shares of their sum that add up to 100 %: "gemm 62 %, idle 38 %".

    Args:
        parts: Amounts by name, the largest first.
        most: How many are named; the others together are the last share, "other", if they are a percent.
    """
    named = list(parts)[:most]
    amounts = [*(parts[name] for name in named), sum(list(parts.values())[most:])]
    *shares, other = whole_percents(amounts)
    words = [f"{name} {share}" for name, share in zip(named, shares, strict=True)]
    return ", ".join([*words, f"other {other}"] if other not in ("0 %", "under 1 %") else words)


def sure_percent(probability: float | None) -> str:
    """Return a confidence as whole percent, rounded down: one that is not reached never reads as if it were."""
    if probability is None or probability < 0.01:
        return percent(probability)
    if probability > 0.99:
        return "over 99 %"
    return percent(math.floor(100 * probability + 1e-9) / 100)


def change(new: float | None, old: float | None) -> str:
    """Return a relative change, such as "+12 %"; empty where a value is unknown."""
    return "" if not new or not old else percent(new / old - 1, signed=True)


def grams(value: float | None) -> str:
    """Return a mass of CO2-equivalent as text; "unknown" for None."""
    return "unknown" if value is None else f"{digits(value)} gCO2e"


def watt_hours(value: float | None) -> str:
    """Return an energy in watt-hours as text; "unknown" for None."""
    return "unknown" if value is None else f"{digits(value)} Wh"


def joules(value: float | None) -> str:
    """Return an energy as text; "unknown" for None."""
    return "unknown" if value is None else f"{digits(value)} J"


def kilowatts(watts: float) -> str:
    """Return a power in kilowatts with two decimals; every power is rounded only here, once."""
    return f"{watts / 1e3:,.2f} kW"


def gigabytes(n_bytes: float) -> str:
    """Return bytes as decimal gigabytes."""
    return f"{n_bytes / 1e9:.1f} GB"


def digits(x: float) -> str:
    """Return a number with three digits, or in whole units from 1,000: "0.123", "1,234"."""
    return f"{x:,.0f}" if x >= 999.5 else f"{x:.3g}"


_UNITS: Final = {"s": 1.0, "min": 60.0, "m": 60.0, "h": HOUR_S, "d": 24 * HOUR_S, "y": 365.25 * 24 * HOUR_S}

_SHOWN: Final = (("d", 24 * HOUR_S), ("h", HOUR_S), ("min", 60.0))


def parse_duration(text: str) -> float:
    """Return the seconds in a duration such as "30d", "10min", "90s" or "2h".

    Raises:
        InputError: The text is not a positive number with a unit.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(s|min|m|h|d|y)\s*", text.lower())
    if found is None or not float(found[1]) > 0:
        raise InputError(f"a duration must be a number above zero with a unit: {', '.join(_UNITS)}", text, "10min")
    return float(found[1]) * _UNITS[found[2]]


def exact_duration(value_s: float) -> str:
    """Return an exact duration that `parse_duration` reads back: 120.0 -> "2min"."""
    for unit, size_s in (("h", HOUR_S), ("min", 60.0)):
        if value_s >= size_s and value_s % size_s == 0:
            return f"{value_s / size_s:.0f}{unit}"
    return f"{repr(float(value_s)).removesuffix('.0')}s"


def duration_text(value_s: float) -> str:
    """Return a duration in the largest unit that is not above it, such as "2.5 d" or "1,200 d"."""
    for unit, size_s in _SHOWN:
        if value_s >= size_s:
            return f"{digits(value_s / size_s)} {unit}"
    return f"{digits(value_s)} s"


def hours_text(value_s: float) -> str:
    """Return a time of day or a long duration in hours, such as "14.5 h", and below one hour as "184 s" or "30 min"."""
    return f"{value_s / HOUR_S:.3g} h" if value_s >= HOUR_S or value_s == 0 else human_s(value_s)
