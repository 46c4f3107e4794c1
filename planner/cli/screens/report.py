"""The screen of `plan report`: the tables of the HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.table import Table

from catalogs.ui.terminal import open_console, text_table
from catalogs.ui.words import digits, dollars, grams, joules, rate, seconds, sure_percent
from planner.report.evidence import effect_cells
from planner.report.material import CarbonFigures, ReportData, ReportSimulations, label
from planner.studies.bottleneck import gain_text, used_text

#: Most regions in the table of emissions on the screen.
_GRIDS: Final = 8


def show(m: ReportData) -> None:
    """Print the tables of a report, or the constraint that refuses the request."""
    console, request = open_console(), m.answer.request
    console.print(f"{request.model} on {request.hardware}, workload {m.answer.workload_words}")
    if m.answer.best is None or m.simulated is None:
        refusal = m.answer.infeasible
        console.print(f"NO: {refusal.binding_constraint if refusal else 'no reason recorded'}")
        return
    for table in _tables(m, m.simulated):
        console.print(table)


def carbon_table(carbon: Sequence[CarbonFigures]) -> Table:
    """Return a table of the carbon in the cleanest grids, and in that of the plan, which may be the user's own.

    Args:
        carbon: The carbon of the plan in every grid, the cleanest first.
    """
    rows = [
        (
            f"{c.name} (the plan's)" if c.chosen else c.name,
            grams(c.gco2e_per_million_output_tokens),
            digits(c.gco2e_per_kwh),
        )
        for place, c in enumerate(carbon)
        if place < _GRIDS or c.chosen
    ]
    head = ("grid", "per million output tokens", "gCO2e/kWh")
    return text_table(head, rows, 1, "Carbon in the cleanest grids, and in the plan's")


def _tables(m: ReportData, s: ReportSimulations) -> Iterator[Table]:
    """Yield the tables: plans, bottleneck, recommended plan by load, prices, carbon and sensitivity."""
    rows = []
    for i, plan in enumerate(m.answer.plans):
        usd = None if plan.cost is None else plan.cost.usd_per_million_output_tokens
        used = None if plan.energy is None else plan.energy.j_per_output_token
        near = f"{plan.tightest.name} {seconds(plan.tightest.value_s)}"
        confidence = sure_percent(min(r.probability_met for r in plan.slo))
        rows.append((label(m.answer, i), rate(plan.requests_per_s), dollars(usd), joules(used), near, confidence))
    plan_head = ("plan", "rate", "per million output tokens", "per token", "nearest objective", "confidence")
    yield text_table(plan_head, rows, 1, "Plans")
    uses = [(u.resource, u.words, used_text(u), gain_text(u), "binds" if u.binds else "") for u in s.uses]
    yield text_table(("resource", "quantity", "used", "10 % more: capacity", ""), uses, 2, "Bottleneck")
    slo, points = m.answer.plans[0].tightest, []
    for p in (p for p in s.points if p.plan == 0):
        value = seconds(p.latency_s.get(slo.metric, {}).get(slo.stat))
        each = (dollars(p.usd_per_million_output_tokens), joules(p.j_per_output_token))
        points.append((rate(p.requests_per_s), value, *each, "yes" if p.met else "no"))
    head: tuple[str, ...] = ("rate", slo.name, "per million output tokens", "per token", "met")
    yield text_table(head, points, 1, "Recommended plan by load")
    if m.answer.prices:
        prices = [
            (
                p.place,
                p.contract,
                p.as_of,
                dollars(p.usd_per_hour),
                "unknown" if p.usd_per_month is None else f"${p.usd_per_month:,.0f}",
                dollars(p.usd_per_million_output_tokens),
                grams(p.gco2e_per_million_output_tokens),
            )
            for p in m.answer.prices
        ]
        head = ("cloud and region", "contract", "as of", "per hour", "per month", "per M output tokens", "carbon per M")
        yield text_table(head, prices, 3, "Prices of the recommended plan by region, carbon of each region's grid")
    yield carbon_table(m.carbon)
    if s.sensitivity is not None:
        unchanged = s.sensitivity.unchanged
        effects = [(unchanged.words, "", *effect_cells(unchanged))]
        for given in s.sensitivity.inputs:
            for n, e in enumerate(e for e in (given.low, given.high) if e is not None):
                effects.append((e.words, "" if n else given.flips, *effect_cells(e)))
        head = ("input", "recommendation changes at", "highest rate", "per million output tokens", "share of the limit")
        yield text_table(head, effects, 2, "Sensitivity (share of the limit: nearest objective at the planned rate)")
