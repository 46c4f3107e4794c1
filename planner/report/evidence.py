"""The sections of evidence: trade-offs, capacity, bottleneck, cost, energy, sensitivity and growth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from catalogs.hardware.specs import Accelerator
from catalogs.ui.charts import time_text
from catalogs.ui.html_page import Markup, PageSection, chart, note, paragraph, table
from catalogs.ui.words import dollars, extra_dollars, grams, joules, kilowatts, percent, rate
from catalogs.units import TERA
from planner.answer.answer_schema import Answer
from planner.answer.plan_schema import Plan
from planner.economics.money import grid_words
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.report import answer_tables, latency_figures, machine_figures, money_figures
from planner.report.material import ReportData, ReportSimulations, label
from planner.report.pareto_page import front_charts
from planner.studies.bottleneck import PoolUse, gain_text, used_text
from planner.studies.capacity_growth import CAPACITY_GOAL, GrowthStep
from planner.studies.explain import cheapest_words
from planner.studies.sensitivity import CAPACITY_TOLERANCE, Effect, Input
from simulator.analysis.bottleneck import IDLE
from simulator.analysis.operators import BOUND_WORDS, OperatorRow, together

ONE_REPLICA: Final = "One replica under its share of the requests represents all; "


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
    simulated = f"{ONE_REPLICA}simulated for this page, seed {answer.request.seed}, at shares of each plan's capacity."
    if any(p.usd_per_million_output_tokens is not None for p in points):
        axis = ("cost per million output tokens", "USD")
        figure = money_figures.against_latency(points, labels, slo, "usd_per_million_output_tokens", axis)
        parts.append(chart(figure, f"Cost against latency. {simulated} Prices as in the answer.", 480))
    else:
        parts.append(note("Cost is not shown: no known price for this hardware (plan --price USD_PER_HOUR)."))
    if any(p.j_per_output_token is not None for p in points):
        axis = ("energy per output token", "J")
        figure = money_figures.against_latency(points, labels, slo, "j_per_output_token", axis)
        parts.append(chart(figure, f"Energy against latency, at the servers. {simulated}", 480))
    parts += front_charts(answer, m.fronts)
    return PageSection("Trade-offs: cost and energy against latency", parts, "Trade-offs")


def capacity(plan: Plan, s: ReportSimulations) -> PageSection:
    """Return the section of latency by request rate."""
    parts = []
    for metric in latency_figures.curve_metrics(plan):
        title = LATENCY_METRICS[metric].title.capitalize()
        caption = (
            f"{title} against the rate, simulated. {ONE_REPLICA}the curve goes through the value of the whole plan at "
            "its planned rate. Hollow marks: the queue grows."
        )
        parts.append(chart(latency_figures.capacity_curve(plan, s.points, metric), caption, 420))
    parts.append(paragraph(_knee_words(plan)))
    n = max((p.n_measured for p in plan.curve), default=0)
    text = f"Latencies at {rate(plan.requests_per_s)}, as a client sees them; up to {n:,} requests measured."
    parts.append(chart(latency_figures.distributions(plan), text, 420))
    return PageSection("Capacity: latency against the rate", parts, "Capacity")


def _knee_words(plan: Plan) -> str:
    """Return the knee of every statistic with an objective in words."""
    found = []
    for row in plan.slo:
        bend = latency_figures.knee_of(plan, row.metric, row.stat)
        found.append(f"{row.name}: " + ("none" if bend is None else rate(bend)))
    meaning = "The knee is the rate above which latency rises steeply: the point furthest below the chord of the "
    meaning += "curve through the rates of the answer"
    return f"{meaning}. Knee of {', of '.join(found)}. Planned: {rate(plan.requests_per_s)}."


#: The definition of what binds, above its table.
_BINDS_WORDS: Final = (
    "What binds is the resource of which 10 % more raises the capacity most. The plan is simulated again for each "
    "resource, with the same requests. How much of a resource is used does not decide that."
)

#: What replaces the definition where the gains were not simulated.
_NOT_SIMULATED_WORDS: Final = (
    "What binds was not simulated for this page, nor which inputs would change the answer. "
    "The command plan report ANSWER.json --html FILE adds both."
)


def binds(plan: Plan, s: ReportSimulations) -> PageSection:
    """Return the section of the bottleneck: time and memory."""
    parts: list[Markup] = [paragraph(_step_words(part)) for part in s.parts]
    head: tuple[str, ...] = ("Resource", "Quantity", "Share of", "Used")
    rows: list[tuple[str, ...]] = [(u.resource, u.words, u.of, used_text(u)) for u in s.uses]
    if any(u.gain is not None for u in s.uses):
        parts.append(paragraph(_BINDS_WORDS))
        head = (*head, "10 % more of it: capacity", "")
        rows = [(*row, gain_text(u), "binds" if u.binds else "") for row, u in zip(rows, s.uses, strict=True)]
    else:
        parts.append(paragraph(_NOT_SIMULATED_WORDS))
    parts.append(table(head, rows, words=3))
    if plan.time_breakdown:
        caption = "Simulated replica time of the answer's own runs by class of operator."
        height = 90 + 30 * sum(v > 0 for v in plan.time_breakdown.values())
        parts.append(chart(machine_figures.time_by_class(plan.time_breakdown), caption, height))
    for part in s.parts:
        parts += _machine(part, s.accelerator)
    return PageSection("Bottleneck: time and memory", parts, "Bottleneck")


def _machine(part: PoolUse, unit: Accelerator) -> Iterator[Markup]:
    """Yield the charts of one kind of replica: time by layer, roofline, operators and memory."""
    a, pool = part.bottleneck.samples, "" if part.role == "both" else f"{part.role.capitalize()} servers. "
    blocks = len({machine_figures.block_of(r) for r in a.operators})
    caption = (
        "A mean step of the simulated run by operator: the layers of each kind, and the operators outside the layers."
    )
    yield chart(machine_figures.time_by_layer(a.operators, a.n_steps), pool + caption, 110 + 62 * blocks)
    ceilings = machine_figures.ceiling_words(unit)
    caption = f"Operators of the simulated run, all steps together. Ceilings of the {unit.name}: {ceilings}."
    yield chart(machine_figures.roofline(a.operators, unit), pool + caption, 540)
    yield _operators_table(a.operators, a.n_steps, pool)
    if part.memory is not None:
        caption = f"{part.memory.equation}. Space for {part.memory.kv_tokens_per_replica:,} tokens per replica."
        yield chart(machine_figures.memory_bar(part.memory), pool + caption, 190)


def _operators_table(rows: Sequence[OperatorRow], n_steps: float, pool: str) -> Markup:
    """Return the points of the roofline as a table, for print."""
    head = ("Operator", "Bound by", "FLOP/B", "TFLOP/s", "TB/s", "Share of roofline", "Per step", "Share")
    total_s, cells = sum(r.seconds for r in rows), []
    for r in together(rows):
        work = (f"{r.intensity:.3g}", f"{r.flops / r.seconds / TERA:.3g}") if r.flops else ("", "")
        rates = (*work, f"{r.bytes / r.seconds / TERA:.3g}", percent(r.efficiency))
        cells.append(
            (r.name, BOUND_WORDS[r.bound], *rates, time_text(r.seconds / n_steps), percent(r.seconds / total_s, 1))
        )
    caption = (
        "The same as a table, including operators that only move data: one accelerator, all executions in a mean step. "
        "More than 100 % of the roofline means that data came from a cache."
    )
    return table(head, cells, pool + caption, words=2)


def _step_words(part: PoolUse) -> str:
    a = part.bottleneck.samples
    tokens = f"{a.mean_prefill_tokens:,.0f} tokens on average"
    if part.role == "prefill":
        busy = 100 * (1 - part.bottleneck.shares.steps[IDLE])
        return f"At the planned rate a prefill server is busy {busy:.0f} % of the time, with steps of {tokens}."
    server = "replica" if part.role == "both" else "decode server"
    prompts = f"{percent(a.prefill_step_fraction)} of the steps also hold prompts ({tokens})"
    return (
        f"At the planned rate a {server} runs {a.mean_decodes:,.0f} concurrent sequences on average, with "
        f"{a.mean_context_tokens:,.0f} tokens each{f'; {prompts}' if part.role == 'both' else ''}. Shares refer to the "
        f"simulated time of one {server}."
    )


def money(answer: Answer, plan: Plan) -> PageSection:
    """Return the section of the prices by cloud."""
    if not answer.prices:
        return PageSection("Cost by cloud", [note("No known price for this hardware.")], "Cost")
    text = (
        f"Prices of the same plan in each region, at its {plan.metric('output_tokens_per_s') or 0.0:,.0f} output "
        "tokens/s. Owned: total cost of ownership including power and financing, an estimate that no cloud offers. "
        "Spot instances can be interrupted at any time."
    )
    found = answer_tables.regions(answer)
    bars = chart(money_figures.price_bars(answer.prices), found.caption, 110 + 26 * len(answer.prices))
    return PageSection(
        "Cost by cloud", [paragraph(text), bars, table(found.head, found.rows, words=found.words)], "Cost"
    )


def energy(m: ReportData, plan: Plan) -> PageSection:
    """Return the section of energy, and of carbon by region."""
    e = plan.energy
    if e is None or not m.carbon:
        text = "The energy is unknown, because the plan was not simulated."
        return PageSection("Energy and carbon", [note(text)], "Energy")
    owned = m.answer.request.accounting.owned
    given = owned is not None and owned.pue is not None
    site = "given: accounting.owned.pue" if given else "assumed: Uptime Institute survey 2024, newer sites"
    rows = [
        ("Mean power at the servers", kilowatts(e.w_mean), "simulated: accelerators by operator, hosts by load"),
        *([("of it unused", kilowatts(plan.unused_w), plan.unused_words)] if plan.unused_words else []),
        ("Energy per output token", joules(e.j_per_output_token), "simulated, at the servers"),
        ("Energy per million output tokens", f"{e.kwh_per_million_output_tokens:.3g} kWh", "including the facility"),
        ("Facility over servers (PUE)", f"{e.pue:g}", site),
        ("Carbon intensity", f"{e.grid_gco2e_per_kwh:g} gCO2e/kWh", f"{grid_words(e)}: {e.grid_source}"),
        ("Carbon per million output tokens", grams(e.gco2e_per_million_output_tokens), "product of the above"),
    ]
    caption = "The same energy on other grids, yearly means. Manufacturing of the hardware is not included."
    bars = chart(money_figures.carbon_bars(m.carbon), caption, 90 + 26 * len(m.carbon))
    parts = [table(("quantity", "value", "source"), rows, words=3), bars]
    return PageSection("Energy and carbon by region", parts, "Energy")


def sensitivity(plan: Plan, s: ReportSimulations) -> list[PageSection]:
    """Return the section of the inputs that change the answer; empty if it was not simulated."""
    title = "Sensitivity: inputs that change the answer"
    if s.sensitivity is None:
        return []
    inputs = s.sensitivity.inputs
    text = (
        "One input at a time is decreased by 20 % and increased by 25 % (host overhead: half and double; step time: by "
        "the stated error of the answer; prefix hits: half of every prompt shared, or none), and everything is "
        f"simulated again. Rates within {percent(CAPACITY_TOLERANCE)} of each other count as equal; inputs without "
        "effect are not in the charts. The value at which the recommendation changes is found by bisection, to about "
        "5 %."
    )
    parts, height = [paragraph(text)], 110 + 44 * len(inputs)
    usd = None if plan.cost is None else plan.cost.usd_per_million_output_tokens
    per_s = plan.capacity_requests_per_s
    if usd:
        words = "change of the cost per million output tokens"
        figure = money_figures.tornado(inputs, "usd_per_million_output_tokens", usd, words)
        caption = (
            f"From {dollars(usd)} per million output tokens, at the required or else the highest sustainable rate."
        )
        parts.append(chart(figure, caption, height))
    if per_s:
        words = "change of the highest sustainable rate"
        figure = money_figures.tornado(inputs, "capacity_requests_per_s", per_s, words)
        parts.append(chart(figure, f"From {rate(per_s)}. Rate and price do not change it.", height))
    head = (
        "Input",
        "Recommendation changes at",
        "Change",
        "Highest rate",
        "Cost per million output tokens",
        "Nearest objective",
    )
    unchanged = s.sensitivity.unchanged
    rows = [(unchanged.words, "", "", *effect_cells(unchanged)), *(row for i in inputs for row in _input_rows(i))]
    caption = "Nearest objective: its value as a share of its limit at the planned rate; over 100 % it is missed."
    parts.append(table(head, rows, caption, words=3))
    return [PageSection(title, parts, "Sensitivity")]


def _input_rows(i: Input) -> Iterator[tuple[str, ...]]:
    for n, e in enumerate(e for e in (i.low, i.high) if e is not None):
        yield ("" if n else i.name, "" if n else i.flips, e.change, *effect_cells(e))


def effect_cells(e: Effect) -> tuple[str, str, str]:
    """Return the highest rate, the cost per million output tokens, and the share of the limit with a changed input."""
    share = "queue grows" if e.slo_share == float("inf") else percent(e.slo_share)
    return rate(e.capacity_requests_per_s), dollars(e.usd_per_million_output_tokens), share


def growth(answer: Answer, s: ReportSimulations) -> list[PageSection]:
    """Return the section of changes for more capacity; empty if it was not simulated."""
    if s.growth is None:
        return []
    g, best = s.growth, s.growth.cheapest
    rows = [growth_row(c) for c in g.changes]
    result = "No change that was tried reaches it." if best is None else f"Cheapest: {cheapest_words(best)}."
    text = (
        f"Changes with which the plan serves {g.words}, with {percent(answer.request.confidence)} confidence, "
        f"simulated at that rate. {result} Prices are those of the answer."
    )
    changes = table(("Change", "Meets objectives", "Cost per hour", "Difference per hour"), rows)
    return [PageSection(f"{percent(CAPACITY_GOAL - 1)} more capacity", [paragraph(text), changes], "More capacity")]


def growth_row(c: GrowthStep) -> tuple[str, str, str, str]:
    """Return a change, whether it meets the objectives, its price per hour, and the difference of that price."""
    words = c.words + (f" ({c.note})" if c.note else "")
    return words, "yes" if c.holds else "no", dollars(c.usd_per_hour), extra_dollars(c.extra_usd_per_hour)
