"""The screen of `plan matrix`: latency by batch of every row of cells, verdicts, and errors against measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from catalogs.ui.terminal import open_console, show_lines, text_table
from catalogs.ui.words import counted, human_s, percent
from planner.matrix.comparison import GROUP_HEAD, ComparedValue, MatrixComparison
from planner.matrix.matrix_run import MatrixResult
from planner.matrix.row import NO_FIGURE, MatrixRow

if TYPE_CHECKING:
    from rich.table import Table

#: Values outside the stated interval that the screen lists.
_FURTHEST = 5

#: Rules of cells without figures that the screen lists.
_RULES = 8


def show_matrix(result: MatrixResult) -> None:
    """Print the latencies of a matrix, the rules of cells without figures, and the comparison with measurements."""
    console = open_console()
    if result.matrix is not None:
        for origin in ("simulated", "measured"):
            rows = [row for row in result.rows if row.origin == origin and row.is_cell]
            if rows:
                console.print(_table(result.matrix.batches, rows, origin))
        _show_refusals([row for row in result.rows if row.is_cell])
    if result.comparison is not None:
        _show_errors(result, result.comparison)
        _show_comparison(result.comparison)
    show_lines([("" if i else "Notices", notice) for i, notice in enumerate(result.notices)])


def _table(batches: Sequence[int], rows: Sequence[MatrixRow], origin: str) -> Table:
    """Return mean end-to-end latency by batch, one line for each combination of the other axes."""
    lines: dict[tuple[str, ...], dict[int, MatrixRow]] = {}
    for row in rows:
        axes = (row.model, row.engine, row.hardware, row.workload, row.precision, row.layout, row.load)
        lines.setdefault(axes, {})[row.batch] = row
    names = ("model", "engine", "hardware", "workload", "precision", "layout", "load")
    varied = [i for i in range(len(names)) if i < 2 or len({axes[i] for axes in lines}) > 1]
    head = [*(names[i] for i in varied), *(f"{b}" for b in batches)]
    body = [[*(axes[i] for i in varied), *(_cell(found.get(b)) for b in batches)] for axes, found in lines.items()]
    return text_table(head, body, len(varied), f"mean end-to-end time of a request by batch, {origin}")


def _cell(row: MatrixRow | None) -> str:
    """Return the time of a cell, or the word for its verdict."""
    if row is None:
        return ""
    if row.verdict != "ok":
        return NO_FIGURE[row.verdict]
    mean = row.statistic("e2e_s", "mean")
    return "none" if mean is None else human_s(mean)


def _show_refusals(rows: Sequence[MatrixRow]) -> None:
    """Print the number of cells by verdict, and the rules of those without figures."""
    verdicts = Counter(row.verdict for row in rows)
    show_lines([("Cells", ", ".join(f"{n} {verdict}" for verdict, n in verdicts.most_common()))])
    rules = Counter((row.verdict, row.rule, row.nearest) for row in rows if row.verdict != "ok").most_common()
    for (verdict, rule, nearest), n in rules[:_RULES]:
        more = f"; nearest: {nearest}" if nearest else ""
        show_lines([("", f"{counted(n, 'cell')}, {verdict}: {rule}{more}")])
    if len(rules) > _RULES:
        show_lines([("", f"{counted(len(rules) - _RULES, 'more rule')}: see --csv or --json")])


def _show_errors(result: MatrixResult, found: MatrixComparison) -> None:
    """Print the error of every mean of the cells that were measured here, and the noise of its measurement."""
    errors = {(value.cell, value.metric): value.error for value in found.values}
    body = []
    for row in result.rows:
        if not row.is_cell or row.origin != "measured" or (row.cell, "e2e_s.mean") not in errors:
            continue
        means = [errors.get((row.cell, f"{name}.mean")) for name in ("e2e_s", "tpot_s", "ttft_s")]
        shown = ["none" if error is None else percent(error, 1, signed=True) for error in means]
        noise = (row.noise or {}).get("e2e_s")
        axes = (row.model, row.engine, row.workload, f"{row.batch}", _cell(row))
        body.append([*axes, *shown, "unknown" if noise is None else percent(noise, 1)])
    if body:
        head = ("model", "engine", "workload", "batch", "measured", "E2E", "TPOT", "TTFT", "noise")
        open_console().print(
            text_table(
                head,
                body,
                3,
                "simulated against measured means of each cell; noise of its end-to-end time",
            )
        )


def _show_comparison(found: MatrixComparison) -> None:
    """Print the errors by accelerator and engine, and the values that lie furthest outside their interval."""
    open_console().print(text_table(GROUP_HEAD, found.group_rows(), 3, "predicted against measured"))
    outside = found.outside
    if outside:
        share = f"{len(outside)} of {len(found.values)}"
        show_lines([("Outside", f"{share} measured values lie outside the stated interval; the furthest:")])
    for value in outside[:_FURTHEST]:
        show_lines([("", _value_words(value))])
    for rule, n in found.unpredicted:
        show_lines([("Left out", f"{counted(n, 'row')}: {rule}")])


def _value_words(value: ComparedValue) -> str:
    """Return a compared value in words."""
    stated = f"stated {human_s(value.low_s or 0.0)} to {human_s(value.high_s or 0.0)}"
    return f"{value.cell}: measured {human_s(value.measured_s)}, predicted {human_s(value.predicted_s)}, {stated}"
