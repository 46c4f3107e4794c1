"""Colours, markers, axes and labels shared by all charts; every axis states its unit in brackets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

from catalogs.ui.words import percent

#: Lines and fills also differ by dash and pattern, for print and for every kind of colour vision.
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")

#: Light versions of COLOURS, for bars that contain text.
PALE: Final = ("#9CCBE8", "#F6D491", "#8FD3BE", "#EDB892", "#E6C0D6", "#C2E4F5", "#D2D6DC")

HATCHES: Final = ("", "/", ".", "x", "\\", "-", "+")

#: Margins of a figure in pixels.
MARGIN: Final = {"l": 10, "r": 20, "t": 24, "b": 10}

BELOW: Final[dict[str, Any]] = {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top", "traceorder": "normal"}


def series_style(i: int) -> dict[str, Any]:
    """Return the line and the marker of the i-th series."""
    return {
        "line": {"color": COLOURS[i % len(COLOURS)], "dash": DASHES[i % len(DASHES)], "width": 2},
        "marker": {"color": COLOURS[i % len(COLOURS)], "symbol": MARKS[i % len(MARKS)], "size": 8},
    }


def bar_style(i: int, colour: str | None = None) -> dict[str, Any]:
    """Return the fill of the i-th kind of bar."""
    line = {"color": "#ffffff", "width": 0.5}
    return {"color": colour or COLOURS[i % len(COLOURS)], "pattern": hatch(HATCHES[i % len(HATCHES)]), "line": line}


def hatch(shape: str | list[str]) -> dict[str, Any]:
    """Return a pattern of thin lines on which text stays readable."""
    return {"shape": shape, "solidity": 0.15, "size": 7, "fillmode": "overlay", "fgcolor": "#4a5563", "fgopacity": 0.45}


def linear_axis(words: str, unit: str, **more: Any) -> dict[str, Any]:
    """Return a linear axis from zero."""
    return {"title": {"text": f"{words} ({unit})"}, "rangemode": "tozero"} | more


def logarithmic_axis(words: str, unit: str, values: Iterable[float]) -> dict[str, Any]:
    """Return a logarithmic axis over `values`, with more ticks per decade where there are fewer decades."""
    seen = [v for v in values if v > 0 and math.isfinite(v)] or [1.0, 10.0]
    low, high = min(seen), max(seen)
    decades = math.log10(high / low) if high > low else 0.0
    steps = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0) if decades < 1 else (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    ticks = [m * 10.0**e for e in range(first, last + 1) for m in steps]
    edges = [math.log10(low) - 0.05 - 0.03 * decades, math.log10(high) + 0.05 + 0.03 * decades]
    return _log_axis(f"{words} ({unit})", edges, ticks, [number_text(t) for t in ticks])


def _log_axis(title: str, edges: list[float], ticks: list[float], texts: list[str]) -> dict[str, Any]:
    return {"type": "log", "title": {"text": title}, "range": edges, "tickvals": ticks, "ticktext": texts}


def number_text(x: float) -> str:
    """Return a number with three digits, or with thousands separated: 12,345 or 0.0123."""
    if x == 0 or not math.isfinite(x):
        return "0" if x == 0 else "unbounded"
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def limit_line(figure: Any, y: float, text: str) -> None:
    """Draw a labelled dashed line across a logarithmic axis."""
    figure.add_hline(y=y, line={"color": COLOURS[3], "dash": "longdash", "width": 1.5})
    words = {"text": text, "showarrow": False, "font": {"size": 11}, "xref": "paper", "x": 0.01, "xanchor": "left"}
    figure.add_annotation(y=math.log10(y), yref="y", yanchor="bottom", **words)


def vertical_line(figure: Any, x: float, text: str, log_axis: bool = False, **where: Any) -> None:
    """Draw a vertical dotted line with a label at its top."""
    at = math.log10(x) if log_axis else x
    figure.add_vline(x=x, line={"color": REFERENCE, "dash": "dot", "width": 1.5}, **where)
    words = {"text": text, "showarrow": False, "yref": "paper", "y": 1.0, "yanchor": "bottom", "font": {"size": 11}}
    figure.add_annotation(x=at, xref="x", **words)


#: The palette of Okabe and Ito, distinguishable with every kind of colour vision.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C8C8C", "#7A5195")

MARKS: Final = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down")

FEW_DECADES: Final = 2.0  # axes with fewer decades have ticks at 2 and 5 too

REFERENCE: Final = "#808893"

LEGEND_BELOW: Final[dict[str, Any]] = {"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top"}


def family_colour(family: str) -> str:
    """Return the colour of an operator family."""
    return COLOURS[_place(family)]


def family_marker(family: str) -> str:
    """Return the marker of an operator family."""
    return MARKS[_place(family)]


def _place(family: str) -> int:
    names = list(FAMILY_WORDS)
    return (names.index(family) if family in names else len(names)) % len(COLOURS)


def time_axis(title: str, low_s: float, high_s: float) -> dict[str, Any]:
    """Return a logarithmic axis of seconds with ticks such as 10 µs, 1 ms, 100 ms."""
    return _decades(title, low_s, high_s, time_text)


def count_axis(title: str, low: float, high: float, unit: str) -> dict[str, Any]:
    """Return a logarithmic axis with ticks such as 1 k, 10 M, 1 G and the unit."""
    return _decades(title, low, high, lambda x: si_text(x, unit))


def _decades(title: str, low: float, high: float, text: Callable[[float], str]) -> dict[str, Any]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first) / 8))
    values = [10.0**e for e in range(first, last + 1, step)]
    if math.log10(high / low) < FEW_DECADES:
        values = [m * v for v in values for m in (1.0, 2.0, 5.0)]
    edges = [math.log10(low) - 0.12, math.log10(high) + 0.12]
    return _log_axis(title, edges, values, [text(v) for v in values])


def ratio_axis(title: str, largest: float) -> dict[str, Any]:
    """Return a logarithmic axis of predicted over measured, in signed per cent, for ratios up to `largest` (> 1)."""
    steps = [r for r in (1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0) if r <= largest * 1.001][-3:]
    values = [1 / r for r in reversed(steps)] + [1.0] + steps
    text = [percent(v - 1, signed=True) for v in values]
    edges = [-math.log10(largest) * 1.08, math.log10(largest) * 1.08]
    return _log_axis(title, edges, values, text)


def time_text(seconds: float) -> str:
    """Return seconds as text with a unit: "10 µs", "1.5 ms", "2 s"."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size * 0.9995:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def si_text(x: float, unit: str) -> str:
    """Return a number with an SI prefix and its unit: "10 GFLOP/s", "100 FLOP/B"."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size * 0.9995:
            return f"{x / size:.3g} {letter}{unit}"
    return f"{x:.3g} {unit}".strip()


#: Operator families in the order of the page, with their labels.
FAMILY_WORDS: Final = {
    "gemm": "Matrix products",
    "prefill_attention": "Attention, prompts",
    "decode_attention": "Attention, generation",
    "noncausal_attention": "Attention, without a mask",
    "mla": "Latent attention (MLA)",
    "moe": "Expert layers (MoE)",
    "linear_attention": "Linear attention",
    "elementwise": "Norms, activations, sampling",
    "collective": "Communication",
    "matmul": "Products of networks",
    "convolution": "Convolutions",
    "streaming": "Memory-bound kernels of networks",
    "host_launch": "Launches by the host",
}
