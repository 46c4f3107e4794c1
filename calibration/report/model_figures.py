"""Charts of whole models: predictions of held-out rows, and the effect of batch and architecture on time and memory."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from calibration.report.drawing import MARGIN, add_line, dots, finished, short
from calibration.whole_models.study import CHOSEN, TargetStudy
from calibration.whole_models.workloads import WORKLOADS
from catalogs.ui.charts import COLOURS, MARKS, REFERENCE, count_axis, si_text, time_axis, time_text

#: Most features in the figure of importance.
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


def by_workload(rows: pd.DataFrame) -> Any:
    """Draw box plots of the latency of a generation by workload, one box per model."""
    figure = go.Figure()
    for i, (model, part) in enumerate(rows.groupby("model")):
        part = pd.concat([part[part.workload == w.name] for w in WORKLOADS])
        tint = {"marker": {"color": COLOURS[i % len(COLOURS)]}, "line": {"width": 1.5}}
        hover = {"text": _hover(part.assign(actual=part.total_s), "s"), "hoverinfo": "text"}
        dots_inside = {"boxpoints": "all", "jitter": 0.5, "pointpos": 0}
        figure.add_box(x=part.workload, y=short(part.total_s), name=str(model), **dots_inside, **tint, **hover)
    names = [w.name for w in WORKLOADS if (rows.workload == w.name).any()]
    figure.update_xaxes(categoryorder="array", categoryarray=names)
    figure.update_yaxes(**axis_of("s", "latency of a generation", rows.total_s))
    return finished(figure, boxmode="group")


def device_against_host(rows: pd.DataFrame) -> Any:
    """Draw the busy time of the device against the time of the host's clock, and the busy share by batch.

    A GPU is busy while it runs kernels. A CPU is busy for its processor time divided by the number of threads.
    """
    shown, name = device_rows(rows)
    figure = make_subplots(rows=1, cols=2, column_widths=[0.62, 0.38], horizontal_spacing=0.12)
    ends = [float(shown[["wall_s", "busy_s"]].min().min()) / 1.5, float(shown[["wall_s", "busy_s"]].max().max()) * 1.5]
    add_line(figure, ends, ends, "always busy")
    for i, (model, part) in enumerate(shown.groupby("model")):
        texts = _hover(part.assign(actual=part.wall_s), "s")
        style = {"text": texts, **_dots(i, str(model))}
        figure.add_scatter(x=short(part.wall_s), y=short(part.busy_s), row=1, col=1, **style)
        tint = {"marker": {"color": COLOURS[i % len(COLOURS)]}, "line": {"width": 1.5}, "showlegend": False}
        x, y = [f"batch {b}" for b in part.batch], short(100.0 * part.busy_s / part.wall_s)
        figure.add_box(x=x, y=y, name=str(model), legendgroup=str(model), row=1, col=2, **tint)
    figure.update_xaxes(**axis_of("s", "time of the host's clock", shown.wall_s, shown.busy_s), col=1)
    figure.update_yaxes(**axis_of("s", name, shown.wall_s, shown.busy_s), col=1)
    batches = [f"batch {b}" for b in sorted(shown.batch.unique())]
    figure.update_xaxes(categoryorder="array", categoryarray=batches, col=2)
    figure.update_yaxes(title={"text": "share of the time in which it is busy"}, ticksuffix=" %", range=[0, 105], col=2)
    return finished(figure, boxmode="group")


def device_rows(rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the rows for `device_against_host` with the column busy_s, and the name of the device's time."""
    name, busy = "time in which the GPU runs kernels", rows.device_busy_s
    if busy.isna().all():
        name, busy = "processor time of a thread", rows.cpu_s / rows.get("threads", 1)
    found = rows.assign(busy_s=busy)
    return found[(found.busy_s > 0) & (found.wall_s > 0)], name


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

    columns = ["model", "workload", "batch", "input_tokens", "output_tokens", "actual"]
    predicted = [f", predicted {text(v)}" for v in part[CHOSEN]] if CHOSEN in part else [""] * len(part)
    return [
        f"{model}, {workload}, batch {batch}, {n} in, {m} out<br>measured {text(actual)}{more}"
        for (model, workload, batch, n, m, actual), more in zip(
            part[columns].itertuples(index=False), predicted, strict=True
        )
    ]


def _dots(i: int, name: str, hover: str = "%{text}") -> dict[str, Any]:
    marker = {"color": COLOURS[i % len(COLOURS)], "symbol": MARKS[i % len(MARKS)], "size": 7, "opacity": 0.8}
    return dots(name, name, marker, hover)
