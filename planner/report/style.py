"""Colours, marks, axes and small words that the figures of an answer share. Every axis names its unit in brackets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from calibration.report.axes import COLOURS, MARKS, REFERENCE
from planner.operators import COMPUTE, FIXED, LINK, MEMORY

#: Lines and fills differ by more than colour, for print and for every kind of colour vision.
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")
#: The same hues, light: of bars with words inside.
PALE: Final = ("#9CCBE8", "#F6D491", "#8FD3BE", "#EDB892", "#E6C0D6", "#C2E4F5", "#D2D6DC")
HATCHES: Final = ("", "/", ".", "x", "\\", "-", "+")
BOUND_COLOURS: Final = {COMPUTE: COLOURS[3], MEMORY: COLOURS[0], LINK: COLOURS[2], FIXED: COLOURS[6]}
MARGIN: Final = {"l": 10, "r": 20, "t": 24, "b": 10}
BELOW: Final[dict[str, Any]] = {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top", "traceorder": "normal"}


def place(i: int) -> dict[str, Any]:
    """Line and marker of the i-th thing drawn."""
    return {
        "line": {"color": COLOURS[i % len(COLOURS)], "dash": DASHES[i % len(DASHES)], "width": 2},
        "marker": {"color": COLOURS[i % len(COLOURS)], "symbol": MARKS[i % len(MARKS)], "size": 8},
    }


def bar(i: int, colour: str | None = None) -> dict[str, Any]:
    """Fill of the i-th kind of bar."""
    line = {"color": "#ffffff", "width": 0.5}
    return {"color": colour or COLOURS[i % len(COLOURS)], "pattern": hatch(HATCHES[i % len(HATCHES)]), "line": line}


def hatch(shape: str | list[str]) -> dict[str, Any]:
    """Thin lines over a fill, which stays readable under words."""
    return {"shape": shape, "solidity": 0.15, "size": 7, "fillmode": "overlay", "fgcolor": "#4a5563", "fgopacity": 0.45}


def titled(words: str, unit: str) -> dict[str, Any]:
    """The title of an axis."""
    return {"title": {"text": f"{words} ({unit})"}}


def linear(words: str, unit: str, **more: Any) -> dict[str, Any]:
    return titled(words, unit) | {"rangemode": "tozero"} | more


def log(words: str, unit: str, values: Iterable[float]) -> dict[str, Any]:
    """A logarithmic axis over `values`, the more marks in a decade the fewer decades there are."""
    seen = [v for v in values if v > 0 and math.isfinite(v)] or [1.0, 10.0]
    low, high = min(seen), max(seen)
    decades = math.log10(high / low) if high > low else 0.0
    steps = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0) if decades < 1 else (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    ticks = [m * 10.0**e for e in range(first, last + 1) for m in steps]
    edges = [math.log10(low) - 0.05 - 0.03 * decades, math.log10(high) + 0.05 + 0.03 * decades]
    marks = {"tickvals": ticks, "ticktext": [number(t) for t in ticks]}
    return titled(words, unit) | {"type": "log", "range": edges} | marks


def number(x: float) -> str:
    """Three digits, thousands set apart: 12,345 or 0.0123."""
    if x == 0 or not math.isfinite(x):
        return "0" if x == 0 else "unbounded"
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def ceiling(figure: Any, y: float, text: str) -> None:
    """A dashed line across a logarithmic axis, with words on it."""
    figure.add_hline(y=y, line={"color": COLOURS[3], "dash": "longdash", "width": 1.5})
    words = {"text": text, "showarrow": False, "font": {"size": 11}, "xref": "paper", "x": 0.01, "xanchor": "left"}
    figure.add_annotation(y=math.log10(y), yref="y", yanchor="bottom", **words)


def vertical(figure: Any, x: float, text: str, log_axis: bool = False, **where: Any) -> None:
    """A dotted line with words at its top."""
    at = math.log10(x) if log_axis else x
    line = {"color": REFERENCE, "dash": "dot", "width": 1.5}
    figure.add_vline(x=x, line=line, **where)
    words = {"text": text, "showarrow": False, "yref": "paper", "y": 1.0, "yanchor": "bottom", "font": {"size": 11}}
    figure.add_annotation(x=at, xref="x", **words)
