"""The fronts over the whole space beside an answer: every deployment and load that was simulated, and its own plans."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from calibration.report.axes import COLOURS, MARKS
from catalogs.html_page import Markup, chart, command, paragraph
from planner.answer_file import AnswerFile, Plan
from planner.front_file import FrontAxis, FrontFile, FrontPoint
from planner.report.style import BELOW, MARGIN, log, number

MS: Final = 1e3


def fronts(answer: AnswerFile, found: Sequence[FrontFile]) -> list[Markup]:
    """Charts of each front; without any, how to get one."""
    if not found:
        asked, name = answer.request, answer.plans[0].tightest.name
        question = ["plan", "front", "--model", asked.model, "--hw", asked.hardware, "--workload", asked.workload]
        search = shlex.join([*question, "--engine", asked.engine, "--axes", f"cost,{name}", "--json", "front.json"])
        text = (
            "The lines above are the plans of this answer. The front over all deployments and loads is a search of its "
            "own, which this page then shows:"
        )
        return [paragraph(text), command(f"{search}\nplan report answer.json --front front.json --html answer.html")]
    charts = []
    for front in found:
        s = front.search
        ends = "no other is thought to be on the front" if s.exhausted else "more may be found with more"
        x, *others = front.axes
        for y in others:
            said = (
                f"Front of {x.words} and {y.words} over all deployments and loads of {front.request.hardware}: "
                f"{s.n_simulated:,} of {s.n_points:,} points simulated ({ends}), {s.n_requests:,} requests, seed "
                f"{s.seed}. Crosses: the plans of this answer at their planned rates."
            )
            charts.append(chart(_figure(front, answer, x, y), said, 480))
    return charts


def _figure(front: FrontFile, answer: AnswerFile, x: FrontAxis, y: FrontAxis) -> Any:
    import plotly.graph_objects as go

    figure, flat = go.Figure(), len(front.axes) == 2
    rest = [p for p in front.simulated if p.holds and not p.stopped_early and not p.on_front]
    drawn: list[tuple[float, float]] = []
    for name, points, k in (("simulated, beaten", rest, 6), ("front: nothing beats it", front.front, 0)):
        pairs = [(_shown(p.value(x), x), _shown(p.value(y), y), _hover(p)) for p in points]
        on = points is front.front
        style: dict[str, Any] = {"mode": "lines+markers" if on and flat else "markers"}
        style["marker"] = {"color": COLOURS[k], "symbol": MARKS[k], "size": 9 if on else 6}
        if on and flat:
            style["line"] = {"color": COLOURS[k], "shape": "hv", "width": 2}
        drawn += _add(figure, pairs, name, style)
    mark = {"color": COLOURS[3], "symbol": "x-thin", "size": 13, "line": {"width": 3, "color": COLOURS[3]}}
    own = [(_shown(_of(p, x), x), _shown(_of(p, y), y), _rate(p.requests_per_s)) for p in answer.plans]
    drawn += _add(figure, own, "plans of this answer", {"mode": "markers", "marker": mark})
    figure.update_xaxes(**log(x.words, _unit(x), [v for v, _ in drawn]))
    figure.update_yaxes(**log(y.words, _unit(y), [v for _, v in drawn]))
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


def _unit(axis: FrontAxis) -> str:
    return "ms" if axis.is_latency else axis.unit


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else f"{number(per_s)} requests/s"


def _hover(point: FrontPoint) -> str:
    return f"{_rate(point.requests_per_s)}<br>{point.hardware}: {point.words}"
