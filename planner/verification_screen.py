"""A verification on the terminal, 80 columns."""

from __future__ import annotations

import math
from typing import Final

from planner.confidence import LEVEL
from planner.prediction import Expected
from planner.report.screen import grid
from planner.slo import human_s
from planner.terminal import console_80
from planner.verification import MOST_FAILED, PlanVerification, Row

_NAMED: Final = 4


def show(v: PlanVerification) -> None:
    """Print it."""
    console = console_80()
    deployment = v.prediction.plan.deployment
    console.print(f"{deployment['model']} on {deployment['hardware']}: {v.run.n:,} requests of {v.run.client}")
    console.print(", ".join(f"{c.name} {c.measured:.4g} (planned {c.planned:.4g})" for c in v.load))
    head = ("metric", f"predicted ({LEVEL:.0%})", "measured", "reality", "objective")
    console.print(grid(head, [_cells(row) for row in v.rows], 1, ""))
    for note in v.notes:
        console.print(f"Note: {note}")
    console.print(verdict(v))


def verdict(v: PlanVerification) -> str:
    if v.holds:
        return "As predicted: every latency measured fell inside its interval."
    n = sum(row.finding in ("inside", "faster", "slower") for row in v.rows)
    said = [f"{row.expected.name} misses its objective" for row in v.missed if row.met is False]
    for kind in ("slower", "faster"):
        names = [row.expected.name for row in v.missed if row.finding == kind]
        said += [f"{len(names)} of {n} figures are {kind} ({', '.join(names[:_NAMED])}" + _rest(names) + ")"] * bool(
            names
        )
    if v.failed_fraction > MOST_FAILED:
        said.append(f"{v.failed_fraction:.1%} of requests failed")
    return "NOT as predicted: " + ", ".join(said)


def _cells(row: Row) -> tuple[str, ...]:
    limit = row.expected.limit_s
    objective = "" if limit is None else f"{human_s(limit)}: {_met(row.met)}"
    return row.expected.name, interval_words(row.expected), human_s(row.measured_s), row.finding, objective


def interval_words(expected: Expected) -> str:
    high = human_s(expected.high_s) if math.isfinite(expected.high_s) else "no end"
    return f"{human_s(expected.value_s)} ({human_s(expected.low_s)} to {high})"


def _met(met: bool | None) -> str:
    return "untold" if met is None else "met" if met else "MISSED"


def _rest(names: list[str]) -> str:
    return ", ..." if len(names) > _NAMED else ""
