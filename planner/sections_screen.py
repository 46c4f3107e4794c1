"""The sections of an answer on the screen: its users in a closed loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.accounts_screen import accounts_lines
from planner.over_time_screen import over_time_lines
from planner.power_caps_screen import power_cap_lines
from planner.quality import quality_lines
from planner.terminal import Line
from planner.words import seconds


def section_lines(answer: dict[str, Any]) -> Iterator[Line]:
    """Of whatever sections the answer has."""
    if "closed_loop" in answer:
        yield from users_lines(answer["closed_loop"])
    if "over_time" in answer:
        yield from over_time_lines(answer["over_time"])
    yield from accounts_lines(answer)
    yield from power_cap_lines(answer)
    yield from quality_lines(answer)


def users_lines(loop: dict[str, Any]) -> Iterator[Line]:
    """Of a `closed_loop` block."""
    span = f"{per_s(loop['ci_low_per_s'])} to {per_s(loop['ci_high_per_s'])}"
    rate = f"they make {per_s(loop['requests_per_s'])} requests/s ({loop['ci_level']:.0%} interval {span})"
    reckoned = f"{per_s(loop['open_requests_per_s'])} was reckoned with, arriving at random"
    yield "Users", f"{loop['users']} simulated as they wait and think: {rate}; {reckoned}"
    for row in loop["slo"]:
        verdict = "met" if row["met"] else "MISSED"
        values = f"{seconds(row['value_s'])} ({seconds(row['ci_low_s'])} to {seconds(row['ci_high_s'])})"
        yield "", f"{row['metric']}.{row['stat']} = {values}: {verdict}, {row['probability_met']:.0%} sure"


def per_s(value: float | None) -> str:
    """A rate, three digits."""
    return "unknown" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
