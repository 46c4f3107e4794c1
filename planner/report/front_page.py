"""The page of a front: the points nothing beats, what else was simulated, and how to get it again."""

from __future__ import annotations

import shlex
from typing import Any

from calibration.report.axes import COLOURS, MARKS
from catalogs.html_page import Page, Section, bullets, chart, command, note, paragraph, table
from planner.axes import Axis
from planner.front_answer import FrontAnswer
from planner.front_screen import footnotes, shown, shown_unit
from planner.report.style import BELOW, MARGIN, log, number
from planner.trade import TradePoint

FOOTER = "Written by plan front. This file loads nothing from elsewhere."
_MS = 1e3


def front_page(found: FrontAnswer) -> Page:
    """One chart for each objective beside the first."""
    asked = found.request
    first, *others = found.axes
    text = (
        "Every mark is a deployment at a load that was simulated. Marks on the line are beaten by no other in every "
        "objective at once; each of them can be rented."
    )
    parts = [paragraph(text)] if found.members else [note("Nothing that was simulated keeps up and holds every limit.")]
    if found.result.looks:
        parts += [chart(_figure(found, first, other), _caption(found), 480) for other in others]
    parts += [paragraph("Every point holds:"), bullets([s.words for s in found.limits])] if found.limits else []
    head = ("Deployment", "Hardware", "Requests/s", *(f"{a.name} ({shown_unit(a)})" for a in found.axes))
    rows = [
        (
            point.candidate.words,
            point.candidate.hardware,
            number(point.requests_per_s),
            *(shown(a, v) for a, v in zip(found.axes, look.values, strict=True)),
        )
        for point, look in found.members
    ]
    parts += [table(head, rows, "The front.", words=2)] if rows else []
    again = Section("How to reproduce", [command(_command(found)), bullets(footnotes(found))], "Reproduce")
    subtitle = f"workload {asked.workload}, {' against '.join(a.name for a in found.axes)}"
    return Page(f"{asked.model} on {asked.hardware}", subtitle, [Section("Front", parts), again], FOOTER)


def _caption(found: FrontAnswer) -> str:
    s = found.search
    return f"{s['n_simulated']} of {s['n_points']} points simulated, {s['n_requests']} requests, seed {s['seed']}."


def _figure(found: FrontAnswer, x: Axis, y: Axis) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    on = set(found.result.members)
    places = {axis.name: k for k, axis in enumerate(found.axes)}
    looks = {i: look for i, look in found.result.looks.items() if look.holds and not look.pruned}

    def values(axis: Axis, which: list[int]) -> list[float]:
        factor = _MS if axis.slo is not None else 1.0
        return [factor * looks[i].values[places[axis.name]] for i in which]

    front = found.result.members
    rest = [i for i in looks if i not in on]
    flat = len(found.axes) == 2
    for name, which, k in (("simulated", rest, 6), ("front: nothing beats it", front, 0)):
        style = {"color": COLOURS[k], "symbol": MARKS[k], "size": 9 if which is front else 6}
        drawn = {"mode": "lines+markers" if which is front and flat else "markers", "marker": style}
        if which is front and flat:
            drawn["line"] = {"color": COLOURS[k], "shape": "hv", "width": 2}
        texts = [_hover(found.trade.points[i]) for i in which]
        hover = "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>"
        figure.add_scatter(x=values(x, which), y=values(y, which), name=name, text=texts, hovertemplate=hover, **drawn)
    everything = list(looks)
    figure.update_xaxes(**log(x.words, _unit(x), values(x, everything)))
    figure.update_yaxes(**log(y.words, _unit(y), values(y, everything)))
    return figure.update_layout(legend=BELOW, margin=MARGIN)


def _unit(axis: Axis) -> str:
    return "ms" if axis.slo is not None else axis.unit


def _hover(point: TradePoint) -> str:
    c = point.candidate
    return f"{number(point.requests_per_s)} requests/s<br>{c.hardware}: {c.words}"


def _command(found: FrontAnswer) -> str:
    r, t = found.request, found.request.tariff
    parts = ["plan", "front", "--model", r.model, "--hw", r.hardware, "--axes", ",".join(a.name for a in found.axes)]
    given: dict[str, object] = {
        "--slo": ",".join(s.text for s in found.limits) or None,
        "--workload": r.workload,
        "--rate": r.requests_per_s,
        "--precision": ",".join(r.precisions) or None,
        "--max-usd-per-hour": r.max_usd_per_hour,
        "--price": t.usd_per_hour,
        "--price-reading": t.reading,
        "--cloud": t.cloud,
        "--region": t.region,
        "--grid": t.grid,
        "--engine": r.engine,
        "--trials": r.trials,
        "--seed": r.seed,
    }
    for option, value in given.items():
        parts += [] if value is None else [option, str(value)]
    return shlex.join(parts)
