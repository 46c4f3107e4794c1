"""Charts of operators: predictions of unseen shapes, and measurements against the roofline and power."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from calibration.report.material import Coverage, FieldImportance, title_of
from catalogs.hardware.specs import Accelerator
from catalogs.ui.charts import (
    COLOURS,
    FAMILY_WORDS,
    LEGEND_BELOW,
    REFERENCE,
    count_axis,
    family_colour,
    family_marker,
    ratio_axis,
    si_text,
    time_axis,
    time_text,
)

if TYPE_CHECKING:
    import pandas as pd


MOST_POINTS: Final = 1_800  # of a chart; the tables count all

REACH: Final = (1.1, 8.0)  # minimum and maximum extent of the axis of residuals

SIZES: Final = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, math.inf)

SIZE_WORDS: Final = ("under 10 µs", "10 to 100 µs", "0.1 to 1 ms", "1 to 10 ms", "over 10 ms")

FEWEST_IN_CELL: Final = 3


def thinned(rows: pd.DataFrame, most: int = MOST_POINTS) -> pd.DataFrame:
    """Return a fixed random sample of about `most` rows.

    Each family keeps its share, but at least 120 rows.
    """
    if len(rows) <= most:
        return rows
    import pandas as pd

    parts = []
    for _, part in rows.groupby("family", sort=False):
        keep = min(len(part), max(120, round(most * len(part) / len(rows))))
        parts.append(part.sample(keep, random_state=0))
    return pd.concat(parts, ignore_index=True)


def predicted_against_measured(held: pd.DataFrame) -> Any:
    """Draw predicted against measured times on logarithmic axes; dotted lines are 25 % off."""
    import plotly.graph_objects as go

    low = float(min(held.measured_s.min(), held.predicted_s.min()))
    high = float(max(held.measured_s.max(), held.predicted_s.max()))
    figure = go.Figure()
    for factor, dash, name in ((1.0, "solid", "exact"), (1.25, "dot", "25 % off"), (0.8, "dot", "")):
        line = {"color": REFERENCE, "width": 1.2, "dash": dash}
        ends = [low / 2, high * 2]
        style = {"mode": "lines", "line": line, "name": name, "showlegend": bool(name), "hoverinfo": "skip"}
        figure.add_scatter(x=ends, y=[factor * e for e in ends], **style)
    for family, part in _families(thinned(held)):
        figure.add_scatter(x=_short(part.measured_s), y=_short(part.predicted_s), text=_hover(part), **_dots(family))
    figure.update_xaxes(**time_axis("measured", low, high))
    figure.update_yaxes(**time_axis("predicted", low, high))
    return figure.update_layout(legend=LEGEND_BELOW, margin={"l": 10, "r": 10, "t": 10, "b": 10})


def residuals(held: pd.DataFrame) -> Any:
    """Draw errors against predicted time on the left, and their distribution by family on the right."""
    from plotly.subplots import make_subplots

    ratio = held.predicted_s / held.measured_s
    reach = float(np.clip(np.exp(np.quantile(np.abs(np.log(ratio)), 0.99)), *REACH))
    figure = make_subplots(rows=1, cols=2, column_widths=[0.66, 0.34], shared_yaxes=True, horizontal_spacing=0.03)
    shown = thinned(held)
    for family, part in _families(shown):
        y = np.clip(part.predicted_s / part.measured_s, 1 / reach, reach)
        figure.add_scatter(x=_short(part.predicted_s), y=_short(y), text=_hover(part), row=1, col=1, **_dots(family))
        box = {
            "name": title_of(family),
            "marker": {"color": family_colour(family)},
            "boxpoints": False,
            "showlegend": False,
        }
        every = held[held.family == family]
        values = np.clip(every.predicted_s / every.measured_s, 1 / reach, reach)
        q = [float(v) for v in np.quantile(values, [0.1, 0.25, 0.5, 0.75, 0.9])]
        fences = {"lowerfence": [q[0]], "q1": [q[1]], "median": [q[2]], "q3": [q[3]], "upperfence": [q[4]]}
        figure.add_box(x=[title_of(family)], **fences, row=1, col=2, **box)
    figure.add_hline(y=1.0, line={"color": REFERENCE, "width": 1.2})
    figure.update_xaxes(**time_axis("predicted", float(held.predicted_s.min()), float(held.predicted_s.max())), col=1)
    figure.update_xaxes(showticklabels=False, title={"text": "10 to 90 % of shapes"}, col=2)
    figure.update_yaxes(**ratio_axis("prediction too low or too high by", reach))
    figure.update_yaxes(title={"text": ""}, col=2)
    return figure.update_layout(legend=LEGEND_BELOW, margin={"l": 10, "r": 10, "t": 10, "b": 10})


def error_by_size(held: pd.DataFrame) -> Any:
    """Draw the median error of each family by the duration of the operator."""
    import plotly.graph_objects as go

    families = [f for f in FAMILY_WORDS if f in set(held.family)]
    errors = (held.predicted_s / held.measured_s - 1.0).abs()
    place = np.digitize(held.measured_s.to_numpy(float), SIZES[1:-1])
    z: list[list[float | None]] = []
    text: list[list[str]] = []
    for family in families:
        cells = [errors[(held.family == family) & (place == i)] for i in range(len(SIZE_WORDS))]
        z.append([100 * float(c.median()) if len(c) >= FEWEST_IN_CELL else None for c in cells])
        text.append([f"{100 * c.median():.1f} %<br>of {len(c):,}" if len(c) >= FEWEST_IN_CELL else "" for c in cells])
    scale = [[0.0, "#cfe3f2"], [0.35, "#6aaed6"], [0.7, "#e8a04c"], [1.0, "#b3400f"]]
    bar = {"title": {"text": "median<br>error"}, "ticksuffix": " %", "thickness": 14}
    style = {"zmin": 0, "zmax": 40, "colorscale": scale, "colorbar": bar, "xgap": 3, "ygap": 3, "hoverinfo": "skip"}
    words = {"text": text, "texttemplate": "%{text}"}
    figure = go.Figure(go.Heatmap(z=z, x=list(SIZE_WORDS), y=[title_of(f) for f in families], **words, **style))
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(side="top", showgrid=False)
    return figure.update_layout(margin={"l": 10, "r": 10, "t": 10, "b": 10})


def importance_bars(found: list[FieldImportance]) -> Any:
    """Draw one bar per family and field: the error of predictions with that field shuffled."""
    import plotly.graph_objects as go

    figure = go.Figure()
    order = [f for f in FAMILY_WORDS if any(i.family == f for i in found)]
    names = {f"{i.family} {i.field}": i.field for f in order for i in found if i.family == f}
    for family in order:
        mine = [i for i in found if i.family == family]
        values = [round(i.factor, 3) for i in mine]
        texts = [f" {v:.1f}×" if v < 100 else f" {v:.0f}×" for v in values]
        bar = {"orientation": "h", "marker": {"color": family_colour(family)}, "text": texts, "textposition": "outside"}
        keys = [f"{family} {i.field}" for i in mine]
        figure.add_bar(y=keys, x=values, name=title_of(family), cliponaxis=False, hoverinfo="skip", **bar)
    most = max(i.factor for i in found)
    ticks = (1, 2, 5, 10, 20, 50, 100, 1000)
    edges, named = [0, math.log10(most) + 0.25], {"tickvals": list(ticks), "ticktext": [f"{v}×" for v in ticks]}
    figure.update_xaxes(
        type="log", range=edges, title={"text": "typically off by this factor, field shuffled"}, **named
    )
    figure.update_yaxes(autorange="reversed", tickvals=list(names), ticktext=list(names.values()), showgrid=False)
    below = LEGEND_BELOW | {"y": -70 / (24 * len(found))}
    return figure.update_layout(margin={"l": 10, "r": 40, "t": 10, "b": 10}, bargap=0.25, legend=below)


def roofline_chart(measured: pd.DataFrame, accelerator: Accelerator) -> Any:
    """Draw achieved operations per second against operations per byte, under the ceilings of memory and arithmetic."""
    import plotly.graph_objects as go

    counted = thinned(measured[measured.flops > 0])
    intensity = counted.flops / counted.bytes
    low, high = float(intensity.min()), float(intensity.max())
    peak = max(accelerator.peak_flops.values(), default=1.0)
    figure = go.Figure()
    bandwidth = accelerator.memory_bandwidth_bytes_per_s
    ceilings: dict[float, list[str]] = {}
    for dtype, flops in accelerator.peak_flops.items():
        ceilings.setdefault(flops, []).append(dtype)
    for i, (flops, dtypes) in enumerate(sorted(ceilings.items(), reverse=True)):
        x = [low / 2, flops / bandwidth, max(high, flops / bandwidth) * 2]
        line = {"color": REFERENCE, "width": 1.5, "dash": ("solid", "dash", "dot", "dashdot")[i % 4]}
        name = f"ceiling, {', '.join(dtypes)}: {si_text(flops, 'FLOP/s')}"
        figure.add_scatter(
            x=x, y=[x[0] * bandwidth, flops, flops], mode="lines", line=line, name=name, hoverinfo="skip"
        )
    for family, part in _families(counted):
        rate = part.flops / part.seconds
        texts = [
            f"{s}<br>{time_text(t)}, {si_text(r, 'FLOP/s')}"
            for s, t, r in zip(part["shape"], part.seconds, rate, strict=True)
        ]
        figure.add_scatter(x=_short(part.flops / part.bytes), y=_short(rate), text=texts, **_dots(family))
    rates = counted.flops / counted.seconds
    figure.update_xaxes(**count_axis("operations per byte of memory traffic", low, max(high, peak / bandwidth), ""))
    figure.update_yaxes(**count_axis("achieved", float(rates.min()), peak * 1.2, "FLOP/s"))
    return figure.update_layout(legend=LEGEND_BELOW, margin={"l": 10, "r": 10, "t": 10, "b": 10})


def bandwidth_chart(measured: pd.DataFrame, accelerator: Accelerator) -> Any:
    """Draw achieved bytes per second against bytes moved, for operators without counted arithmetic."""
    import plotly.graph_objects as go

    moved = thinned(measured[(measured.flops <= 0) & (measured.bytes > 0)])
    rate = moved.bytes / moved.seconds
    top = accelerator.memory_bandwidth_bytes_per_s
    ends = [float(moved.bytes.min()) / 2, float(moved.bytes.max()) * 2]
    figure = go.Figure()
    style = {"mode": "lines", "line": {"color": REFERENCE, "width": 1.5}, "hoverinfo": "skip"}
    figure.add_scatter(x=ends, y=[top, top], name=f"memory: {si_text(top, 'B/s')}", **style)
    for family, part in _families(moved):
        figure.add_scatter(
            x=_short(part.bytes), y=_short(part.bytes / part.seconds), text=list(part["shape"]), **_dots(family)
        )
    figure.update_xaxes(**count_axis("bytes moved", ends[0], ends[1], "B"))
    figure.update_yaxes(**count_axis("achieved", float(rate.min()), max(float(rate.max()), top), "B/s"))
    return figure.update_layout(legend=LEGEND_BELOW, margin={"l": 10, "r": 10, "t": 10, "b": 10})


def power_chart(measured: pd.DataFrame, accelerator: Accelerator) -> Any:
    """Draw watts against the larger of the shares of peak arithmetic and peak bandwidth."""
    import plotly.graph_objects as go

    figure = go.Figure()
    rows = thinned(measured[measured.watts.notna()])
    for family, part in _families(rows):
        use = 100 * np.minimum(np.maximum(part.compute_share, part.memory_share), 1.0)
        figure.add_scatter(x=_short(use), y=_short(part.watts), text=list(part["shape"]), **_dots(family))
    if accelerator.tdp_w:
        figure.add_hline(y=accelerator.tdp_w, line={"color": REFERENCE, "dash": "dot"}, annotation_text="power limit")
    figure.update_xaxes(title={"text": "share of the peak it is bound by"}, ticksuffix=" %", range=[-2, 102])
    figure.update_yaxes(title={"text": "mean power"}, ticksuffix=" W", rangemode="tozero")
    return figure.update_layout(legend=LEGEND_BELOW, margin={"l": 10, "r": 10, "t": 10, "b": 10})


def coverage_bars(lines: list[Coverage]) -> Any:
    """Draw the shares of each queue of shapes that are measured, interpolated and outside."""
    import plotly.graph_objects as go

    figure = go.Figure()
    names = [queue_title(c.queue) for c in lines]
    parts = (("measured", COLOURS[2]), ("interpolated", COLOURS[5]), ("outside", COLOURS[3]))
    words = {
        "measured": "measured",
        "interpolated": "between measured shapes",
        "outside": "outside: physics and defaults",
    }
    for part, tint in parts:
        shares = [100 * float(getattr(c, part)) for c in lines]
        texts = [f"{s:.0f} %" if s >= 7 else "" for s in shares]
        inside = {
            "text": texts,
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textfont": {"color": "#10151b"},
        }
        figure.add_bar(y=names, x=shares, name=words[part], orientation="h", marker={"color": tint}, **inside)
    title = {"text": "of the shapes the catalog's models run"}
    figure.update_xaxes(range=[0, 100.5], tickvals=[0, 25, 50, 75, 100], ticksuffix=" %", title=title)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure.update_layout(
        barmode="stack", legend=LEGEND_BELOW | {"traceorder": "normal"}, margin={"l": 10, "r": 10, "t": 10, "b": 10}
    )


def queue_title(queue: str) -> str:
    """Return a title such as "Matrix products, bf16"."""
    family, _, dtype = queue.partition(" ")
    return title_of(family) + (f", {dtype}" if dtype else "")


def _families(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(f, rows[rows.family == f]) for f in FAMILY_WORDS if f in set(rows.family)]


def _dots(family: str) -> dict[str, Any]:
    dot = {"color": family_colour(family), "symbol": family_marker(family), "size": 6, "opacity": 0.72}
    return {
        "mode": "markers",
        "name": title_of(family),
        "legendgroup": family,
        "marker": dot,
        "hovertemplate": "%{text}<extra></extra>",
    }


def _hover(part: pd.DataFrame) -> list[str]:
    columns = (part["shape"], part.measured_s, part.predicted_s, part.how)
    return [
        f"{shape}<br>measured {time_text(m)}, predicted {time_text(p)} ({100 * (p / m - 1):+.0f} %)<br>{how}"
        for shape, m, p, how in zip(*columns, strict=True)
    ]


def _short(values: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return single-precision values, which halve the page and are precise enough for a screen."""
    return np.asarray(values, dtype=np.float32)
