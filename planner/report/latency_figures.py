"""Figures of latency: against the request rate, with objectives and knee, and as a distribution at the planned rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from catalogs.ui import charts
from planner.answer.plan_schema import Plan
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import STATS
from planner.report.plots import MS, PlotlyFigure, big_mark, draw, line, percent_axis
from planner.studies.load_sweep import SweepPoint

SHOWN: Final = STATS[1:]

#: A simulated rate is not drawn if its relative distance from a rate of the answer is smaller than this.
NEAR: Final = 0.04

#: A curve with fewer points has no knee. A judgement: a bend needs points on both sides.
LEAST_POINTS: Final = 5

#: A curve whose depth below the chord is less than this share of its height has no knee. A judgement: the bend would
#: not be seen.
LEAST_BEND: Final = 0.1

#: One load: the request rate, the statistics of one latency in seconds by name, and whether the queue was stable.
LatencyRow = tuple[float, dict[str, Any], bool]


def curve_metrics(plan: Plan) -> list[str]:
    """Return the latency metrics that have a chart: those with an objective, and those that are always drawn."""
    limited = [row.metric for row in plan.slo]
    found = [name for name, metric in LATENCY_METRICS.items() if name in limited or metric.always_plotted]
    return list(dict.fromkeys([*found, *limited]))


def capacity_curve(plan: Plan, points: list[SweepPoint], metric: str) -> PlotlyFigure:
    """Return a chart of the percentiles of one latency in milliseconds against the request rate.

    Hollow marks are loads under which the queue grew. Circles mark the knees, and lines mark the objectives. A knee is
    that of the rates of the answer, whatever else is drawn (see `knee_of`).

    Args:
        plan: The plan with its measured curve.
        points: Loads that were simulated for the report in addition to those of the answer.
        metric: Name of the latency metric.
    """
    rows, limits = _rows(plan, points, metric), [row for row in plan.slo if row.metric == metric]
    traces, drawn = [], [MS * row.limit_s for row in limits]
    for i, stat in enumerate(SHOWN):
        marks = [(rate, MS * values[stat]) for rate, values, _ in rows if values.get(stat)]
        style = charts.series_style(i)
        stable = [stable for _, values, stable in rows if values.get(stat)]
        style["marker"] |= {"symbol": [style["marker"]["symbol"] + ("" if s else "-open") for s in stable]}
        style["hovertemplate"] = "%{x:.3g} requests/s: %{y:.4g} ms<extra>" + stat + "</extra>"
        traces.append(line(marks, stat, mode="lines+markers", **style))
        drawn += [latency_ms for _, latency_ms in marks]
    for stat in dict.fromkeys(row.stat for row in limits):
        bend = knee_of(plan, metric, stat)
        if bend is not None:
            latency_s = next(values[stat] for rate, values, _ in rows if rate == bend)
            mark = {"symbol": "circle-open", "size": 18, "line": {"width": 2, "color": charts.REFERENCE}}
            name = f"knee of {stat}: {charts.number_text(bend)} requests/s"
            traces.append(line([(bend, MS * latency_s)], name, mode="markers", marker=mark, hoverinfo="name"))
    x_axis = charts.linear_axis("rate of requests to the whole deployment", "requests/s")
    y_axis = charts.logarithmic_axis(LATENCY_METRICS[metric].title, "ms", drawn)
    figure = draw(traces, x_axis, y_axis, margin=charts.MARGIN | {"t": 34})
    for row in limits:
        limit = MS * row.limit_s
        charts.limit_line(figure, limit, f"objective: {row.stat} at most {charts.number_text(limit)} ms")
    for x, text, anchor, dash in _rate_lines(plan):
        figure.add_vline(x=x, line={"color": charts.REFERENCE, "dash": dash, "width": 1.5})
        label = {"text": f"{text}: {charts.number_text(x)}/s", "showarrow": False, "font": {"size": 11}}
        figure.add_annotation(x=x, yref="paper", y=1.0, yanchor="bottom", xanchor=anchor, **label)
    return figure


def _rows(plan: Plan, points: list[SweepPoint], metric: str) -> list[LatencyRow]:
    """Return the loads of the answer and, between them, those simulated for the report, in ascending order of rate.

    They are of one replica with few seeds, and the answer's own figures of all replicas with more. As for its error
    bars, each statistic is made to rise with the rate and is scaled to the answer's value at the planned rate.
    """
    rows = [(p.requests_per_s, p.of(metric).model_dump(), p.stable) for p in plan.curve if not p.whole_cluster]
    known = [rate for rate, *_ in rows]
    rows += [
        (p.requests_per_s, dict(p.latency_s[metric]), p.stable)
        for p in points
        if p.plan == 0 and metric in p.latency_s and all(abs(p.requests_per_s / r - 1) >= NEAR for r in known)
    ]
    return _through_plan(sorted(rows, key=lambda row: row[0]), plan, metric)


def _through_plan(rows: list[LatencyRow], plan: Plan, metric: str) -> list[LatencyRow]:
    """Return rows of ascending rate with each statistic through the value of the plan at its rate."""
    curves: dict[str, list[float | None]] = {}
    for stat in STATS:
        known = [(rate, values[stat]) for rate, values, _ in rows if values.get(stat)]
        if not known:
            continue
        rates, logs = [r for r, _ in known], np.maximum.accumulate(np.log([v for _, v in known]))
        own_s = plan.latency_s(metric, stat)
        if own_s and plan.requests_per_s:
            logs = logs + math.log(own_s) - np.interp(plan.requests_per_s, rates, logs)
        left = iter(np.exp(logs).tolist())
        curves[stat] = [next(left) if values.get(stat) else None for _, values, _ in rows]
    return [
        (rate, values | {stat: curve[n] for stat, curve in curves.items()}, stable)
        for n, (rate, values, stable) in enumerate(rows)
    ]


def knee_of(plan: Plan, metric: str, stat: str) -> float | None:
    """Return the knee of the curve of one statistic over the rate, requests per second; None if it hardly bends.

    It is found among the rates of the answer under which the queue was stable, and not among further ones that a report
    simulates: a knee depends on the range of the rates, and an answer has one knee wherever it is shown.
    """
    rows = _rows(plan, [], metric)
    return knee([(rate, values[stat]) for rate, values, stable in rows if stable and values.get(stat)])


def knee(points: list[tuple[float, float]]) -> float | None:
    """Return the rate at which a rising curve lies furthest below its chord; None if it hardly bends.

    Both axes are scaled to 0..1 (Satopaa et al., "Finding a Kneedle in a Haystack", 2011).

    Args:
        points: Pairs of rate and latency in ascending order of rate.
    """
    if len(points) < LEAST_POINTS:
        return None
    (left, low), (right, high) = points[0], points[-1]
    if right <= left or high <= low:
        return None
    depth, rate = max(((x - left) / (right - left) - (y - low) / (high - low), x) for x, y in points)
    return rate if depth >= LEAST_BEND else None


def _rate_lines(plan: Plan) -> Iterator[tuple[float, str, str, str]]:
    """Yield position, label, anchor and dash of the lines at the planned and at the highest sustainable rate."""
    rate, capacity = plan.requests_per_s, plan.capacity_requests_per_s
    same = rate is not None and capacity is not None and abs(rate / capacity - 1) < 0.005
    if rate is not None:
        yield rate, "planned and highest sustainable rate" if same else "planned", "right", "dot"
    if capacity is not None and not same:
        yield capacity, "highest sustainable rate", "left", "dash"


def distributions(plan: Plan) -> PlotlyFigure:
    """Return a chart of the cumulative distribution of each latency at the planned rate.

    Latencies are in milliseconds, shares in per cent of requests or, for the time between tokens, of gaps. Crosses mark
    the objectives.
    """
    traces, drawn = [], []
    for i, (name, metric) in enumerate((n, m) for n, m in LATENCY_METRICS.items() if m.key in plan.latency_cdf):
        pairs = zip(plan.latency_cdf[metric.key], plan.latency_cdf["quantiles"], strict=True)
        shares = [(MS * latency_s, 100.0 * (q or 0.0)) for latency_s, q in pairs if latency_s is not None]
        hover = "%{y:.4g} % within %{x:.4g} ms<extra></extra>"
        traces.append(line(shares, metric.title, line=charts.series_style(i)["line"], hovertemplate=hover))
        drawn += [latency_ms for latency_ms, _ in shares]
        for row in (r for r in plan.slo if r.metric == name and r.stat != "mean"):
            limit, mark = MS * row.limit_s, big_mark("x-thin", charts.COLOURS[i % len(charts.COLOURS)])
            label = f"objective: {row.name} at most {charts.number_text(limit)} ms"
            traces.append(line([(limit, float(row.stat[1:]))], label, mode="markers", marker=mark, hoverinfo="name"))
            drawn.append(limit)
    return draw(traces, charts.logarithmic_axis("latency", "ms", drawn), percent_axis("share within this latency", 101))
