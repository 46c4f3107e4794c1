"""Figures of the trade-offs: cost and energy against latency, prices by cloud, carbon by grid, and sensitivity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from catalogs.ui import charts
from catalogs.ui.charts import COLOURS, number_text
from catalogs.ui.words import dollars, with_sign
from planner.answer.plan_schema import SloResult
from planner.economics.money import CONTRACT_WORDS, PriceLine
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.report.material import CarbonFigures
from planner.report.plots import MS, PlotlyFigure, bars, draw, line, names_axis
from planner.studies.load_sweep import SweepPoint
from planner.studies.sensitivity import Effect, Input

#: An input that changes the answer by less than this many per cent is not drawn.
SMALL: Final = 0.05

Pair = tuple[float, float]


def front(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the Pareto front of pairs, both coordinates minimised, in ascending order of the first coordinate."""
    found: list[Pair] = []
    for pair in sorted(pairs):
        if not found or pair[1] < found[-1][1]:
            found.append(pair)
    return found


def against_latency(
    points: list[SweepPoint], labels: list[str], slo: SloResult, field: str, axis: tuple[str, str]
) -> PlotlyFigure:
    """Return a chart with one line per plan, from light load to its capacity, over the Pareto front of all plans.

    Args:
        points: The simulated points of the plans.
        labels: The names of the plans.
        slo: The objective whose latency is the horizontal axis.
        field: Name of the attribute of a point on the vertical axis.
        axis: Words and unit of the vertical axis.
    """
    marks: list[tuple[Pair, SweepPoint]] = []
    for p in points:
        latency_s, value = p.latency_s.get(slo.metric, {}).get(slo.stat), getattr(p, field)
        if p.stable and value is not None and latency_s is not None:
            marks.append(((MS * latency_s, float(value)), p))
    pairs = [pair for pair, _ in marks]
    wide = {"color": "#c9ced6", "width": 9}
    traces = [line(front(pairs), "Pareto front", line=wide, hoverinfo="skip")]
    for n, label in enumerate(labels):
        own = []
        for (x, y), p in marks:
            text = f"{number_text(p.requests_per_s)} requests/s: {number_text(x)} ms, {number_text(y)} {axis[1]}"
            own += [(x, y, text)] if p.plan == n else []
        style = {"mode": "lines+markers", "hovertemplate": "%{text}<extra></extra>", **charts.series_style(n)}
        traces.append(line(own, label, **style))
    limit, shown = MS * slo.limit_s, [x for x, _ in pairs]
    near = bool(shown) and limit < 4 * max(shown)  # a distant limit would squeeze the points into a corner
    shown += [limit] if near else []
    x_axis = charts.logarithmic_axis(f"{LATENCY_METRICS[slo.metric].title}, {slo.stat}", "ms", shown)
    figure = draw(traces, x_axis, charts.logarithmic_axis(*axis, [y for _, y in pairs]))
    if near:
        charts.vertical_line(figure, limit, f"objective: {number_text(limit)} ms", log_axis=True)
    return figure


def price_bars(prices: list[PriceLine]) -> PlotlyFigure:
    """Return a bar chart of US dollars per million output tokens by region and contract, the cheapest at the top."""
    traces = []
    for i, contract in enumerate(CONTRACT_WORDS.values()):
        values = []
        for p in prices:
            usd = p.usd_per_million_output_tokens
            if p.contract == contract and usd is not None:
                values.append((_offer(p), usd, f" {dollars(usd)}, {dollars(p.usd_per_hour)}/h"))
        traces.append(bars(values, i, name=contract))
    most = max((p.usd_per_million_output_tokens or 0.0 for p in prices), default=1.0)
    x_axis = charts.linear_axis("per million output tokens", "USD", range=[0, most * 1.3])
    order = {"categoryorder": "array", "categoryarray": [_offer(p) for p in prices]}
    height = 26 * max(len(prices), 3)
    return draw(traces, x_axis, names_axis("region (contract)", **order), -60 / height, bargap=0.25)


def _offer(price: PriceLine) -> str:
    return f"{price.place} ({price.contract})"


def carbon_bars(found: list[CarbonFigures]) -> PlotlyFigure:
    """Return a bar chart of grams CO2e per million output tokens by grid; the grid of the answer is hatched."""
    rows = []
    for c in found:
        grams = c.gco2e_per_million_output_tokens
        rows.append((c.name, grams, f" {number_text(grams)} g" + (" (the answer's)" if c.chosen else "")))
    colours = [COLOURS[1] if c.chosen else COLOURS[2] for c in found]
    marker = {"color": colours, "pattern": charts.hatch(["/" if c.chosen else "" for c in found])}
    most = max(grams for _, grams, _ in rows)
    x_axis = charts.linear_axis("carbon per million output tokens", "gCO2e", range=[0, most * 1.2])
    return draw([bars(rows, marker=marker)], x_axis, names_axis("grid (yearly mean)"), bargap=0.25)


def tornado(inputs: list[Input], field: str, base: float, words: str) -> PlotlyFigure:
    """Return a bar chart of the change of the answer with a lower and a higher value of each input, widest at the top.

    Args:
        inputs: The inputs with their effects.
        field: Name of the attribute of an effect that is drawn.
        base: The value of that figure in the answer.
        words: Words of the horizontal axis, in per cent.
    """
    swings = [(i.name, [_swing(e, field, base) for e in (i.low, i.high)]) for i in inputs]
    widest = [max(abs(value or 0.0) for value, _ in sides) for _, sides in swings]
    shown = [swings[n] for n in sorted(range(len(swings)), key=lambda n: -widest[n]) if widest[n] >= SMALL]
    traces = [
        bars([(name, *sides[k]) for name, sides in shown], k, colour, name=f"input {side}")
        for k, (side, colour) in enumerate((("lower", COLOURS[0]), ("higher", COLOURS[3])))
    ]
    most = max([*widest, 1.0]) * 2.2
    x_axis = charts.linear_axis(words, "%", range=[-most, most], rangemode="normal", ticksuffix="")
    height = 44 * max(len(shown), 2)
    figure = draw(traces, x_axis, names_axis("input changed"), -70 / height, barmode="overlay", bargap=0.3)
    figure.add_vline(x=0, line={"color": charts.REFERENCE, "width": 1.2})
    return figure


def _swing(effect: Effect | None, field: str, base: float) -> tuple[float | None, str]:
    """Return the change of a figure in per cent, and its text; a change below SMALL has no text."""
    value = None if effect is None else getattr(effect, field)
    if effect is None or value is None:
        return None, ""
    change = 100 * (value / base - 1)
    return change, "" if abs(change) < SMALL else f" {effect.change} → {with_sign(change, 1)} % "
