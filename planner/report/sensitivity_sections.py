"""What would move an answer: its inputs, where they flip the choice, and what a fifth more capacity would take."""

from __future__ import annotations

from catalogs.ui.html_page import PageSection, chart, note, paragraph, table
from catalogs.ui.words import dollars, rate
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.report import money_figures
from planner.report.material import ReportSimulations, apart
from planner.studies.capacity_growth import GOAL
from planner.studies.choice_flips import CAPACITY_TOLERANCE
from planner.studies.explain import cheapest_words, extra_words
from planner.studies.sensitivity import Effect, Input


def sensitivity(answer: Answer, plan: Plan, s: ReportSimulations) -> list[PageSection]:
    title = "Sensitivity: what moves the answer"
    if s.sensitivity is None and apart(answer):
        said = "Not simulated: inputs are not varied yet for answers with prefill and decode servers."
        return [PageSection(title, [note(said)], "Sensitivity")]
    if s.sensitivity is None:
        return []
    inputs = s.sensitivity.inputs
    text = (
        "One input at a time is changed by a fifth down and a quarter up (host overhead: half and double; step time: "
        "as far as the answer's stated error goes; prefix hits: half of every prompt shared, or none), and everything "
        f"is simulated again. Rates within {CAPACITY_TOLERANCE:.0%} of each other are not told apart; inputs that move "
        "nothing are left out of the charts. Where the choice flips was found by bisection, to about 4 %."
    )
    parts, height = [paragraph(text)], 110 + 44 * len(inputs)
    usd = None if plan.cost is None else plan.cost.usd_per_million_output_tokens
    if usd:
        words = "change of the cost per million output tokens"
        figure = money_figures.tornado(inputs, "usd_per_million_output_tokens", usd, words)
        said = (
            f"From {dollars(usd)} per million output tokens, at the rate asked for or else at the highest that holds."
        )
        parts.append(chart(figure, said, height))
    if plan.capacity_requests_per_s:
        words = "change of the highest rate that holds"
        figure = money_figures.tornado(inputs, "capacity_requests_per_s", plan.capacity_requests_per_s, words)
        parts.append(
            chart(figure, f"From {rate(plan.capacity_requests_per_s)}. Rate and price do not change it.", height)
        )
    head = ("Input", "Where the choice flips", "Change", "Highest rate", "Cost per M output", "Nearest objective")
    rows = [row for i in inputs for row in _input_rows(i)]
    said = "Nearest objective: its value as a share of its limit at the planned rate; over 100 % it is missed."
    parts.append(table(head, rows, said, words=3))
    return [PageSection(title, parts, "Sensitivity")]


def growth(s: ReportSimulations) -> list[PageSection]:
    if s.growth is None:
        return []
    g = s.growth
    rows = []
    for c in g.changes:
        words = c.words + (f" ({c.note})" if c.note else "")
        rows.append((words, "yes" if c.holds else "no", dollars(c.usd_per_hour), extra_words(c)))
    best = g.cheapest
    said = "Nothing tried buys it." if best is None else f"Cheapest: {cheapest_words(best)}."
    text = f"What would carry {rate(g.goal_per_s)} at even odds, simulated at that rate. {said}"
    text += " Prices are read as the answer's."
    found = table(("Change", "Holds", "Then, per hour", "More per hour"), rows)
    return [PageSection(f"{GOAL - 1:.0%} more capacity", [paragraph(text), found], "More capacity")]


def _input_rows(i: Input) -> list[tuple[str, ...]]:
    effects = [e for e in (i.low, i.high) if e is not None]
    return [(i.name if n == 0 else "", i.flips if n == 0 else "", *_effect(e)) for n, e in enumerate(effects)]


def _effect(e: Effect) -> tuple[str, str, str, str]:
    share = "queue grows" if e.slo_share == float("inf") else f"{100 * e.slo_share:.0f} %"
    return e.variant.change, rate(e.capacity_requests_per_s), dollars(e.usd_per_million_output_tokens), share
