"""Trade-offs: cost and energy against latency, prices by cloud, carbon by grid, and what moves the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from catalogs.ui.charts import (
    BELOW,
    COLOURS,
    MARGIN,
    REFERENCE,
    bar_style,
    hatch,
    linear_axis,
    logarithmic_axis,
    number_text,
    series_style,
    vertical_line,
)
from catalogs.ui.words import dollars
from planner.answer.plan_schema import SloResult
from planner.economics.money import CONTRACT_WORDS, OWNED, PriceLine
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.report.latency_figures import MS
from planner.report.material import CarbonFigures
from planner.studies.load_sweep import SweepPoint
from planner.studies.sensitivity import Effect, Input

CONTRACTS: Final = (*CONTRACT_WORDS.values(), OWNED)

#: Per cent: an input that moves the answer less is not drawn.
SMALL: Final = 0.05

Pair = tuple[float, float]


def front(pairs: Sequence[Pair]) -> list[int]:
    """Places of the pairs that no other beats in both, the least first coordinate first."""
    found: list[int] = []
    for i in sorted(range(len(pairs)), key=lambda i: pairs[i]):
        if not found or pairs[i][1] < pairs[found[-1]][1]:
            found.append(i)
    return found


def against_latency(
    points: list[SweepPoint], labels: list[str], slo: SloResult, field: str, axis: tuple[str, str]
) -> Any:
    """One line per plan, from light load to its capacity; the front of all of them drawn through. axis: words, unit."""
    import plotly.graph_objects as go

    figure = go.Figure()
    usable = [p for p in points if p.stable and getattr(p, field) is not None and _latency_ms(p, slo) is not None]
    pairs = [(_latency_ms(p, slo) or 0.0, float(getattr(p, field))) for p in usable]
    best = front(pairs)
    wide = {"color": "#c9ced6", "width": 9}
    name = "Pareto front"
    on = {"x": [pairs[i][0] for i in best], "y": [pairs[i][1] for i in best]}
    figure.add_scatter(**on, mode="lines", line=wide, name=name, hoverinfo="skip")
    for n, label in enumerate(labels):
        mine = [(pair, p) for pair, p in zip(pairs, usable, strict=True) if p.plan == n]
        texts = [
            f"{number_text(p.requests_per_s)} requests/s: {number_text(x)} ms, {number_text(y)} {axis[1]}"
            for (x, y), p in mine
        ]
        where = {"x": [x for (x, _), _ in mine], "y": [y for (_, y), _ in mine], "text": texts}
        hover = "%{text}<extra></extra>"
        figure.add_scatter(**where, mode="lines+markers", name=label, hovertemplate=hover, **series_style(n))
    limit = MS * slo.limit_s
    shown = [x for x, _ in pairs]
    if shown and limit < 4 * max(shown):  # a limit far off would squeeze the points into a corner
        vertical_line(figure, limit, f"objective: {number_text(limit)} ms", log_axis=True)
        shown.append(limit)
    figure.update_xaxes(**logarithmic_axis(f"{LATENCY_METRICS[slo.metric].title}, {slo.stat}", "ms", shown))
    figure.update_yaxes(**logarithmic_axis(*axis, [y for _, y in pairs]))
    return figure.update_layout(legend=BELOW, margin=MARGIN)


def _latency_ms(point: SweepPoint, slo: SloResult) -> float | None:
    value = point.latency_s.get(slo.metric, {}).get(slo.stat)
    return None if value is None else MS * value


def price_bars(prices: list[PriceLine]) -> Any:
    """Dollars per million output tokens, the cheapest at the top."""
    import plotly.graph_objects as go

    figure, order = go.Figure(), [_offer(p) for p in prices]
    for i, contract in enumerate(CONTRACTS):
        mine = [p for p in prices if p.contract == contract and p.usd_per_million_output_tokens is not None]
        values = [p.usd_per_million_output_tokens for p in mine]
        texts = [f" {dollars(v)}, {dollars(p.usd_per_hour)}/h" for v, p in zip(values, mine, strict=True)]
        style = {
            "orientation": "h",
            "marker": bar_style(i),
            "text": texts,
            "textposition": "outside",
            "hoverinfo": "skip",
        }
        figure.add_bar(y=[_offer(p) for p in mine], x=values, name=contract, cliponaxis=False, **style)
    most = max((p.usd_per_million_output_tokens or 0.0 for p in prices), default=1.0)
    figure.update_xaxes(**linear_axis("per million output tokens", "USD", range=[0, most * 1.3]))
    rows = {"categoryorder": "array", "categoryarray": order, "autorange": "reversed", "showgrid": False}
    figure.update_yaxes(title={"text": "cloud (contract)"}, **rows)
    return figure.update_layout(legend=BELOW | {"y": -60 / (26 * max(len(prices), 3))}, margin=MARGIN, bargap=0.25)


def _offer(price: PriceLine) -> str:
    return f"{price.cloud} ({price.contract})"


def carbon_bars(found: list[CarbonFigures]) -> Any:
    """Grams per million output tokens by grid; the answer's own is hatched."""
    import plotly.graph_objects as go

    colours = [COLOURS[1] if c.chosen else COLOURS[2] for c in found]
    shapes = ["/" if c.chosen else "" for c in found]
    marker = {"color": colours, "pattern": hatch(shapes)}
    texts = [
        f" {number_text(c.gco2e_per_million_output_tokens)} g" + (" (the answer's)" if c.chosen else "") for c in found
    ]
    style = {"orientation": "h", "marker": marker, "text": texts, "textposition": "outside", "hoverinfo": "skip"}
    values = [c.gco2e_per_million_output_tokens for c in found]
    figure = go.Figure(go.Bar(y=[c.name for c in found], x=values, cliponaxis=False, **style))
    figure.update_xaxes(**linear_axis("carbon per million output tokens", "g CO2e", range=[0, max(values) * 1.2]))
    figure.update_yaxes(autorange="reversed", showgrid=False, title={"text": "grid (yearly mean)"})
    return figure.update_layout(margin=MARGIN, bargap=0.25)


def tornado(inputs: list[Input], field: str, base: float, words: str) -> Any:
    """How far the answer moves, per cent, with each input a little lower and higher; the widest at the top."""
    import plotly.graph_objects as go

    swings = [(i.name, [(e, _change(e, field, base)) for e in (i.low, i.high)]) for i in inputs]
    swings = [s for s in swings if any(v is not None and abs(v) >= SMALL for _, v in s[1])]
    swings.sort(key=lambda s: -max(abs(v or 0.0) for _, v in s[1]))
    figure = go.Figure()
    for k, side in enumerate(("lower", "higher")):
        texts = [_swing(*pair[k]) for _, pair in swings]
        style = {
            "orientation": "h",
            "marker": bar_style(k, COLOURS[(0, 3)[k]]),
            "text": texts,
            "textposition": "outside",
        }
        x, y = [pair[k][1] for _, pair in swings], [name for name, _ in swings]
        figure.add_bar(y=y, x=x, name=f"input {side}", cliponaxis=False, hoverinfo="skip", **style)
    reach = max([abs(v) for _, pair in swings for _, v in pair if v is not None] + [1.0]) * 2.2
    figure.update_xaxes(**linear_axis(words, "%", range=[-reach, reach], rangemode="normal"), ticksuffix="")
    figure.update_yaxes(autorange="reversed", showgrid=False, title={"text": "input changed"})
    figure.add_vline(x=0, line={"color": REFERENCE, "width": 1.2})
    below = BELOW | {"y": -70 / (44 * max(len(swings), 2))}
    return figure.update_layout(barmode="overlay", legend=below, margin=MARGIN, bargap=0.3)


def _change(effect: Effect | None, field: str, base: float) -> float | None:
    value = None if effect is None else getattr(effect, field)
    return None if value is None else 100 * (value / base - 1)


def _swing(effect: Effect | None, value: float | None) -> str:
    if effect is None or value is None or abs(value) < SMALL:
        return ""
    words = effect.variant.change
    return f" {words} → {value:+.1f} % ".replace("-", "−")
