"""The screens of `plan verify` and `plan drift`: predictions next to measured latencies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from catalogs.ui.terminal import open_console, text_table
from catalogs.ui.words import human_s, percent
from planner.verify.drift import Drift, DriftRow
from planner.verify.prediction import Expected, Prediction
from planner.verify.verification import MOST_FAILED, Comparison, PlanVerification, Row

#: Most names in a list on the screen.
_NAMED: Final = 4

#: One table row: metric, predicted, measured, finding, objective.
Cells = tuple[str, str, str, str, str]


def show_runs(found: Sequence[PlanVerification]) -> None:
    """Print every measured run next to its predictions, and after several runs one line for each."""
    for v in found:
        show_run(v)
    if len(found) > 1:
        console = open_console()
        for v in found:
            console.print(f"{v.run.source}, {v.at.text}: {run_verdict(v)}")


def show_run(v: PlanVerification) -> None:
    """Print a measured run next to the predictions of its plan."""
    verdicts = {None: "unknown", True: "met", False: "missed"}
    rows = [_cells(row.expected, human_s(row.measured_s), row.finding, verdicts[row.objective_met]) for row in v.rows]
    summary = f"{v.run.n:,} requests of {v.run.client}, {v.run.source}"
    _print(v.prediction, summary, v.load, ("measured", rows), (*v.notes, run_verdict(v)))


def show_server(d: Drift) -> None:
    """Print a running server next to the plan's predictions for the server's current rate."""
    rows = []
    for row in d.rows:
        met = "missed" if row.missed else "met" if row.measured_high_s <= (row.expected.limit_s or 0.0) else "undecided"
        rows.append(_cells(row.expected, _bucket(row), row.finding, met))
    summary = f"{d.n_requests:,.0f} requests in {d.seconds:.0f} s; predictions are for the current rate"
    _print(d.prediction, summary, d.load, ("now", rows), (*d.notes, server_verdict(d)))


def _print(
    prediction: Prediction,
    summary: str,
    load: Sequence[Comparison],
    column: tuple[str, list[Cells]],
    remarks: Sequence[str],
) -> None:
    """Print both sides; `column` is the name of the measurements with all rows, and the last remark is the verdict."""
    console, deployment = open_console(), prediction.plan.deployment
    console.print(f"{deployment['model']} on {deployment['hardware']}: {summary}")
    console.print(", ".join(map(_load_words, load)))
    head = ("metric", f"predicted ({percent(prediction.level)})", column[0], "finding", "objective")
    console.print(text_table(head, column[1], 1, ""))
    for note in remarks[:-1]:
        console.print(f"Note: {note}")
    console.print(remarks[-1])


def _load_words(c: Comparison) -> str:
    return f"{c.name} {c.measured:.4g} ({'simulated' if c.simulated else 'planned'} {c.planned:.4g})"


def run_verdict(v: PlanVerification) -> str:
    """Return one sentence on whether the measured run is as predicted."""
    if v.holds:
        return "As predicted: every measured latency lies inside its interval."
    n = sum(row.finding in ("inside", "faster", "slower") for row in v.rows)
    reasons = [f"{row.expected.name} misses its objective" for row in v.missed if row.objective_met is False]
    for kind, names in _off(v.missed):
        reasons.append(f"{len(names)} of {n} figures are {kind} ({_some(names)})")
    if v.failed_fraction > MOST_FAILED:
        reasons.append(f"{percent(v.failed_fraction, 1)} of requests failed")
    return "NOT as predicted: " + ", ".join(reasons)


def server_verdict(d: Drift) -> str:
    """Return one sentence on whether the running server still matches the plan."""
    if d.holds:
        return "No drift: load and latencies match the plan."
    reasons = [f"{name} changed from the plan" for name in d.shifted]
    reasons += [f"{row.expected.name} misses its objective" for row in d.rows if row.missed]
    reasons += [f"{kind}: {_some(names)}" for kind, names in _off(d.rows)]
    return "DRIFTED: " + "; ".join(reasons)


def _off(rows: Iterable[Row | DriftRow]) -> list[tuple[str, list[str]]]:
    """Return the names of the slower and of the faster statistics, without empty kinds."""
    found: dict[str, list[str]] = {"slower": [], "faster": []}
    for row in rows:
        if row.finding in found:
            found[row.finding].append(row.expected.name)
    return [(kind, names) for kind, names in found.items() if names]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _cells(expected: Expected, measured: str, finding: str, met: str) -> Cells:
    objective = "" if expected.limit_s is None else f"{human_s(expected.limit_s)}: {met}"
    return expected.name, predicted_interval_text(expected), measured, finding, objective


def predicted_interval_text(expected: Expected) -> str:
    """Return the predicted value with its interval."""
    high = human_s(expected.high_s) if math.isfinite(expected.high_s) else "no upper bound"
    return f"{human_s(expected.value_s)} ({human_s(expected.low_s)} to {high})"


def _bucket(row: DriftRow) -> str:
    """Return the histogram bucket that holds a quantile; a mean is exact."""
    low, high = row.measured_low_s, row.measured_high_s
    if low == high:
        return human_s(row.measured_s)
    if not math.isfinite(high):
        return f"more than {human_s(low)}"
    return f"{human_s(low)} to {human_s(high)}" if low else f"up to {human_s(high)}"
