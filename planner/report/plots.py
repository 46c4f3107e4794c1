"""Traces of the report's figures: bars, lines and marks as plotly's dictionaries, and one function that draws them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from catalogs.ui.charts import BELOW, MARGIN, bar_style, linear_axis

#: One set of bars, one line or one set of marks, in the keys of plotly's reference.
Trace = dict[str, Any]

#: Milliseconds of a second.
MS: Final = 1e3

#: Texts inside bars, centred and upright, on pale colours.
_INSIDE: Final[Trace] = {
    "textposition": "inside",
    "insidetextanchor": "middle",
    "textangle": 0,
    "textfont": {"color": "#10151b"},
}

_AT_END: Final[Trace] = {"textposition": "outside", "cliponaxis": False}


def bars(
    values: Iterable[tuple[str, float | None, str]], i: int = 0, colour: str = "", inside: bool = False, **style: Any
) -> Trace:
    """Return horizontal bars.

    Args:
        values: Name, length and text of each bar.
        i: Index of this kind of bar in the figure, which selects its colour and its pattern.
        colour: Colour in place of that of the index.
        inside: Whether the texts are inside the bars; otherwise they are at the ends.
        style: Further keys of the trace.
    """
    names, lengths, texts = columns(values, 3)
    trace = {"type": "bar", "orientation": "h", "y": names, "x": lengths, "text": texts, "hoverinfo": "skip"}
    return trace | {"marker": bar_style(i, colour or None)} | (_INSIDE if inside else _AT_END) | style


def line(points: Iterable[Sequence[Any]], name: str, **style: Any) -> Trace:
    """Return a line through points of (x, y) or (x, y, text); `style` holds further keys, `mode` for marks."""
    rows = list(points)
    trace = dict(zip(("x", "y", "text"), columns(rows, len(rows[0]) if rows else 2), strict=False))
    return {"type": "scatter", "mode": "lines", "name": name, **trace, **style}


def columns(rows: Iterable[Sequence[Any]], n: int) -> list[list[Any]]:
    """Return the `n` columns of rows."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(n)]


def big_mark(symbol: str, colour: str, **style: Any) -> Trace:
    """Return the marker of a single point that must stand out, drawn as an outline."""
    return {"symbol": symbol, "size": 12, "line": {"width": 3, "color": colour}, **style}


def percent_axis(words: str, top: float, **more: Any) -> Trace:
    """Return a linear axis of per cent from zero to `top`."""
    return linear_axis(words, "%", range=[0, top], **more)


def names_axis(words: str, **more: Any) -> Trace:
    """Return the axis of the names of bars, the first name at the top."""
    return {"autorange": "reversed", "showgrid": False, "title": {"text": words}, **more}


@dataclass(slots=True)
class PlotlyFigure:
    """A figure in the keys of plotly's reference, which plotly.js draws; plotly for Python is not needed for it.

    Attributes:
        data: What the figure shows, the lowest layer first.
        layout: Axes, legend, shapes and annotations.
    """

    data: list[Trace]
    layout: Trace

    def add_hline(self, y: float, line: Trace) -> None:
        """Add a horizontal line across the chart area."""
        self._add("shapes", {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line})

    def add_vline(self, x: float, line: Trace) -> None:
        """Add a vertical line across the chart area."""
        self._add("shapes", {"type": "line", "yref": "y domain", "y0": 0, "y1": 1, "x0": x, "x1": x, "line": line})

    def add_annotation(self, **keys: Any) -> None:
        """Add a text with these keys."""
        self._add("annotations", keys)

    def to_json(self) -> str:
        """Return the figure as JSON."""
        return json.dumps({"data": self.data, "layout": self.layout}, allow_nan=False)

    def _add(self, kind: str, item: Trace) -> None:
        self.layout.setdefault(kind, []).append(item)


def draw(traces: Iterable[Trace], x: Trace, y: Trace, legend_y: float = -0.2, **layout: Any) -> PlotlyFigure:
    """Return a figure with its legend below.

    Args:
        traces: What the figure shows, the lowest layer first.
        x: Horizontal axis.
        y: Vertical axis.
        legend_y: Top of the legend as a fraction of the height of the chart area, negative below it.
        layout: Further keys of the layout.
    """
    legend = BELOW | {"y": legend_y}
    return PlotlyFigure(list(traces), {"xaxis": x, "yaxis": y, "legend": legend, "margin": MARGIN, **layout})
