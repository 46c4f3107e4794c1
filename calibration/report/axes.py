"""Axes, colours and marks that all charts share."""

from __future__ import annotations

import math
from typing import Any, Final

from calibration.report.material import WORDS

#: Okabe and Ito's palette, distinguishable with every kind of colour vision, with a mark each besides.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C8C8C", "#7A5195")
MARKS: Final = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down")
FEW_DECADES: Final = 2.0  # below which 2 and 5 are marked too
REFERENCE: Final = "#808893"
BELOW: Final[dict[str, Any]] = {"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top"}


def colour(family: str) -> str:
    return COLOURS[_place(family)]


def mark(family: str) -> str:
    return MARKS[_place(family)]


def _place(family: str) -> int:
    names = list(WORDS)
    return (names.index(family) if family in names else len(names)) % len(COLOURS)


def time_axis(title: str, low_s: float, high_s: float) -> dict[str, Any]:
    """A logarithmic axis of seconds that reads 10 µs, 1 ms, 100 ms."""
    return _decades(title, low_s, high_s, time_text)


def count_axis(title: str, low: float, high: float, unit: str) -> dict[str, Any]:
    """A logarithmic axis that reads 1 k, 10 M, 1 G and the unit."""
    return _decades(title, low, high, lambda x: si(x, unit))


def _decades(title: str, low: float, high: float, text: Any) -> dict[str, Any]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first) / 8))
    values = [10.0**e for e in range(first, last + 1, step)]
    if math.log10(high / low) < FEW_DECADES:
        values = [m * v for v in values for m in (1.0, 2.0, 5.0)]
    edges = [math.log10(low) - 0.12, math.log10(high) + 0.12]
    ticks = {"tickvals": values, "ticktext": [text(v) for v in values]}
    return {"type": "log", "title": {"text": title}, "range": edges, **ticks}


def ratio_axis(title: str, reach: float) -> dict[str, Any]:
    """A logarithmic axis of predicted over measured, as signed per cent, `reach` (> 1) at most each way."""
    steps = [r for r in (1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0) if r <= reach * 1.001]
    steps = steps[-3:]
    values = [1 / r for r in reversed(steps)] + [1.0] + steps
    text = ["0 %" if v == 1.0 else f"{100 * (v - 1):+.0f} %".replace("-", "−") for v in values]
    edges = [-math.log10(reach) * 1.08, math.log10(reach) * 1.08]
    return {"type": "log", "title": {"text": title}, "range": edges, "tickvals": values, "ticktext": text}


def time_text(seconds: float) -> str:
    """ "10 µs", "1.5 ms", "2 s" """
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size * 0.9995:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def si(x: float, unit: str) -> str:
    """ "10 GFLOP/s", "100 FLOP/B" """
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size * 0.9995:
            return f"{x / size:.3g} {letter}{unit}"
    return f"{x:.3g} {unit}".strip()
