"""The `power_caps` block of an answer on the screen: a line for each limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.slo import human_s
from planner.terminal import Line


def power_cap_lines(answer: dict[str, Any]) -> Iterator[Line]:
    """Nothing where no limit was asked for."""
    caps = answer.get("power_caps")
    if caps is None:
        return
    if not caps["rows"]:
        yield "Power cap", caps["note"]
        return
    for number, row in enumerate(caps["rows"]):
        yield "Power cap" if not number else "", row_words(row)
    yield "", provenance_words(caps)


def row_words(row: dict[str, Any]) -> str:
    """ "400 W: ttft.p99 120 ms (+20 %), ..., 0.41 J per output token (-18 %)"."""
    name = "none" if row["cap_w"] is None else f"{row['cap_w']:g} W"
    if row["note"]:
        return f"{name}: {row['note']}"
    changes = row["latency_change"]
    parts = [f"{k} {human_s(v)}{_change(row, changes[k])}" for k, v in row["latency_s"].items() if v is not None]
    capacity = row["capacity_requests_per_s"]
    held = "no rate holds" if capacity is None else f"{capacity:.3g} requests/s hold"
    parts.append(held + _change(row, row["capacity_change"]))
    parts.append(f"{row['j_per_output_token']:.3g} J per output token{_change(row, row['energy_change'])}")
    missed = "" if row["met"] else "; objectives MISSED at the planned rate"
    return f"{name}: {', '.join(parts)}{missed}"


def provenance_words(caps: dict[str, Any]) -> str:
    """What is measured, and what is assumed."""
    whose = "this board" if caps["voltage_measured_here"] else f"{caps['voltage_measured_on']}, assumed here"
    felt = caps["caution"] or "where a limit is felt rests on the predicted draw (docs/costs.md)"
    return f"voltage against clock as measured on {whose}; {felt}"


def _change(row: dict[str, Any], share: float | None) -> str:
    return "" if share is None or row["cap_w"] is None else f" ({100 * share:+.0f} %)"
