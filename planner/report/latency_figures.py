"""Latency: against the rate, with the objectives and the knee; and its distribution at the planned rate."""

from __future__ import annotations

from typing import Any, Final

from catalogs.ui.charts import (
    BELOW,
    COLOURS,
    MARGIN,
    REFERENCE,
    limit_line,
    linear_axis,
    logarithmic_axis,
    number_text,
    series_style,
)
from planner.answer.plan_schema import CurvePoint, Plan
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.studies.load_sweep import SweepPoint

SHOWN: Final = ("p50", "p90", "p95", "p99")

MS: Final = 1e3

#: A rate nearer than this to one of the answer's is not drawn again.
NEAR: Final = 0.04

#: A knee is looked for in so many points at least; a curve that is nearer to its chord has none.
LEAST_POINTS: Final = 5

LEAST_BEND: Final = 0.1


def curve_metrics(plan: Plan) -> list[str]:
    """Those with an objective, and the time to first token and per token."""
    asked = [row.metric for row in plan.slo]
    return [name for name, metric in LATENCY_METRICS.items() if name in asked or metric.always_plotted]


def capacity_curve(plan: Plan, points: list[SweepPoint], metric: str) -> Any:
    """Percentiles of one latency against the rate; hollow marks: the queue grew. Milliseconds."""
    import plotly.graph_objects as go

    figure, seen = go.Figure(), [p for p in plan.curve if not p.whole_cluster]
    rows = _rows(seen, points, metric)
    drawn: list[float] = []
    for i, stat in enumerate(SHOWN):
        here = [(rate, MS * values[stat], stable) for rate, values, stable in rows if values.get(stat)]
        style = series_style(i)
        style["marker"] |= {"symbol": [style["marker"]["symbol"] + ("" if s else "-open") for *_, s in here]}
        x, y = [r for r, *_ in here], [v for _, v, _ in here]
        hover = "%{x:.3g} requests/s: %{y:.4g} ms<extra>" + stat + "</extra>"
        figure.add_scatter(x=x, y=y, mode="lines+markers", name=stat, hovertemplate=hover, **style)
        drawn += y
    for row in (r for r in plan.slo if r.metric == metric):
        drawn.append(MS * row.limit_s)
        limit_line(figure, MS * row.limit_s, f"objective: {row.stat} at most {number_text(MS * row.limit_s)} ms")
    _planned(figure, plan)
    for stat in dict.fromkeys(row.stat for row in plan.slo if row.metric == metric):
        bend = knee(points_of(plan, points, metric, stat))
        if bend is not None:
            at = {"x": [bend], "y": [MS * _value(rows, bend, stat)]}
            mark = {"symbol": "circle-open", "size": 18, "line": {"width": 2, "color": REFERENCE}}
            name = f"knee of {stat}: {number_text(bend)} requests/s"
            figure.add_scatter(**at, mode="markers", marker=mark, name=name, hoverinfo="name")
    figure.update_xaxes(**linear_axis("rate of requests to the whole deployment", "requests/s"))
    figure.update_yaxes(**logarithmic_axis(LATENCY_METRICS[metric].title, "ms", drawn))
    return figure.update_layout(legend=BELOW, margin=MARGIN | {"t": 34})


def _rows(seen: list[CurvePoint], points: list[SweepPoint], metric: str) -> list[tuple[float, dict[str, Any], bool]]:
    """(rate, statistics in seconds, stable): the answer's points, and between them those simulated for the page."""
    rows = [(p.requests_per_s, p.of(metric).model_dump(), p.stable) for p in seen]
    known = [r for r, *_ in rows]
    ours = [p for p in points if p.plan == 0 and metric in p.latency_s]
    new = [p for p in ours if not any(abs(p.requests_per_s / r - 1) < NEAR for r in known)]
    rows += [(p.requests_per_s, dict(p.latency_s[metric]), p.stable) for p in new]
    return sorted(rows, key=lambda row: row[0])


def points_of(plan: Plan, points: list[SweepPoint], metric: str, stat: str) -> list[tuple[float, float]]:
    """(rate, seconds) of one statistic at the rates that the system kept up with, ascending."""
    rows = _rows([p for p in plan.curve if not p.whole_cluster], points, metric)
    return [(rate, values[stat]) for rate, values, stable in rows if stable and values.get(stat)]


def knee(points: list[tuple[float, float]]) -> float | None:
    """The rate at which a rising curve lies furthest below its chord, both axes scaled to 0..1 (Satopaa et al.,
    "Finding a Kneedle in a Haystack", 2011); None where it hardly bends."""
    if len(points) < LEAST_POINTS:
        return None
    (left, low), (right, high) = points[0], points[-1]
    if right <= left or high <= low:
        return None
    below = [((x - left) / (right - left) - (y - low) / (high - low), x) for x, y in points]
    depth, at = max(below)
    return at if depth >= LEAST_BEND else None


def _value(rows: list[tuple[float, dict[str, Any], bool]], at: float, stat: str) -> float:
    return next(float(values[stat]) for rate, values, _ in rows if rate == at)


def _planned(figure: Any, plan: Plan) -> None:
    """Vertical lines: the rate planned with, and the highest that holds (the knee)."""
    rate, capacity = plan.requests_per_s, plan.capacity_requests_per_s
    same = rate is not None and capacity is not None and abs(rate / capacity - 1) < 0.005
    marks = [(rate, "planned and highest sustainable rate" if same else "planned", "right", "dot")]
    marks += [] if same else [(capacity, "highest sustainable rate", "left", "dash")]
    for x, text, anchor, dash in marks:
        if x is None:
            continue
        figure.add_vline(x=x, line={"color": REFERENCE, "dash": dash, "width": 1.5})
        said = {"text": f"{text}: {number_text(x)}/s", "showarrow": False, "font": {"size": 11}}
        figure.add_annotation(x=x, yref="paper", y=1.0, yanchor="bottom", xanchor=anchor, **said)


def distributions(plan: Plan) -> Any:
    """Share of requests (gaps, for itl) that take at most so long, at the planned rate; objectives as crosses."""
    import plotly.graph_objects as go

    figure, drawn = go.Figure(), []
    quantiles = [100.0 * (q or 0.0) for q in plan.latency_cdf.get("quantiles", [])]
    metrics = [name for name, metric in LATENCY_METRICS.items() if metric.key in plan.latency_cdf]
    for i, metric in enumerate(metrics):
        pairs = [(MS * v, q) for v, q in zip(plan.latency_cdf[f"{metric}_s"], quantiles, strict=True) if v is not None]
        x, y = [v for v, _ in pairs], [q for _, q in pairs]
        hover = "%{y:.4g} % within %{x:.4g} ms<extra></extra>"
        line = series_style(i)["line"]
        figure.add_scatter(x=x, y=y, mode="lines", name=LATENCY_METRICS[metric].title, line=line, hovertemplate=hover)
        drawn += x
        for row in (r for r in plan.slo if r.metric == metric and r.stat != "mean"):
            mark = {"symbol": "x-thin", "size": 12, "line": {"width": 3, "color": COLOURS[i % len(COLOURS)]}}
            name = f"objective: {row.name} at most {number_text(MS * row.limit_s)} ms"
            at = {"x": [MS * row.limit_s], "y": [float(row.stat[1:])]}
            figure.add_scatter(**at, mode="markers", marker=mark, name=name, hoverinfo="name")
            drawn.append(MS * row.limit_s)
    figure.update_xaxes(**logarithmic_axis("latency", "ms", drawn))
    figure.update_yaxes(**linear_axis("share within this latency", "%", range=[0, 101]))
    return figure.update_layout(legend=BELOW, margin=MARGIN)
