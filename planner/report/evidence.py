"""The sections of evidence: trade-offs, capacity, bottleneck, cost and energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from catalogs.hardware.specs import Accelerator
from catalogs.ui.charts import time_text
from catalogs.ui.html_page import Markup, PageSection, chart, note, paragraph, table
from catalogs.ui.words import dollars, grams, joules, rate
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.economics.money import instance_words
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.report import latency_figures, machine_figures, money_figures
from planner.report.material import ReportData, ReportSimulations, label
from planner.report.pareto_page import fronts
from planner.studies.bottleneck import PoolUse
from simulator.analysis.bottleneck import IDLE
from simulator.analysis.operators import BOUND_WORDS, OperatorRow, together

TERA: Final = 1e12

ONE_REPLICA = "One replica under its share of the requests represents all; "


def trade_offs(m: ReportData, s: ReportSimulations) -> PageSection:
    """Return the section of cost and energy against latency."""
    answer, labels = m.answer, [label(m.answer, i) for i in range(len(m.answer.plans))]
    slo, points = m.answer.plans[0].tightest, [p for p in s.points if p.share <= 1]
    parts = [
        paragraph(
            "Each line is one plan from a tenth of its capacity (upper left: short latencies, underused hardware) up "
            "to its capacity. The wide grey line is the Pareto front."
        )
    ]
    said = f"{ONE_REPLICA}simulated for this page, seed {answer.request.seed}, at shares of each plan's capacity."
    if any(p.usd_per_million_output_tokens is not None for p in points):
        axis, field = ("cost per million output tokens", "USD"), "usd_per_million_output_tokens"
        figure = money_figures.against_latency(points, labels, slo, field, axis)
        parts.append(chart(figure, f"Cost against latency. {said} Prices as in the answer.", 480))
    else:
        parts.append(note("Cost is not shown: no known price for this hardware (plan --price USD_PER_HOUR)."))
    axis, field = ("energy per output token", "J"), "j_per_output_token"
    if any(p.j_per_output_token is not None for p in points):
        figure = money_figures.against_latency(points, labels, slo, field, axis)
        parts.append(chart(figure, f"Energy against latency, at the servers. {said}", 480))
    return PageSection(
        "Trade-offs: cost and energy against latency", [*parts, *fronts(m.answer, m.fronts)], "Trade-offs"
    )


def capacity(plan: Plan, s: ReportSimulations) -> PageSection:
    """Return the section of latency by request rate."""
    parts = []
    for metric in latency_figures.curve_metrics(plan):
        figure = latency_figures.capacity_curve(plan, s.points, metric)
        title = LATENCY_METRICS[metric].title
        said = f"{title.capitalize()} against the rate, simulated. {ONE_REPLICA}hollow marks: the queue grows."
        parts.append(chart(figure, said, 420))
    parts.append(paragraph(_knee_words(plan, s)))
    n = max((p.n_measured for p in plan.curve), default=0)
    text = f"Latencies at {rate(plan.requests_per_s)}, as a client sees them; up to {n:,} requests measured."
    parts.append(chart(latency_figures.distributions(plan), text, 420))
    return PageSection("Capacity: latency against the rate", parts, "Capacity")


def _knee_words(plan: Plan, s: ReportSimulations) -> str:
    """Return the knee of every statistic with an objective in words."""
    found = []
    for row in plan.slo:
        bend = latency_figures.knee(latency_figures.points_of(plan, s.points, row.metric, row.stat))
        found.append(f"{row.name}: " + ("none" if bend is None else rate(bend)))
    meaning = "The knee is the rate above which latency rises steeply: the point furthest below the chord of the curve"
    return f"{meaning}. Knee of {', of '.join(found)}. Planned: {rate(plan.requests_per_s)}."


def binds(plan: Plan, s: ReportSimulations) -> PageSection:
    """Return the section of the bottleneck: time and memory."""
    parts: list[Markup] = [paragraph(_step_words(part)) for part in s.parts]
    rows = [(u.resource, u.words, u.of, f"{100 * u.share:.1f} %", "bottleneck" if u.binds else "") for u in s.uses]
    parts.append(table(("Resource", "Quantity", "Share of", "Used", ""), rows, words=3))
    if plan.time_breakdown:
        figure = machine_figures.time_by_class(plan.time_breakdown)
        said = "Simulated replica time of the answer's own runs by class of operator."
        parts.append(chart(figure, said, 90 + 30 * len([v for v in plan.time_breakdown.values() if v > 0])))
    for part in s.parts:
        parts += _machine(part, s.accelerator)
    return PageSection("Bottleneck: time and memory", parts, "Bottleneck")


def _machine(part: PoolUse, unit: Accelerator) -> Iterator[Markup]:
    """Yield the charts of one kind of replica: time by layer, roofline, operators and memory."""
    a, whose = part.bottleneck.samples, "" if part.role == "both" else f"{part.role.capitalize()} servers. "
    blocks = len({machine_figures.block_of(r) for r in a.operators})
    said = (
        "A mean step of the simulated run by operator: the layers of each kind, and the operators outside the layers."
    )
    yield chart(machine_figures.time_by_layer(a.operators, a.n_steps), whose + said, 110 + 62 * blocks)
    ceilings = machine_figures.ceiling_words(unit)
    said = f"Operators of the simulated run, all steps together. Ceilings of the {unit.name}: {ceilings}."
    yield chart(machine_figures.roofline(a.operators, unit), whose + said, 540)
    yield operators_table(a.operators, a.n_steps, whose)
    if part.memory is not None:
        m = part.memory
        said = f"{whose}{m.equation}. Space for {m.kv_tokens_per_replica:,} tokens per replica."
        yield chart(machine_figures.memory_bar(m), said, 190)


def operators_table(rows: Sequence[OperatorRow], n_steps: float, whose: str = "") -> Markup:
    """Return the points of the roofline as a table, for print."""
    head = ("Operator", "Bound by", "FLOP/B", "TFLOP/s", "TB/s", "Share of roofline", "Per step", "Share")
    total, found = sum(r.seconds for r in rows), []
    for r in together(rows):
        work = (f"{r.intensity:.3g}", f"{r.flops / r.seconds / TERA:.3g}") if r.flops else ("", "")
        figures = (*work, f"{r.bytes / r.seconds / TERA:.3g}", f"{100 * r.efficiency:.0f} %")
        times = (time_text(r.seconds / n_steps), f"{r.seconds / total:.1%}")
        found.append((r.name, BOUND_WORDS[r.bound], *figures, *times))
    said = (
        "The same as a table, including operators that only move data: one accelerator, all executions in a mean step. "
        "More than 100 % of the roofline means that data came from a cache."
    )
    return table(head, found, whose + said, words=2)


def _step_words(part: PoolUse) -> str:
    a = part.bottleneck.samples
    tokens = f"{a.mean_prefill_tokens:,.0f} tokens on average"
    if part.role == "prefill":
        busy = 100 * (1 - part.bottleneck.shares.steps[IDLE])
        return f"At the planned rate a prefill server is busy {busy:.0f} % of the time, with steps of {tokens}."
    server = "replica" if part.role == "both" else "decode server"
    prompts = f"{100 * a.prefill_step_fraction:.0f} % of the steps also hold prompts ({tokens})"
    return (
        f"At the planned rate a {server} runs {a.mean_decodes:,.0f} concurrent sequences on average, with "
        f"{a.mean_context_tokens:,.0f} tokens each{f'; {prompts}' if part.role == 'both' else ''}. Shares refer to the "
        f"simulated time of one {server}."
    )


def money(answer: Answer, plan: Plan) -> PageSection:
    """Return the section of the prices by cloud."""
    tokens = plan.metric("output_tokens_per_s") or 0.0
    if not answer.prices:
        return PageSection("Cost by cloud", [note("No known price for this hardware.")], "Cost")
    text = (
        f"Prices of the same hardware, at the {tokens:,.0f} output tokens/s of the plan. Owned: total cost of "
        "ownership including power and financing. Spot instances can be interrupted at any time."
    )
    head = ("Cloud", "Instance", "Source", "Per hour", "Per million output tokens", "Per million tokens")
    rows = []
    for p in answer.prices:
        each = (dollars(p.usd_per_million_output_tokens), dollars(p.usd_per_million_total_tokens))
        machine = instance_words(p.instance, p.accelerators_per_instance, p.instances)
        where = " ".join(x for x in (machine, p.region) if x)
        source = f"{p.source}, {p.as_of}" + (f"; {p.note}" if p.note and p.note != p.contract else "")
        rows.append((f"{p.cloud}, {p.contract}", where, source, dollars(p.usd_per_hour), *each))
    height = 110 + 26 * len(answer.prices)
    bars = chart(
        money_figures.price_bars(answer.prices), "Prices are public list prices of the date in the table.", height
    )
    return PageSection("Cost by cloud", [paragraph(text), bars, table(head, rows, words=3)], "Cost")


def energy(m: ReportData, plan: Plan) -> PageSection:
    """Return the section of energy, and of carbon by region."""
    e = plan.energy
    if e is None or not m.carbon:
        return PageSection(
            "Energy and carbon", [note("The energy is unknown, because the plan was not simulated.")], "Energy"
        )
    rows = [
        ("Mean power at the servers", f"{e.w_mean / 1e3:.2f} kW", "simulated: accelerators by operator, hosts by load"),
        ("Energy per output token", joules(e.j_per_output_token), "simulated, at the servers"),
        ("Energy per million output tokens", f"{e.kwh_per_million_output_tokens:.3g} kWh", "including the facility"),
        ("Facility over servers (PUE)", f"{e.pue:g}", "assumed: Uptime Institute survey 2024, newer sites"),
        ("Carbon intensity", f"{e.grid_gco2e_per_kwh:g} g CO2e/kWh", str(e.grid_source)),
        ("Carbon per million output tokens", grams(e.gco2e_per_million_output_tokens), "product of the above"),
    ]
    bars = chart(
        money_figures.carbon_bars(m.carbon),
        "The same energy on other grids, yearly means. Manufacturing of the hardware is not included.",
        90 + 26 * len(m.carbon),
    )
    return PageSection(
        "Energy and carbon by region",
        [table(("quantity", "value", "source"), [(a, b, c) for a, b, c in rows], words=3), bars],
        "Energy",
    )
