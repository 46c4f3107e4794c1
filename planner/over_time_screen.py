"""A load over time on the screen: what it is, and the ways to have replicas for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from planner.durations import hours_words
from planner.slo import human_s
from planner.terminal import Line
from planner.words import seconds

_NAMES: Final = {"peak": "for the peak", "mean": "for the mean", "autoscaled": "autoscaled"}


def over_time_lines(found: dict[str, Any]) -> Iterator[Line]:
    """Of the answer's block `over_time`."""
    rates = " to ".join(f"{found[k]:.3g}" for k in ("trough_per_s", "peak_per_s"))
    each = f"a replica carries {found['replica_carries_per_s']:.3g}, {found['replica_carries_sure']:.0%} sure"
    yield (
        "Load",
        f"{found['n_requests']:,} requests in {hours_words(found['duration_s'])}, {rates} requests/s in windows of "
        f"{human_s(found['window_s'])}, {found['mean_per_s']:.3g} on average; {each}",
    )
    for option in found["options"]:
        yield "Replicas", _option(option, found["cheapest"])
        for row in option["slo"]:
            span = f"{seconds(row['ci_low_s'])} to {seconds(row['ci_high_s'])}"
            verdict = "met" if row["met"] else "MISSED"
            sure = f"{verdict}, {row['probability_met']:.0%} sure"
            worst = f"worst window {seconds(row['worst_window_s'])} at {hours_words(row['worst_at_s'])}"
            yield "", f"  {row['metric']}.{row['stat']} = {seconds(row['value_s'])} ({span}): {sure}; {worst}"
        if option["scaling"] is not None:
            yield "", f"  {_scaling(option, found)}"
            yield "", "  by hour: " + " ".join(f"{n:.3g}" for n in option["replicas_over_time"])
    yield "Cheapest", _cheapest(found)


def _option(option: dict[str, Any], cheapest: str | None) -> str:
    name = _NAMES[option["name"]]
    count = f"{option['replicas']}" if option["replicas"] else f"{option['replicas_mean']:.3g} on average"
    money = "" if option["usd_per_day"] is None else f", ${option['usd_per_day']:,.0f} a day"
    held = "holds" if option["holds"] else "FAILS"
    span = f"{option['windows_met_ci_low']:.0%} to {option['windows_met_ci_high']:.0%}"
    windows = f"{option['windows_met']:.0%} of {option['n_windows']} windows met ({span})"
    best = ", the cheapest that holds" if option["name"] == cheapest else ""
    hours_ = f"{option['accelerator_hours_per_day']:,.4g} accelerator-hours a day"
    return f"{name}: {count}, {hours_}{money}, {option['kwh_per_day']:,.3g} kWh: {held}, {windows}{best}"


def _scaling(option: dict[str, Any], found: dict[str, Any]) -> str:
    scaling = option["scaling"]
    return (
        f"by {scaling['metric']}, target {scaling['target']:.3g} a replica, {scaling['min_replicas']} to "
        f"{scaling['max_replicas']} replicas; {human_s(found['cold_start_s'])} from an order to the first request"
    )


def _cheapest(found: dict[str, Any]) -> str:
    hours_ = f"{found['least_accelerator_hours_per_day']:,.4g} accelerator-hours a day"
    least = f"following every window without delay would take {hours_}"
    if found["cheapest"] is None:
        return f"none of the three holds every objective; {least}"
    by_name = {option["name"]: option for option in found["options"]}
    key = "accelerator_hours_per_day" if by_name["peak"]["usd_per_day"] is None else "usd_per_day"
    saved = 1 - by_name[found["cheapest"]][key] / by_name["peak"][key]
    against = "" if found["cheapest"] == "peak" else f", {saved:.0%} less than for the peak"
    return f"{_NAMES[found['cheapest']]}{against}; {least}"
