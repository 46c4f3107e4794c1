"""Charts of whole models: predictions of held-out rows, and the effect of batch and architecture on time and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.whole_models.study import CHOSEN, TargetStudy
from catalogs.ui.charts import COLOURS, LEGEND_BELOW, MARKS, REFERENCE, count_axis, si_text, time_axis, time_text

if TYPE_CHECKING:
    import pandas as pd


MARGIN = {"l": 10, "r": 10, "t": 10, "b": 10}

MOST_FEATURES = 12


def axis_of(unit: str, title: str, low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis in readable units."""
    return time_axis(title, low, high) if unit == "s" else count_axis(title, low, high, unit)


def value_text(x: float, unit: str) -> str:
    """Return a value of a target in readable units."""
    return time_text(x) if unit == "s" else si_text(x, unit)


def predictions(of: TargetStudy) -> Any:
    """Draw predicted against measured values of held-out configurations, with a colour and a mark per model."""
    import plotly.graph_objects as go

    table, unit = of.by_configuration.predictions, of.target.unit
    low = float(min(table.actual.min(), table[CHOSEN].min()))
    high = float(max(table.actual.max(), table[CHOSEN].max()))
    figure = go.Figure()
    style = {"mode": "lines", "line": {"color": REFERENCE, "width": 1.2}, "hoverinfo": "skip"}
    figure.add_scatter(x=[low / 2, high * 2], y=[low / 2, high * 2], name="exact", **style)
    for i, (model, part) in enumerate(table.groupby("model")):
        texts = _hover(part, unit)
        figure.add_scatter(x=_short(part.actual), y=_short(part[CHOSEN]), text=texts, **_dots(i, str(model)))
    figure.update_xaxes(**axis_of(unit, "measured", low, high))
    figure.update_yaxes(**axis_of(unit, "predicted", low, high))
    return figure.update_layout(legend=LEGEND_BELOW, margin=MARGIN)


def residuals(of: TargetStudy) -> Any:
    """Draw errors against predictions on the left, and the distribution of errors on the right."""
    from plotly.subplots import make_subplots

    table = of.by_configuration.predictions
    error = 100 * (table[CHOSEN] / table.actual - 1.0)
    figure = make_subplots(rows=1, cols=2, column_widths=[0.68, 0.32], shared_yaxes=True, horizontal_spacing=0.03)
    for i, (model, part) in enumerate(table.groupby("model")):
        y = _short(error.loc[part.index])
        figure.add_scatter(x=_short(part[CHOSEN]), y=y, row=1, col=1, **_dots(i, str(model), "%{y:.1f} %"))
    bars = {"marker": {"color": REFERENCE}, "showlegend": False, "nbinsy": 40, "hoverinfo": "skip"}
    figure.add_histogram(y=_short(error), row=1, col=2, **bars)
    low, high = float(table[CHOSEN].min()), float(table[CHOSEN].max())
    figure.update_xaxes(**axis_of(of.target.unit, "predicted", low, high), col=1)
    figure.update_xaxes(title={"text": "rows"}, col=2)
    figure.update_yaxes(title={"text": "prediction too low or too high by"}, ticksuffix=" %", col=1)
    return figure.update_layout(legend=LEGEND_BELOW, margin=MARGIN)


def importance_bars(of: TargetStudy) -> Any:
    """Draw the error added when a column of held-out rows is shuffled."""
    import plotly.graph_objects as go

    shown = [i for i in of.importance if i.added_error > 0][:MOST_FEATURES]
    names = [i.feature.replace("_", " ") for i in shown]
    spread = {"type": "data", "array": [i.spread for i in shown], "color": REFERENCE, "thickness": 1}
    bar = {"orientation": "h", "marker": {"color": COLOURS[0]}, "error_x": spread, "hoverinfo": "skip"}
    figure = go.Figure(go.Bar(y=names, x=[i.added_error for i in shown], **bar))
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title={"text": "error of logarithms added"}, rangemode="tozero")
    return figure.update_layout(margin=MARGIN)


def against_batch(rows: pd.DataFrame) -> Any:
    """Draw the median latency and peak memory of each model against batch; encoder-decoders are dashed."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.12)
    columns = (("total_s", "s", "latency of a generation"), ("peak_memory_bytes", "B", "peak memory"))
    for place, (column, unit, title) in enumerate(columns, 1):
        seen: list[float] = []
        for i, (model, part) in enumerate(rows.groupby("model")):  # colours as in the other charts
            architecture = str(part.architecture.iloc[0])
            middle = part.groupby("batch")[column].median().dropna()
            seen += [float(v) for v in middle]
            line = {"dash": "dash" if architecture == "encoder-decoder" else "solid", "width": 2}
            style = _dots(i, f"{model} ({architecture})", "%{y:.3s}") | {"mode": "lines+markers", "line": line}
            figure.add_scatter(x=middle.index, y=_short(middle), showlegend=place == 1, row=1, col=place, **style)
        if seen:
            figure.update_yaxes(**axis_of(unit, title, min(seen), max(seen)), col=place)
    batches = sorted(int(b) for b in rows.batch.unique())
    ticks = {"tickvals": batches, "ticktext": [str(b) for b in batches]}
    figure.update_xaxes(type="log", title={"text": "batch"}, **ticks)
    return figure.update_layout(legend=LEGEND_BELOW, margin=MARGIN)


def by_architecture(rows: pd.DataFrame) -> Any:
    """Draw box plots of time per output token after the first and of peak memory, by architecture and batch."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.12)
    columns = (("decode_s_per_token", "s", "time per further token"), ("peak_memory_bytes", "B", "peak memory"))
    for place, (column, unit, title) in enumerate(columns, 1):
        good = rows[rows[column].notna() & (rows[column] > 0)]
        for i, (architecture, part) in enumerate(good.groupby("architecture")):
            tint = {"marker": {"color": COLOURS[i]}, "line": {"width": 1.5}}
            style = {"name": str(architecture), "legendgroup": str(architecture), "showlegend": place == 1}
            x = [f"batch {b}" for b in part.sort_values("batch").batch]
            y = _short(part.sort_values("batch")[column])
            figure.add_box(x=x, y=y, boxpoints="outliers", row=1, col=place, **tint, **style)
        if len(good):
            figure.update_yaxes(**axis_of(unit, title, float(good[column].min()), float(good[column].max())), col=place)
    return figure.update_layout(legend=LEGEND_BELOW, margin=MARGIN, boxmode="group")


def power(rows: pd.DataFrame) -> Any:
    """Draw mean power against achieved operations per second."""
    import plotly.graph_objects as go

    figure = go.Figure()
    good = rows[rows.watts.notna() & (rows.flops_per_s > 0)]
    for i, (model, part) in enumerate(good.groupby("model")):
        figure.add_scatter(x=_short(part.flops_per_s), y=_short(part.watts), **_dots(i, str(model), "%{y:.0f} W"))
    rates = good.flops_per_s
    figure.update_xaxes(**count_axis("achieved", float(rates.min()), float(rates.max()), "FLOP/s"))
    figure.update_yaxes(title={"text": "mean power"}, ticksuffix=" W", rangemode="tozero")
    return figure.update_layout(legend=LEGEND_BELOW, margin=MARGIN)


def _hover(part: pd.DataFrame, unit: str) -> list[str]:
    columns = ("model", "workload", "batch", "input_tokens", "output_tokens", "actual", CHOSEN)
    return [
        f"{model}, {workload}, batch {batch}, {n} in, {m} out<br>"
        f"measured {value_text(actual, unit)}, predicted {value_text(predicted, unit)}"
        for model, workload, batch, n, m, actual, predicted in zip(*(part[c].tolist() for c in columns), strict=True)
    ]


def _dots(i: int, name: str, hover: str = "%{text}") -> dict[str, Any]:
    dot = {"color": COLOURS[i % len(COLOURS)], "symbol": MARKS[i % len(MARKS)], "size": 7, "opacity": 0.8}
    tip = f"{hover}<extra></extra>"
    return {"mode": "markers", "name": name, "legendgroup": name, "marker": dot, "hovertemplate": tip}


def _short(values: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.asarray(values, dtype=np.float32)
