"""Charts of whole models: predictions of held-out rows, and the effect of batch and architecture on time and memory."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from calibration.report.drawing import MARGIN, add_line, dots, finished, short
from calibration.whole_models.study import CHOSEN, TargetStudy
from catalogs.ui.charts import COLOURS, MARKS, REFERENCE, count_axis, si_text, time_axis, time_text

MOST_FEATURES = 12


def axis_of(unit: str, title: str, values: pd.Series[float], *more: pd.Series[float]) -> dict[str, Any]:
    """Return a logarithmic axis over the values in readable units."""
    low, high = float(min(v.min() for v in (values, *more))), float(max(v.max() for v in (values, *more)))
    return time_axis(title, low, high) if unit == "s" else count_axis(title, low, high, unit)


def predictions(of: TargetStudy) -> Any:
    """Draw predicted against measured values of held-out configurations, with a colour and a mark per model."""
    table, unit = of.by_configuration.predictions, of.target.unit
    ends = [min(table.actual.min(), table[CHOSEN].min()) / 2, max(table.actual.max(), table[CHOSEN].max()) * 2]
    figure = go.Figure()
    add_line(figure, ends, ends, "exact")
    for i, (model, part) in enumerate(table.groupby("model")):
        texts = _hover(part, unit)
        figure.add_scatter(x=short(part.actual), y=short(part[CHOSEN]), text=texts, **_dots(i, str(model)))
    figure.update_xaxes(**axis_of(unit, "measured", table.actual, table[CHOSEN]))
    figure.update_yaxes(**axis_of(unit, "predicted", table.actual, table[CHOSEN]))
    return finished(figure)


def residuals(of: TargetStudy) -> Any:
    """Draw errors against predictions on the left, and the distribution of errors on the right."""
    table = of.by_configuration.predictions
    error = 100 * (table[CHOSEN] / table.actual - 1.0)
    figure = make_subplots(rows=1, cols=2, column_widths=[0.68, 0.32], shared_yaxes=True, horizontal_spacing=0.03)
    for i, (model, part) in enumerate(table.groupby("model")):
        y = short(error.loc[part.index])
        figure.add_scatter(x=short(part[CHOSEN]), y=y, row=1, col=1, **_dots(i, str(model), "%{y:.1f} %"))
    bars = {"marker": {"color": REFERENCE}, "showlegend": False, "nbinsy": 40, "hoverinfo": "skip"}
    figure.add_histogram(y=short(error), row=1, col=2, **bars)
    figure.update_xaxes(**axis_of(of.target.unit, "predicted", table[CHOSEN]), col=1)
    figure.update_xaxes(title={"text": "rows"}, col=2)
    figure.update_yaxes(title={"text": "prediction too low or too high by"}, ticksuffix=" %", col=1)
    return finished(figure)


def importance_bars(of: TargetStudy) -> Any:
    """Draw the error added when a column of held-out rows is shuffled."""
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
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.12)
    columns = (("total_s", "s", "latency of a generation"), ("peak_memory_bytes", "B", "peak memory"))
    for place, (column, unit, title) in enumerate(columns, 1):
        middles = rows.groupby(["model", "batch"])[column].median().dropna()
        for i, (model, part) in enumerate(rows.groupby("model")):  # colours as in the other charts
            architecture = str(part.architecture.iloc[0])
            middle = part.groupby("batch")[column].median().dropna()
            line = {"dash": "dash" if architecture == "encoder-decoder" else "solid", "width": 2}
            style = _dots(i, f"{model} ({architecture})", "%{y:.3s}") | {"mode": "lines+markers", "line": line}
            figure.add_scatter(x=middle.index, y=short(middle), showlegend=place == 1, row=1, col=place, **style)
        if len(middles):
            figure.update_yaxes(**axis_of(unit, title, middles), col=place)
    batches = sorted(int(b) for b in rows.batch.unique())
    ticks = {"tickvals": batches, "ticktext": [str(b) for b in batches]}
    figure.update_xaxes(type="log", title={"text": "batch"}, **ticks)
    return finished(figure)


def by_architecture(rows: pd.DataFrame) -> Any:
    """Draw box plots of time per output token after the first and of peak memory, by architecture and batch."""
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.12)
    columns = (("decode_s_per_token", "s", "time per further token"), ("peak_memory_bytes", "B", "peak memory"))
    for place, (column, unit, title) in enumerate(columns, 1):
        good = rows[rows[column] > 0]
        for i, (architecture, part) in enumerate(good.groupby("architecture")):
            tint = {"marker": {"color": COLOURS[i]}, "line": {"width": 1.5}}
            style = {"name": str(architecture), "legendgroup": str(architecture), "showlegend": place == 1}
            part = part.sort_values("batch")
            x = [f"batch {b}" for b in part.batch]
            figure.add_box(x=x, y=short(part[column]), boxpoints="outliers", row=1, col=place, **tint, **style)
        if len(good):
            figure.update_yaxes(**axis_of(unit, title, good[column]), col=place)
    return finished(figure, boxmode="group")


def power(rows: pd.DataFrame) -> Any:
    """Draw mean power against achieved operations per second."""
    figure = go.Figure()
    good = rows[rows.watts.notna() & (rows.flops_per_s > 0)]
    for i, (model, part) in enumerate(good.groupby("model")):
        figure.add_scatter(x=short(part.flops_per_s), y=short(part.watts), **_dots(i, str(model), "%{y:.0f} W"))
    figure.update_xaxes(**axis_of("FLOP/s", "achieved", good.flops_per_s))
    figure.update_yaxes(title={"text": "mean power"}, ticksuffix=" W", rangemode="tozero")
    return finished(figure)


def _hover(part: pd.DataFrame, unit: str) -> list[str]:
    def text(x: float) -> str:
        return time_text(x) if unit == "s" else si_text(x, unit)

    columns = ["model", "workload", "batch", "input_tokens", "output_tokens", "actual", CHOSEN]
    return [
        f"{model}, {workload}, batch {batch}, {n} in, {m} out<br>measured {text(actual)}, predicted {text(predicted)}"
        for model, workload, batch, n, m, actual, predicted in part[columns].itertuples(index=False)
    ]


def _dots(i: int, name: str, hover: str = "%{text}") -> dict[str, Any]:
    marker = {"color": COLOURS[i % len(COLOURS)], "symbol": MARKS[i % len(MARKS)], "size": 7, "opacity": 0.8}
    return dots(name, name, marker, hover)
