"""A running server against its plan, on the terminal, 80 columns."""

from __future__ import annotations

import math

from planner.confidence import LEVEL
from planner.drift import Drift, DriftRow
from planner.report.screen import grid
from planner.slo import human_s
from planner.terminal import console_80
from planner.verification_screen import interval_words


def show(d: Drift) -> None:
    """Print it."""
    console = console_80()
    deployment = d.prediction.plan.deployment
    console.print(
        f"{deployment['model']} on {deployment['hardware']}: {d.n_requests:,.0f} requests in {d.seconds:.0f} s"
    )
    console.print(", ".join(f"{c.name} {c.measured:.4g} (planned {c.planned:.4g})" for c in d.load))
    console.print("Predicted is for the rate of now.")
    head = ("metric", f"predicted ({LEVEL:.0%})", "now", "", "objective")
    console.print(grid(head, [_cells(row) for row in d.rows], 1, ""))
    for note in d.notes:
        console.print(f"Note: {note}")
    console.print(verdict(d))


def verdict(d: Drift) -> str:
    if d.holds:
        return "No drift: load and latencies are the plan's."
    said = [f"{name} are no longer the plan's" for name in d.shifted]
    said += [f"{row.expected.name} misses its objective" for row in d.rows if row.missed]
    for kind in ("slower", "faster"):
        names = [row.expected.name for row in d.rows if row.finding == kind]
        said += [f"{kind}: {', '.join(names)}"] * bool(names)
    return "DRIFTED: " + "; ".join(said)


def _cells(row: DriftRow) -> tuple[str, ...]:
    limit = row.expected.limit_s
    objective = "" if limit is None else f"{human_s(limit)}: {_met(row, limit)}"
    return row.expected.name, interval_words(row.expected), _now(row), row.finding, objective


def _now(row: DriftRow) -> str:
    if row.low_s == row.high_s:
        return human_s(row.value_s)
    if not math.isfinite(row.high_s):
        return f"over {human_s(row.low_s)}"
    return f"{human_s(row.low_s)} to {human_s(row.high_s)}" if row.low_s else f"up to {human_s(row.high_s)}"


def _met(row: DriftRow, limit_s: float) -> str:
    if row.missed:
        return "MISSED"
    return "met" if row.high_s <= limit_s else "unsure"
