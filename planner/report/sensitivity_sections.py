"""The sections of sensitivity: inputs that change the recommendation, and changes for 20 % more capacity."""

from __future__ import annotations

from catalogs.ui.html_page import PageSection, chart, note, paragraph, table
from catalogs.ui.words import dollars, rate
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.report import money_figures
from planner.report.material import ReportSimulations, apart
from planner.studies.capacity_growth import GOAL
from planner.studies.explain import cheapest_words, extra_words
from planner.studies.sensitivity import CAPACITY_TOLERANCE, Effect, Input


def sensitivity(answer: Answer, plan: Plan, s: ReportSimulations) -> list[PageSection]:
    """Return the section of the inputs that change the answer; empty if it was not simulated."""
    title = "Sensitivity: inputs that change the answer"
    if s.sensitivity is None and apart(answer):
        said = "Not simulated: sensitivity does not support prefill and decode servers yet."
        return [PageSection(title, [note(said)], "Sensitivity")]
    if s.sensitivity is None:
        return []
    inputs = s.sensitivity.inputs
    text = (
        "One input at a time is decreased by 20 % and increased by 25 % (host overhead: half and double; step time: by "
        "the stated error of the answer; prefix hits: half of every prompt shared, or none), and everything is "
        f"simulated again. Rates within {CAPACITY_TOLERANCE:.0%} of each other count as equal; inputs without effect "
        "are not in the charts. The value at which the recommendation changes is found by bisection, to about 4 %."
    )
    parts, height = [paragraph(text)], 110 + 44 * len(inputs)
    usd = None if plan.cost is None else plan.cost.usd_per_million_output_tokens
    if usd:
        words = "change of the cost per million output tokens"
        figure = money_figures.tornado(inputs, "usd_per_million_output_tokens", usd, words)
        said = f"From {dollars(usd)} per million output tokens, at the required or else the highest sustainable rate."
        parts.append(chart(figure, said, height))
    if plan.capacity_requests_per_s:
        words = "change of the highest sustainable rate"
        figure = money_figures.tornado(inputs, "capacity_requests_per_s", plan.capacity_requests_per_s, words)
        parts.append(
            chart(figure, f"From {rate(plan.capacity_requests_per_s)}. Rate and price do not change it.", height)
        )
    head = (
        "Input",
        "Recommendation changes at",
        "Change",
        "Highest rate",
        "Cost per million output tokens",
        "Nearest objective",
    )
    rows = [row for i in inputs for row in _input_rows(i)]
    said = "Nearest objective: its value as a share of its limit at the planned rate; over 100 % it is missed."
    parts.append(table(head, rows, said, words=3))
    return [PageSection(title, parts, "Sensitivity")]


def growth(s: ReportSimulations) -> list[PageSection]:
    """Return the section of changes for more capacity; empty if it was not simulated."""
    if s.growth is None:
        return []
    g = s.growth
    rows = []
    for c in g.changes:
        words = c.words + (f" ({c.note})" if c.note else "")
        rows.append((words, "yes" if c.holds else "no", dollars(c.usd_per_hour), extra_words(c)))
    best = g.cheapest
    said = "No change that was tried reaches it." if best is None else f"Cheapest: {cheapest_words(best)}."
    text = f"Changes that carry {rate(g.goal_per_s)} with 50 % confidence, simulated at that rate. {said}"
    text += " Prices are those of the answer."
    found = table(("Change", "Meets objectives", "Cost per hour", "Difference per hour"), rows)
    return [PageSection(f"{GOAL - 1:.0%} more capacity", [paragraph(text), found], "More capacity")]


def _input_rows(i: Input) -> list[tuple[str, ...]]:
    effects = [e for e in (i.low, i.high) if e is not None]
    return [(i.name if n == 0 else "", i.flips if n == 0 else "", *_effect(e)) for n, e in enumerate(effects)]


def _effect(e: Effect) -> tuple[str, str, str, str]:
    share = "queue grows" if e.slo_share == float("inf") else f"{100 * e.slo_share:.0f} %"
    return e.variant.change, rate(e.capacity_requests_per_s), dollars(e.usd_per_million_output_tokens), share
