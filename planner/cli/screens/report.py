"""The screen of `plan report`: the tables of the HTML page."""

from __future__ import annotations

from typing import Final

from rich.table import Table

from catalogs.ui.terminal import open_console, text_table
from catalogs.ui.words import dollars, grams, joules, percent, rate, seconds
from planner.report.material import ReportData, ReportSimulations, label

_GRIDS: Final = 8


def show(m: ReportData) -> None:
    """Print the report."""
    console = open_console()
    answer, s = m.answer, m.simulated
    console.print(f"{answer.request.model} on {answer.request.hardware}, workload {answer.request.workload}")
    if answer.best is None or s is None:
        no = answer.infeasible
        console.print(f"NO: {no.binding_constraint if no else 'no reason recorded'}")
        return
    console.print(plans_table(m))
    console.print(binds_table(s))
    console.print(trade_off_table(m, s))
    if answer.prices:
        rows = [
            (p.cloud, p.contract, dollars(p.usd_per_hour), dollars(p.usd_per_million_output_tokens), p.as_of)
            for p in answer.prices
        ]
        console.print(
            text_table(("cloud", "contract", "per hour", "per million output tokens", "as of"), rows, 2, "Prices")
        )
    carbon = [(c.name, grams(c.gco2e_per_million_output_tokens), f"{c.gco2e_per_kwh:g}") for c in m.carbon[:_GRIDS]]
    console.print(
        text_table(("grid", "per million output tokens", "g CO2e/kWh"), carbon, 1, "Carbon in the cleanest grids")
    )
    if s.sensitivity is not None:
        console.print(sensitivity_table(s))


def plans_table(m: ReportData) -> Table:
    """Return a table with one row per plan: rate, cost, energy, nearest objective and confidence."""
    rows = []
    for i, plan in enumerate(m.answer.plans):
        usd = None if plan.cost is None else plan.cost.usd_per_million_output_tokens
        used = None if plan.energy is None else plan.energy.j_per_output_token
        sure = percent(min(r.probability_met for r in plan.slo))
        near = f"{plan.tightest.name} {seconds(plan.tightest.value_s)}"
        rows.append((label(m.answer, i), rate(plan.requests_per_s), dollars(usd), joules(used), near, sure))
    return text_table(
        ("plan", "rate", "per million output tokens", "per token", "nearest objective", "confidence"), rows, 1, "Plans"
    )


def binds_table(s: ReportSimulations) -> Table:
    """Return a table of every resource and its utilisation, with the bottleneck marked."""
    rows = [(u.resource, u.words, f"{100 * u.share:.0f} %", "bottleneck" if u.binds else "") for u in s.uses]
    return text_table(("resource", "quantity", "used", ""), rows, 2, "Bottleneck")


def trade_off_table(m: ReportData, s: ReportSimulations) -> Table:
    """Return a table of the recommended plan from a light load to its capacity."""
    slo = m.answer.plans[0].tightest
    rows = []
    for p in (p for p in s.points if p.plan == 0):
        value = p.latency_s.get(slo.metric, {}).get(slo.stat)
        each = (dollars(p.usd_per_million_output_tokens), joules(p.j_per_output_token))
        rows.append((rate(p.requests_per_s), seconds(value), *each, "yes" if p.met else "no"))
    return text_table(
        ("rate", slo.name, "per million output tokens", "per token", "met"), rows, 1, "Recommended plan by load"
    )


def sensitivity_table(s: ReportSimulations) -> Table:
    """Return a table of the inputs that change the answer."""
    rows = []
    for i in s.sensitivity.inputs if s.sensitivity else []:
        for n, e in enumerate(e for e in (i.low, i.high) if e is not None):
            share = "queue grows" if e.slo_share == float("inf") else f"{100 * e.slo_share:.0f} %"
            flips = i.flips if n == 0 else ""
            cells = (rate(e.capacity_requests_per_s), dollars(e.usd_per_million_output_tokens), share)
            rows.append((e.variant.words, flips, *cells))
    head = ("input", "recommendation changes at", "highest rate", "per million output tokens", "share of the limit")
    return text_table(head, rows, 2, "Sensitivity (share of the limit: nearest objective at the planned rate)")
