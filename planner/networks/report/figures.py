"""Figures of an answer for a network: cost against latency, latency against load, the time of a job, and memory."""

from __future__ import annotations

from typing import Final

from catalogs.ui import charts
from catalogs.ui.charts import number_text
from catalogs.ui.words import plan_name
from planner.networks.schema import JobMemory, LoadPoint, NetworkAnswer, NetworkPlan
from planner.problem.slo import STATS, Slo
from planner.report.money_figures import Pair, front
from planner.report.plots import MS, PlotlyFigure, bars, draw, line, names_axis

#: Statistics of the curve of latency against load.
_SHOWN: Final = ("p50", "p90", "p95", "p99")

#: Bytes of a gigabyte.
_GB: Final = 1e9

#: What the figures show, for the pages that contain them.
COST_CAPTION: Final = (
    "Each plan from a light load to its capacity, at the predicted speed; one short run for each point."
)

LOAD_CAPTION: Final = (
    "From a light load to the capacity, at the predicted speed. The dotted line is the rate of the plan."
)

STAGES_CAPTION: Final = "The stages of a single job, by what bounds their kernels."

#: What bounds the kernels of a stage: attribute of a stage, and its words.
_BOUNDS: Final = (
    ("compute_s", "arithmetic"),
    ("memory_s", "memory bandwidth"),
    ("fixed_s", "fixed cost of kernels"),
)


def cost_against_latency(answer: NetworkAnswer) -> PlotlyFigure | None:
    """Return a chart of each plan from a light load to its capacity; None if no price is known."""
    slo, unit = tightest(answer), answer.job.unit
    stat = slo.stat if slo.stat in STATS else STATS[-1]
    scale, each = _per(answer)
    marks: list[tuple[int, Pair, LoadPoint]] = []
    for i, plan in enumerate(answer.plans):
        marks += [
            (i, (MS * latency_s, scale * point.usd_per_unit), point)
            for point in plan.curve
            if point.usd_per_unit is not None and (latency_s := point.e2e_s.at(stat)) is not None
        ]
    if not marks:
        return None
    pairs = [pair for _, pair, _ in marks]
    wide = {"color": "#c9ced6", "width": 9}
    traces = [line(front(pairs), "Pareto front", line=wide, hoverinfo="skip")]
    for i in dict.fromkeys(i for i, _, _ in marks):
        own = [
            (*pair, f"{number_text(p.requests_per_s)} jobs/s: {number_text(pair[0])} ms, ${number_text(pair[1])}")
            for n, pair, p in marks
            if n == i
        ]
        style = {"mode": "lines+markers", "hovertemplate": "%{text}<extra></extra>", **charts.series_style(i)}
        traces.append(line(own, plan_name(i), **style))
    limit, shown = MS * slo.limit_s, [x for x, _ in pairs]
    near = limit < 4 * max(shown)  # a distant limit would squeeze the points into a corner
    x_axis = charts.logarithmic_axis(f"end-to-end latency, {stat}", "ms", [*shown, *([limit] if near else [])])
    y_axis = charts.logarithmic_axis(f"cost per {each}{unit}{'s' if each else ''}", "USD", [y for _, y in pairs])
    figure = draw(traces, x_axis, y_axis)
    if near:
        charts.vertical_line(figure, limit, f"objective: {number_text(limit)} ms", log_axis=True)
    return figure


def tightest(answer: NetworkAnswer) -> Slo:
    """Return the objective nearest to its limit in the recommended plan; without a plan, the first one."""
    slos = answer.request.objectives
    if answer.best is None:
        return slos[0]
    shares = [(row.value_at_confidence_s or row.value_s or 0.0) / row.limit_s for row in answer.best.slo]
    return slos[max(range(len(slos)), key=shares.__getitem__)]


def _per(answer: NetworkAnswer) -> tuple[float, str]:
    """Return how many units the axis of cost counts, and the words for this number."""
    cost = None if answer.best is None else answer.best.usd_per_unit
    return (1e6, "million ") if cost is not None and cost < 1e-4 else (1.0, "")


def latency_against_load(plan: NetworkPlan) -> PlotlyFigure:
    """Return a chart of the percentiles of a plan against the rate of jobs, with its objectives."""
    traces, drawn = [], [MS * row.limit_s for row in plan.slo]
    for i, stat in enumerate(_SHOWN):
        found = [(point.requests_per_s, point.e2e_s.at(stat)) for point in plan.curve]
        marks = [(per_s, MS * latency_s) for per_s, latency_s in found if latency_s is not None]
        hover = "%{x:.3g} jobs/s: %{y:.4g} ms<extra>" + stat + "</extra>"
        traces.append(line(marks, stat, mode="lines+markers", **charts.series_style(i), hovertemplate=hover))
        drawn += [y for _, y in marks]
    x_axis = charts.linear_axis("rate of jobs to the whole deployment", "jobs/s")
    y_axis = charts.logarithmic_axis("end-to-end latency", "ms", drawn)
    figure = draw(traces, x_axis, y_axis, margin=charts.MARGIN | {"t": 34})
    for row in plan.slo:
        limit = MS * row.limit_s
        charts.limit_line(figure, limit, f"objective: {row.name.partition('.')[2]} at most {number_text(limit)} ms")
    figure.add_vline(x=plan.requests_per_s, line={"color": charts.REFERENCE, "dash": "dot", "width": 1.5})
    return figure


def time_by_stage(plan: NetworkPlan) -> PlotlyFigure:
    """Return a bar for each stage of a single job, divided by what bounds its kernels, with the waits for the host."""
    stages = sorted(plan.stages, key=lambda stage: -stage.total_s)
    unit, scale = ("ms", MS) if sum(stage.total_s for stage in stages) < 10.0 else ("s", 1.0)
    parts = [(words, [getattr(stage, name) for stage in stages]) for name, words in _BOUNDS]
    parts.append(("communication", [stage.communication_s for stage in stages]))
    rest = [max(0.0, s.total_s - s.communication_s - s.compute_s - s.memory_s - s.fixed_s) for s in stages]
    parts.append(("host", rest))
    traces = [
        bars([(stage.name, scale * value, "") for stage, value in zip(stages, values, strict=True)], i, name=words)
        for i, (words, values) in enumerate(parts)
        if any(value > 0.0 for value in values)
    ]
    x_axis = charts.linear_axis("time of a single job", unit)
    height = 40 * max(len(stages), 2)
    return draw(traces, x_axis, names_axis("stage"), -70 / height, barmode="stack", bargap=0.3)


def memory_bar(memory: JobMemory) -> PlotlyFigure:
    """Return one stacked bar of the memory of an accelerator: the peak, what its error may add, and the rest."""
    sure = max(memory.peak_at_confidence_bytes - memory.peak_bytes, 0.0)
    parts = (
        ("peak", memory.peak_bytes, charts.PALE[0]),
        ("added at the confidence", sure, charts.PALE[1]),
        ("free", max(memory.device_bytes - memory.peak_bytes - sure, 0.0), "#eef0f3"),
    )
    traces = []
    for i, (name, size, colour) in enumerate(parts):
        text = f"{size / _GB:.1f} GB" if size > 0.06 * memory.device_bytes else ""
        label = {"name": f"{name}: {size / _GB:.2f} GB", "hoverinfo": "name"}
        traces.append(bars([("", size / _GB, text)], i, colour, inside=True, **label))
    top = max(memory.device_bytes, memory.peak_bytes + sure) / _GB
    x_axis = charts.linear_axis("memory of one accelerator", "GB", range=[0, top * 1.005])
    figure = draw(traces, x_axis, {"showgrid": False}, -0.75, barmode="stack")
    if memory.device_bytes / _GB < top:
        charts.vertical_line(figure, memory.device_bytes / _GB, "total memory")
    return figure
