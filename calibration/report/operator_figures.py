"""Charts of operators: predictions of unseen shapes, and measurements against the roofline and power."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from calibration.report.drawing import MARGIN, add_line, dots, finished, short
from calibration.report.material import Coverage, FieldImportance, title_of
from catalogs.hardware.specs import Accelerator
from catalogs.ui import charts
from catalogs.ui.words import percent

#: Most points of a chart; the tables count all.
MOST_POINTS: Final = 1_800

AXIS_RATIOS: Final = (1.1, 8.0)  # minimum and maximum extent of the axis of residuals

#: Lower ends of the durations of SIZE_WORDS after the first, in seconds.
SIZES: Final = (1e-5, 1e-4, 1e-3, 1e-2)

SIZE_WORDS: Final = ("under 10 µs", "10 to 100 µs", "0.1 to 1 ms", "1 to 10 ms", "over 10 ms")

#: Fewest rows whose median a cell shows. A judgement: a median of fewer is a single row.
FEWEST_IN_CELL: Final = 3

#: The shares of a coverage with their colours and their words in the legend.
COVERAGE_PARTS: Final = (
    ("measured", charts.COLOURS[2], "measured"),
    ("interpolated", charts.COLOURS[5], "between measured shapes"),
    ("outside", charts.COLOURS[3], "outside: physics and defaults"),
)


def thinned(rows: pd.DataFrame, most: int = MOST_POINTS) -> pd.DataFrame:
    """Return a fixed random sample of about `most` rows.

    Each family keeps its share, but at least 120 rows.
    """
    if len(rows) <= most:
        return rows
    parts = [
        part.sample(min(len(part), max(120, round(most * len(part) / len(rows)))), random_state=0)
        for _, part in rows.groupby("family", sort=False)
    ]
    return pd.concat(parts, ignore_index=True)


def predicted_against_measured(held: pd.DataFrame) -> Any:
    """Draw predicted against measured times on logarithmic axes; dotted lines are 25 % off."""
    low = float(min(held.measured_s.min(), held.predicted_s.min()))
    high = float(max(held.measured_s.max(), held.predicted_s.max()))
    figure, ends = go.Figure(), [low / 2, high * 2]
    for factor, dash, name in ((1.0, "solid", "exact"), (1.25, "dot", "25 % off"), (0.8, "dot", "")):
        add_line(figure, ends, [factor * e for e in ends], name, dash=dash)
    for family, part in _families(thinned(held)):
        figure.add_scatter(x=short(part.measured_s), y=short(part.predicted_s), text=_hover(part), **_dots(family))
    figure.update_xaxes(**charts.time_axis("measured", low, high))
    figure.update_yaxes(**charts.time_axis("predicted", low, high))
    return finished(figure)


def residuals(held: pd.DataFrame) -> Any:
    """Draw errors against predicted time on the left, and their distribution by family on the right."""
    held = held.assign(ratio=held.predicted_s / held.measured_s)
    extent = float(np.clip(np.exp(np.quantile(np.abs(np.log(held.ratio)), 0.99)), *AXIS_RATIOS))
    held["ratio"] = held.ratio.clip(1 / extent, extent)
    figure = make_subplots(rows=1, cols=2, column_widths=[0.66, 0.34], shared_yaxes=True, horizontal_spacing=0.03)
    for family, part in _families(thinned(held)):
        points = {"x": short(part.predicted_s), "y": short(part.ratio), "text": _hover(part)}
        figure.add_scatter(**points, row=1, col=1, **_dots(family))
        q = [[float(v)] for v in np.quantile(held.ratio[held.family == family], [0.1, 0.25, 0.5, 0.75, 0.9])]
        fences = dict(zip(("lowerfence", "q1", "median", "q3", "upperfence"), q, strict=True))
        box = {"marker": {"color": charts.family_colour(family)}, "boxpoints": False, "showlegend": False}
        figure.add_box(x=[title_of(family)], name=title_of(family), **fences, row=1, col=2, **box)
    figure.add_hline(y=1.0, line={"color": charts.REFERENCE, "width": 1.2})
    figure.update_xaxes(
        **charts.time_axis("predicted", float(held.predicted_s.min()), float(held.predicted_s.max())), col=1
    )
    figure.update_xaxes(showticklabels=False, title={"text": "10 to 90 % of shapes"}, col=2)
    figure.update_yaxes(**charts.ratio_axis("prediction too low or too high by", extent))
    figure.update_yaxes(title={"text": ""}, col=2)
    return finished(figure)


def error_by_size(held: pd.DataFrame) -> Any:
    """Draw the median error of each family by the duration of the operator."""
    errors = (held.predicted_s / held.measured_s - 1.0).abs()
    place = np.digitize(held.measured_s.to_numpy(float), SIZES)
    families = [f for f in charts.FAMILY_WORDS if f in set(held.family)]
    cells = [[errors[(held.family == f) & (place == i)] for i in range(len(SIZE_WORDS))] for f in families]
    z = [[100 * float(c.median()) if len(c) >= FEWEST_IN_CELL else None for c in row] for row in cells]
    text = [
        [f"{percent(c.median(), 1)}<br>of {len(c):,}" if len(c) >= FEWEST_IN_CELL else "" for c in row] for row in cells
    ]
    scale = [[0.0, "#cfe3f2"], [0.35, "#6aaed6"], [0.7, "#e8a04c"], [1.0, "#b3400f"]]
    bar = {"title": {"text": "median<br>error"}, "ticksuffix": " %", "thickness": 14}
    style = {"zmin": 0, "zmax": 40, "colorscale": scale, "colorbar": bar, "xgap": 3, "ygap": 3, "hoverinfo": "skip"}
    words = {"text": text, "texttemplate": "%{text}"}
    figure = go.Figure(go.Heatmap(z=z, x=list(SIZE_WORDS), y=[title_of(f) for f in families], **words, **style))
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(side="top", showgrid=False)
    return figure.update_layout(margin=MARGIN)


def importance_bars(found: list[FieldImportance]) -> Any:
    """Draw one bar per family and field: the error of predictions with that field shuffled."""
    figure, names = go.Figure(), {}
    for family in charts.FAMILY_WORDS:
        mine = {f"{family} {i.field}": i for i in found if i.family == family}
        if mine:
            names.update({key: i.field for key, i in mine.items()})
            values = [round(i.factor, 3) for i in mine.values()]
            texts = [f" {v:.1f}×" if v < 100 else f" {v:.0f}×" for v in values]
            bar = {"orientation": "h", "marker": {"color": charts.family_colour(family)}, "cliponaxis": False}
            style = {"text": texts, "textposition": "outside", "hoverinfo": "skip"}
            figure.add_bar(y=list(mine), x=values, name=title_of(family), **bar, **style)
    edges, ticks = [0, math.log10(max(i.factor for i in found)) + 0.25], (1, 2, 5, 10, 20, 50, 100, 1000)
    title = {"text": "typically off by this factor, field shuffled"}
    figure.update_xaxes(type="log", range=edges, title=title, tickvals=list(ticks), ticktext=[f"{v}×" for v in ticks])
    figure.update_yaxes(autorange="reversed", tickvals=list(names), ticktext=list(names.values()), showgrid=False)
    below = charts.LEGEND_BELOW | {"y": -70 / (24 * len(found))}
    return finished(figure, margin=MARGIN | {"r": 40}, bargap=0.25, legend=below)


def roofline_chart(measured: pd.DataFrame, accelerator: Accelerator) -> Any:
    """Draw achieved operations per second against operations per byte, under the ceilings of memory and arithmetic."""
    counted = thinned(measured[measured.flops > 0])
    counted = counted.assign(intensity=counted.flops / counted.bytes, rate=counted.flops / counted.seconds)
    low, high = float(counted.intensity.min()), float(counted.intensity.max())
    peak, bandwidth = max(accelerator.peak_flops.values(), default=1.0), accelerator.memory_bandwidth_bytes_per_s
    figure = go.Figure()
    for i, flops in enumerate(sorted(set(accelerator.peak_flops.values()), reverse=True)):
        dtypes = ", ".join(d for d, f in accelerator.peak_flops.items() if f == flops)
        x = [low / 2, flops / bandwidth, max(high, flops / bandwidth) * 2]
        name = f"ceiling, {dtypes}: {charts.si_text(flops, 'FLOP/s')}"
        add_line(figure, x, [x[0] * bandwidth, flops, flops], name, 1.5, ("solid", "dash", "dot", "dashdot")[i % 4])
    for family, part in _families(counted):
        texts = [
            f"{s}<br>{charts.time_text(t)}, {charts.si_text(r, 'FLOP/s')}"
            for s, t, r in zip(part["shape"], part.seconds, part.rate, strict=True)
        ]
        figure.add_scatter(x=short(part.intensity), y=short(part.rate), text=texts, **_dots(family))
    figure.update_xaxes(
        **charts.count_axis("operations per byte of memory traffic", low, max(high, peak / bandwidth), "")
    )
    figure.update_yaxes(**charts.count_axis("achieved", float(counted.rate.min()), peak * 1.2, "FLOP/s"))
    return finished(figure)


def bandwidth_chart(measured: pd.DataFrame, accelerator: Accelerator) -> Any:
    """Draw achieved bytes per second against bytes moved, for operators without counted arithmetic."""
    moved = thinned(measured[(measured.flops <= 0) & (measured.bytes > 0)])
    rate, top = moved.bytes / moved.seconds, accelerator.memory_bandwidth_bytes_per_s
    figure, ends = go.Figure(), [float(moved.bytes.min()) / 2, float(moved.bytes.max()) * 2]
    add_line(figure, ends, [top, top], f"memory: {charts.si_text(top, 'B/s')}", 1.5)
    for family, part in _families(moved):
        points = {"x": short(part.bytes), "y": short(part.bytes / part.seconds), "text": list(part["shape"])}
        figure.add_scatter(**points, **_dots(family))
    figure.update_xaxes(**charts.count_axis("bytes moved", ends[0], ends[1], "B"))
    figure.update_yaxes(**charts.count_axis("achieved", float(rate.min()), max(float(rate.max()), top), "B/s"))
    return finished(figure)


def power_chart(measured: pd.DataFrame, accelerator: Accelerator) -> Any:
    """Draw watts against the larger of the shares of peak arithmetic and peak bandwidth."""
    figure = go.Figure()
    for family, part in _families(thinned(measured[measured.watts.notna()])):
        use = 100 * np.minimum(np.maximum(part.compute_share, part.memory_share), 1.0)
        figure.add_scatter(x=short(use), y=short(part.watts), text=list(part["shape"]), **_dots(family))
    if accelerator.tdp_w:
        figure.add_hline(
            y=accelerator.tdp_w, line={"color": charts.REFERENCE, "dash": "dot"}, annotation_text="power limit"
        )
    figure.update_xaxes(title={"text": "share of the peak it is bound by"}, ticksuffix=" %", range=[-2, 102])
    figure.update_yaxes(title={"text": "mean power"}, ticksuffix=" W", rangemode="tozero")
    return finished(figure)


def coverage_bars(lines: list[Coverage]) -> Any:
    """Draw the shares of each queue of shapes that are measured, interpolated and outside."""
    figure, names = go.Figure(), [queue_title(c.queue) for c in lines]
    inside = {"textposition": "inside", "insidetextanchor": "middle", "textfont": {"color": "#10151b"}}
    for part, tint, words in COVERAGE_PARTS:
        shares = [100 * float(getattr(c, part)) for c in lines]
        texts = [f"{s:.0f} %" if s >= 7 else "" for s in shares]
        bar = {"orientation": "h", "marker": {"color": tint}, "text": texts}
        figure.add_bar(y=names, x=shares, name=words, **bar, **inside)
    title = {"text": "of the shapes the catalog's models run"}
    figure.update_xaxes(range=[0, 100.5], tickvals=[0, 25, 50, 75, 100], ticksuffix=" %", title=title)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return finished(figure, barmode="stack", legend=charts.LEGEND_BELOW | {"traceorder": "normal"})


def queue_title(queue: str) -> str:
    """Return a title such as "Matrix products, bf16"."""
    family, _, dtype = queue.partition(" ")
    return title_of(family) + (f", {dtype}" if dtype else "")


def _families(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(f, rows[rows.family == f]) for f in charts.FAMILY_WORDS if f in set(rows.family)]


def _dots(family: str) -> dict[str, Any]:
    marker = {"color": charts.family_colour(family), "symbol": charts.family_marker(family), "size": 6, "opacity": 0.72}
    return dots(title_of(family), family, marker)


def _hover(part: pd.DataFrame) -> list[str]:
    columns = (part["shape"], part.measured_s, part.predicted_s, part.how)
    text = charts.time_text
    return [
        f"{shape}<br>measured {text(m)}, predicted {text(p)} ({percent(p / m - 1, signed=True)})<br>{how}"
        for shape, m, p, how in zip(*columns, strict=True)
    ]
