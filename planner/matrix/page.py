"""The HTML page of a matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from catalogs.ui.charts import number_text
from catalogs.ui.html_page import (
    Markup,
    Page,
    PageSection,
    bullets,
    cards,
    chart,
    command,
    footer_of,
    note,
    paragraph,
    table,
)
from catalogs.ui.words import counted, dollars, human_s
from planner.matrix import figures, request_lengths
from planner.matrix.comparison import GROUP_HEAD, MatrixComparison
from planner.matrix.matrix_run import MatrixResult
from planner.matrix.row import MatrixRow

FOOTER: Final = footer_of("plan matrix")

#: Values outside their interval that the page lists; --json holds all of them.
MOST_OUTSIDE: Final = 40

#: Pixels of a line of a heat map, and of its head.
_LINE, _HEAD = 26, 90


def matrix_page(result: MatrixResult) -> Page:
    """Return the page of a matrix."""
    rows = [row for row in result.rows if row.is_cell]
    sections = [_verdicts(rows)] if rows else []
    if result.matrix is not None and any(row.verdict == "ok" for row in rows):
        sections += _heat_maps(rows, result.matrix.batches)
        sections += [section for section in (_complexity(rows), _ratios(rows), _scaling(rows)) if section is not None]
    if result.comparison is not None:
        sections.append(_measured(result.comparison))
    if rows:
        sections.append(_reproduction(rows))
    sections.append(PageSection("Notices", [bullets(result.notices)]))
    name = "measurements" if result.matrix is None else result.matrix.name
    return Page(f"Matrix: {name}", f"{counted(len(result.rows), 'row')}, one for each cell", sections, FOOTER)


def _verdicts(rows: Sequence[MatrixRow]) -> PageSection:
    verdicts = Counter(row.verdict for row in rows)
    rules = Counter((row.verdict, row.rule, row.nearest or "") for row in rows if row.verdict != "ok")
    parts = [cards([(verdict, counted(n, "cell")) for verdict, n in verdicts.most_common()])]
    if rules:
        lines = [(verdict, rule, nearest, f"{n}") for (verdict, rule, nearest), n in rules.most_common()]
        parts.append(table(("verdict", "rule", "nearest choice", "cells"), lines, words=3))
    return PageSection("Cells", parts)


Axes = tuple[str, ...]


def _groups(rows: Sequence[MatrixRow]) -> dict[Axes, list[MatrixRow]]:
    """Return the rows by the axes other than model, engine and batch."""
    found: dict[Axes, list[MatrixRow]] = {}
    for row in rows:
        axes = (row.workload, row.hardware, row.precision, row.layout, row.load, row.origin)
        found.setdefault(axes, []).append(row)
    return found


def _heat_maps(rows: Sequence[MatrixRow], batches: Sequence[int]) -> list[PageSection]:
    """Return one section for each figure, with one heat map for each group of rows."""
    kinds = (
        ("End-to-end time", "mean end-to-end time of a request", _e2e, human_s),
        ("Throughput", "output tokens per second", _throughput, number_text),
        ("Cost", "US dollars per million output tokens", _cost, dollars),
        ("Energy", "joules per output token, with hosts", _energy, number_text),
    )
    sections = []
    for title, words, value, text in kinds:
        parts: list[Markup] = []
        for axes, members in _groups(rows).items():
            if not any(row.verdict == "ok" and value(row) for row in members):
                continue
            lines = len({(row.model, row.engine) for row in members})
            caption = f"{words}; {', '.join(axes)}"
            parts.append(chart(figures.heat_map(members, batches, value, text), caption, _HEAD + _LINE * lines))
        if parts:
            sections.append(PageSection(title, parts))
    return sections


def _e2e(row: MatrixRow) -> float | None:
    return row.statistic("e2e_s", "mean")


def _throughput(row: MatrixRow) -> float | None:
    return (row.metrics or {}).get("output_tokens_per_s")


def _cost(row: MatrixRow) -> float | None:
    return None if row.cost is None else row.cost.usd_per_million_output_tokens


def _energy(row: MatrixRow) -> float | None:
    return row.statistic("energy", "total_j_per_output_token")


def _complexity(rows: Sequence[MatrixRow]) -> PageSection | None:
    """Return end-to-end time against output length, for the largest batch of each model."""
    parts = []
    for axes, members in _groups(rows).items():
        for model in dict.fromkeys(row.model for row in members):
            mine = [row for row in members if row.model == model and row.verdict == "ok" and row.complexity]
            if not mine:
                continue
            most = max(row.batch for row in mine)
            figure = figures.ribbons([row for row in mine if row.batch == most])
            caption = f"{model}, batch {most}: mean, and from the median to the 95th percentile; {', '.join(axes)}"
            parts.append(chart(figure, caption))
    return PageSection("Time against request length", parts, "Length") if parts else None


def _ratios(rows: Sequence[MatrixRow]) -> PageSection | None:
    """Return the ratios of engines at equal complexity."""
    found = request_lengths.ratios(rows)
    if not found:
        return None
    batches = sorted({first.batch for first, _, _ in found})
    lines: dict[Axes, dict[int, float]] = {}
    for first, other, value in found:
        axes = (first.model, first.workload, first.hardware, first.origin, other.engine, first.engine)
        lines.setdefault(axes, {})[first.batch] = value
    head = ("model", "workload", "hardware", "origin", "engine", "reference", *(f"batch {b}" for b in batches))
    body = [[*axes, *(f"{v:.3g}" if (v := row.get(b)) else "" for b in batches)] for axes, row in lines.items()]
    text = "Mean end-to-end times with the same weights of the same bins of request length; 2 is twice as slow."
    return PageSection("Engines at equal complexity", [paragraph(text), table(head, body, words=6)], "Engines")


def _scaling(rows: Sequence[MatrixRow]) -> PageSection | None:
    """Return output tokens per second against the batch, one figure for each model."""
    parts = []
    for axes, members in _groups(rows).items():
        for model in dict.fromkeys(row.model for row in members):
            mine = [row for row in members if row.model == model and row.verdict == "ok"]
            if len({row.batch for row in mine}) > 1:
                parts.append(chart(figures.scaling(mine), f"{model}; {', '.join(axes)}"))
    return PageSection("Scaling with the batch", parts, "Scaling") if parts else None


def _measured(found: MatrixComparison) -> PageSection:
    """Return the errors of predictions, and the measured values outside the stated interval."""
    parts = [table(GROUP_HEAD, found.group_rows(), words=3)]
    outside = found.outside
    if outside:
        parts.append(note(f"{len(outside)} of {len(found.values)} measured values lie outside the stated interval."))
        stated = [
            (v.cell, v.metric, human_s(v.measured_s), human_s(v.predicted_s), _interval(v.low_s, v.high_s))
            for v in outside[:MOST_OUTSIDE]
        ]
        heads = ("cell", "metric", "measured", "predicted", "stated interval")
        parts.append(table(heads, stated, "The furthest outside; --json lists all.", words=2))
    parts.append(bullets(f"left out, {counted(n, 'row')}: {rule}" for rule, n in found.unpredicted))
    return PageSection("Predicted against measured", parts, "Measured")


def _interval(low_s: float | None, high_s: float | None) -> str:
    return "none" if low_s is None or high_s is None else f"{human_s(low_s)} to {human_s(high_s)}"


def _reproduction(rows: Sequence[MatrixRow]) -> PageSection:
    """Return the command of the first cell with figures; the table of --csv holds that of every cell."""
    first = next((row for row in rows if row.command), None)
    text = "Every row of --csv and --json holds the command that reproduces it, for example:"
    return PageSection("Reproduction", [paragraph(text), command("" if first is None else first.command)])
