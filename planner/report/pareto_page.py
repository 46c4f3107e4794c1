"""The page of a front: the points nothing beats, what else was simulated, and how to get it again.

The fronts over the whole space beside an answer: every deployment and load that was simulated, and its own plans.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from catalogs.ui.charts import BELOW, COLOURS, MARGIN, MARKS, logarithmic_axis, number_text
from catalogs.ui.html_page import Markup, Page, PageSection, bullets, chart, command, note, paragraph, table
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.problem.scenario import arguments_of, keys_of
from planner.search.pareto_search import FrontAxis, FrontFile, FrontPoint, ParetoAnswer, footnotes, shown, shown_unit
from planner.search.pareto_space import ParetoAxis, ParetoCandidate

FOOTER = "Written by plan front. This file loads no external resources."

_MS = 1e3


def front_page(found: ParetoAnswer) -> Page:
    """One chart for each objective beside the first."""
    asked = found.request
    first, *others = found.axes
    text = (
        "Every mark is a simulated deployment at one load. The line is the Pareto front: no other mark is better than "
        "its marks in every objective."
    )
    parts = (
        [paragraph(text)] if found.members else [note("No simulated deployment carries the load within every limit.")]
    )
    if found.result.samples:
        parts += [chart(_figure(found, first, other), _caption(found), 480) for other in others]
    parts += [paragraph("Every point meets:"), bullets([s.words for s in found.limits])] if found.limits else []
    head = ("Deployment", "Hardware", "Requests/s", *(f"{a.name} ({shown_unit(a)})" for a in found.axes))
    rows = [
        (
            point.candidate.words,
            point.candidate.hardware.text,
            number_text(point.requests_per_s),
            *(shown(a, v) for a, v in zip(found.axes, look.values, strict=True)),
        )
        for point, look in found.members
    ]
    parts += [table(head, rows, "The front.", words=2)] if rows else []
    again = PageSection("How to reproduce", [command(_command(found)), bullets(footnotes(found))], "Reproduce")
    subtitle = f"workload {asked.workload}, {' against '.join(a.name for a in found.axes)}"
    return Page(f"{asked.model} on {asked.hardware}", subtitle, [PageSection("Front", parts), again], FOOTER)


def _caption(found: ParetoAnswer) -> str:
    s = found.search
    return f"{s.n_simulated} of {s.n_points} points simulated, {s.n_requests} requests, seed {s.seed}."


def _figure(found: ParetoAnswer, x: ParetoAxis, y: ParetoAxis) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    on = set(found.result.members)
    places = {axis.name: k for k, axis in enumerate(found.axes)}
    looks = {i: look for i, look in found.result.samples.items() if look.holds and not look.pruned}

    def values(axis: ParetoAxis, which: list[int]) -> list[float]:
        factor = _MS if axis.slo is not None else 1.0
        return [factor * looks[i].values[places[axis.name]] for i in which]

    front = found.result.members
    rest = [i for i in looks if i not in on]
    flat = len(found.axes) == 2
    for name, which, k in (("simulated", rest, 6), ("Pareto front", front, 0)):
        style = {"color": COLOURS[k], "symbol": MARKS[k], "size": 9 if which is front else 6}
        drawn = {"mode": "lines+markers" if which is front and flat else "markers", "marker": style}
        if which is front and flat:
            drawn["line"] = {"color": COLOURS[k], "shape": "hv", "width": 2}
        texts = [_hover(found.space.points[i]) for i in which]
        hover = "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>"
        figure.add_scatter(x=values(x, which), y=values(y, which), name=name, text=texts, hovertemplate=hover, **drawn)
    everything = list(looks)
    figure.update_xaxes(**logarithmic_axis(x.words, _unit(x), values(x, everything)))
    figure.update_yaxes(**logarithmic_axis(y.words, _unit(y), values(y, everything)))
    return figure.update_layout(legend=BELOW, margin=MARGIN)


def _unit(axis: ParetoAxis) -> str:
    return "ms" if axis.slo is not None else axis.unit


def _hover(point: ParetoCandidate) -> str:
    c = point.candidate
    return f"{number_text(point.requests_per_s)} requests/s<br>{c.hardware.text}: {c.words}"


def _command(found: ParetoAnswer) -> str:
    given = keys_of(found.request) | {"search.trials": found.request.search.trials, "seed": found.request.seed}
    given |= {"slo": [slo.text for slo in found.limits]}
    kept = {name: value for name, value in given.items() if name != "objective" and value != []}
    return shlex.join(["plan", "front", *arguments_of(kept), "--axes", ",".join(a.name for a in found.axes)])


MS: Final = 1e3


def fronts(answer: Answer, found: Sequence[FrontFile]) -> list[Markup]:
    """Charts of each front; without any, how to get one."""
    if not found:
        asked, name = answer.request, answer.plans[0].tightest.name
        question = ["plan", "front", "--model", asked.model, "--hw", asked.hardware, "--workload", asked.workload]
        search = shlex.join([*question, "--engine", asked.engine, "--axes", f"cost,{name}", "--json", "front.json"])
        text = (
            "The lines above are the plans of this answer. To add the front over all deployments and loads to this "
            "page, run:"
        )
        return [paragraph(text), command(f"{search}\nplan report answer.json --front front.json --html answer.html")]
    charts = []
    for front in found:
        s = front.search
        ends = "no other point is expected on the front" if s.exhausted else "more may be found with more"
        x, *others = front.axes
        for y in others:
            said = (
                f"Front of {x.words} and {y.words} over all deployments and loads of {front.request.hardware}: "
                f"{s.n_simulated:,} of {s.n_points:,} points simulated ({ends}), {s.n_requests:,} requests, seed "
                f"{s.seed}. Crosses: the plans of this answer at their planned rates."
            )
            charts.append(chart(_section_figure(front, answer, x, y), said, 480))
    return charts


def _section_figure(front: FrontFile, answer: Answer, x: FrontAxis, y: FrontAxis) -> Any:
    import plotly.graph_objects as go

    figure, flat = go.Figure(), len(front.axes) == 2
    rest = [p for p in front.simulated if p.holds and not p.stopped_early and not p.on_front]
    drawn: list[tuple[float, float]] = []
    for name, points, k in (("simulated, dominated", rest, 6), ("Pareto front", front.front, 0)):
        pairs = [(_shown(p.value(x), x), _shown(p.value(y), y), _section_hover(p)) for p in points]
        on = points is front.front
        style: dict[str, Any] = {"mode": "lines+markers" if on and flat else "markers"}
        style["marker"] = {"color": COLOURS[k], "symbol": MARKS[k], "size": 9 if on else 6}
        if on and flat:
            style["line"] = {"color": COLOURS[k], "shape": "hv", "width": 2}
        drawn += _add(figure, pairs, name, style)
    mark = {"color": COLOURS[3], "symbol": "x-thin", "size": 13, "line": {"width": 3, "color": COLOURS[3]}}
    own = [(_shown(_of(p, x), x), _shown(_of(p, y), y), _rate(p.requests_per_s)) for p in answer.plans]
    drawn += _add(figure, own, "plans of this answer", {"mode": "markers", "marker": mark})
    figure.update_xaxes(**logarithmic_axis(x.words, _section_unit(x), [v for v, _ in drawn]))
    figure.update_yaxes(**logarithmic_axis(y.words, _section_unit(y), [v for _, v in drawn]))
    return figure.update_layout(legend=BELOW, margin=MARGIN)


def _add(
    figure: Any, pairs: Sequence[tuple[float | None, float | None, str]], name: str, style: dict[str, Any]
) -> list[tuple[float, float]]:
    known = [(x, y, text) for x, y, text in pairs if x is not None and y is not None]
    if known:
        texts = [text for *_, text in known]
        hover = "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>"
        xs, ys = [x for x, *_ in known], [y for _, y, _ in known]
        figure.add_scatter(x=xs, y=ys, name=name, text=texts, hovertemplate=hover, **style)
    return [(x, y) for x, y, _ in known]


def _of(plan: Plan, axis: FrontAxis) -> float | None:
    """The plan's own value on an axis, in the axis' unit."""
    if axis.is_latency:
        metric, _, stat = axis.name.partition(".")
        found = ((plan.metrics or {}).get(f"{metric}_s") or {}).get(stat)
        return float(found) if found is not None else None
    cost, used = plan.cost, plan.energy
    values = {
        "cost": None if cost is None else cost.usd_per_million_output_tokens,
        "energy": None if used is None else used.j_per_output_token,
        "carbon": None if used is None else used.gco2e_per_million_output_tokens,
    }
    return values.get(axis.name)


def _shown(value: float | None, axis: FrontAxis) -> float | None:
    return None if value is None else value * (MS if axis.is_latency else 1.0)


def _section_unit(axis: FrontAxis) -> str:
    return "ms" if axis.is_latency else axis.unit


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else f"{number_text(per_s)} requests/s"


def _section_hover(point: FrontPoint) -> str:
    return f"{_rate(point.requests_per_s)}<br>{point.hardware}: {point.words}"
