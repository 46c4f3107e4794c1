"""The figures of a matrix: heat maps by batch, latency against request length, and scaling with the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from catalogs.ui.charts import COLOURS, logarithmic_axis, number_text, series_style
from catalogs.ui.words import human_s
from planner.matrix.request_lengths import length_points
from planner.matrix.row import NO_FIGURE, MatrixRow
from planner.report.plots import PlotlyFigure, Trace, draw, line

#: Colours of a heat map from the least to the largest value; they also differ in lightness.
_SCALE: Final = [[0.0, "#f2f7fb"], [0.5, "#7db3d8"], [1.0, "#0a4a7a"]]

_WITHOUT_VALUE: Final = "#d5d9df"


def heat_map(
    rows: Sequence[MatrixRow],
    batches: Sequence[int],
    value: Callable[[MatrixRow], float | None],
    text: Callable[[float], str],
) -> PlotlyFigure:
    """Return a heat map of a figure: one line for each model and engine, one column for each batch.

    Args:
        rows: Rows of one workload, hardware, precision, layout and load.
        batches: The columns.
        value: Returns the figure of a row; None where it has none.
        text: Returns the figure as text.
    """
    names = list(dict.fromkeys((row.model, row.engine) for row in rows))
    found = {(row.model, row.engine, row.batch): row for row in rows}
    z: list[list[float | None]] = []
    texts: list[list[str]] = []
    for name in names:
        cells = [found.get((*name, batch)) for batch in batches]
        values = [None if cell is None or cell.verdict != "ok" else value(cell) for cell in cells]
        z.append([math.log10(v) if v else None for v in values])
        texts.append([_cell_text(cell, v, text) for cell, v in zip(cells, values, strict=True)])
    trace: Trace = {
        "type": "heatmap",
        "x": [f"batch {batch}" for batch in batches],
        "y": [f"{model}, {engine}" for model, engine in names],
        "z": z,
        "text": texts,
        "texttemplate": "%{text}",
        "hoverinfo": "text",
        "colorscale": _SCALE,
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
    }
    axis: dict[str, Any] = {"autorange": "reversed", "type": "category", "automargin": True}
    return draw([trace], {"type": "category", "side": "top"}, axis)


def _cell_text(cell: MatrixRow | None, value: float | None, text: Callable[[float], str]) -> str:
    if cell is None:
        return ""
    return NO_FIGURE.get(cell.verdict, "none") if value is None else text(value)


def scaling(rows: Sequence[MatrixRow]) -> PlotlyFigure:
    """Return output tokens per second against the batch, one line for each engine; rows are those of one model."""
    traces = []
    for i, engine in enumerate(dict.fromkeys(row.engine for row in rows)):
        mine = [row for row in rows if row.engine == engine]
        rates_by_batch = {row.batch: (row.metrics or {}).get("output_tokens_per_s") for row in mine}
        points = [
            (batch, rate, f"{engine}, batch {batch}: {number_text(rate)} tokens/s")
            for batch, rate in rates_by_batch.items()
            if rate
        ]
        traces.append(line(points, engine, mode="lines+markers", hoverinfo="text", **series_style(i)))
    batches = [x for trace in traces for x in trace["x"]]
    rates = [y for trace in traces for y in trace["y"]]
    return draw(traces, logarithmic_axis("Batch", "requests", batches), logarithmic_axis("Output", "tokens/s", rates))


def ribbons(rows: Sequence[MatrixRow]) -> PlotlyFigure:
    """Return end-to-end time against output length, one ribbon for each engine.

    The line is the mean of the requests of a bin of output length, the ribbon extends from their median to their 95th
    percentile. Rows are those of one model and batch.
    """
    traces: list[Trace] = []
    values: list[float] = []
    lengths: list[float] = []
    for i, row in enumerate(rows):
        points = length_points(row)
        if not points:
            continue
        style = series_style(i)
        x = [p["tokens"] for p in points]
        upper, lower = [p["p95"] for p in points], [p["p50"] for p in points]
        values += upper + lower
        lengths += x
        band = {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        fill = COLOURS[i % len(COLOURS)]
        traces.append(line(zip(x, upper, strict=True), row.engine, **band))
        traces.append(
            line(zip(x, lower, strict=True), row.engine, fill="tonexty", fillcolor=_pale(fill), opacity=0.3, **band)
        )
        texts = [f"{row.engine}: {p['tokens']:.0f} tokens, {human_s(p['mean'])}" for p in points]
        means = zip(x, [p["mean"] for p in points], texts, strict=True)
        traces.append(line(means, row.engine, mode="lines+markers", hoverinfo="text", **style))
    return draw(
        traces,
        logarithmic_axis("Output length", "tokens", lengths),
        logarithmic_axis("End-to-end time", "s", values),
    )


def _pale(colour: str) -> str:
    """Return a colour with a quarter of its opacity."""
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.25)"
