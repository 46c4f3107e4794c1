"""Numbers of an answer in words, each with its unit."""

from __future__ import annotations

from planner.slo import human_s


def rate(per_s: float | None) -> str:
    return "none" if per_s is None else f"{digits(per_s)} requests/s"


def plan_name(i: int) -> str:
    """Of the i-th plan of an answer."""
    return f"Alternative {i}" if i else "Best"


def dollars(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"${value:,.2f}" if abs(value) >= 0.1 or value == 0 else f"${value:.2g}"


def seconds(value: float | None) -> str:
    return "unbounded" if value is None else human_s(value)


def percent(share: float | None) -> str:
    """ "57 %"; near the ends as much as is known: "over 99 %"."""
    if share is None:
        return "unknown"
    if 0.99 < share <= 1:
        return "over 99 %"
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "under 1 %"


def change(new: float | None, old: float | None) -> str:
    """ "+12 %", empty where one is unknown."""
    return "" if not new or not old else f"{100 * (new / old - 1):+.0f} %".replace("-", "−")


def grams(value: float | None) -> str:
    return "unknown" if value is None else f"{digits(value)} g CO2e"


def joules(value: float | None) -> str:
    return "unknown" if value is None else f"{digits(value)} J"


def gigabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB"


def digits(x: float) -> str:
    """Three of them, or whole thousands: "0.123", "1,234"."""
    return f"{x:,.0f}" if x >= 1000 else f"{x:.3g}"
