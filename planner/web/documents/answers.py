"""What the plan page shows of an answer: its tables and sentences in the words of the screen, and its figures.

The page adds no figure of its own: every number comes from the answer, in the words of `planner.cli.screens.plan` and
`planner.report`, and every chart is one of those of `plan report` that need no further simulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from catalogs.ui.words import digits, dollars, kilowatts, percent, rate, seconds, sure_percent
from planner.answer.answer_schema import Answer, Refusal, Suggestion
from planner.answer.plan_schema import Plan, SloResult, difference_words
from planner.cli.screens.plan import render
from planner.economics.money import offer_words
from planner.evaluation.closed_forms.bounds import REQUEST_LENGTH
from planner.problem.candidate import deployment_words
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.request import PlanRequest
from planner.problem.slo import split_slos
from planner.report import answer_tables, latency_figures, machine_figures, money_figures
from planner.report.certainty import coverage, stated_rows
from planner.report.plots import PlotlyFigure
from planner.sections.refusal_words import capital, refused_view
from planner.sections.registry import recommended_sentences, section_lines

#: The key of the question that a suggestion of each kind changes.
_CHANGED_KEY: Final = {
    "hardware": "hardware",
    "budget": "max_usd_per_hour",
    "confidence": "confidence",
    "rate": "rate",
}


def answer_document(answer: Answer) -> dict[str, Any]:
    """Return what the page shows of an answer; figures are in the keys of plotly's reference."""
    hardware = answer.request.hardware if answer.best is None else answer.best.hardware
    found: dict[str, Any] = {
        "feasible": answer.best is not None,
        "title": f"{answer.request.model} on {hardware}",
        "question": answer_tables.question_words(answer),
        "screen": render(answer),
        "hardware": asdict(answer_tables.hardware(answer)) if answer.hardware else None,
        "left_out": answer.search.left_out,
        "assumptions": answer.assumptions,
        "reproduce": {"command": answer.reproduce.command, "table": asdict(answer_tables.reproduction(answer))},
    }
    if answer.best is not None:
        return found | _recommended(answer, answer.best)
    return found | {"refusal": None if answer.infeasible is None else _refusal(answer, answer.infeasible)}


def _recommended(answer: Answer, plan: Plan) -> dict[str, Any]:
    known = plan.calibration
    offer = "" if plan.cost is None or plan.cost.usd_per_hour is None else offer_words(plan.cost)
    return {
        "planned_hardware": plan.hardware,
        "headline": ". ".join(filter(None, (deployment_words(plan.deployment), recommended_sentences(answer, plan)))),
        "rents": offer != "" and answer.request.accounting.owned is None,
        "offer": offer,
        "cards": [list(card) for card in _cards(answer, plan)],
        "objectives": asdict(answer_tables.objectives(answer, plan)),
        "sections": [list(line) for line in section_lines(answer)],
        "capacity": answer_tables.capacity_words(answer, plan),
        "figures": list(_figures(answer, plan)),
        "alternatives": [
            {"words": deployment_words(other.deployment), "difference": difference_words(plan, other)}
            for other in answer.alternatives
        ],
        "plans": asdict(answer_tables.plans(answer)),
        "regions": asdict(answer_tables.regions(answer)) if answer.prices else None,
        "stated": None if known is None else [list(row) for row in stated_rows(known)],
        "start": {
            "command": plan.command,
            "notes": [*plan.command_notes, *filter(None, [plan.versions]), *plan.notices],
        },
    }


def _cards(answer: Answer, plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield label, value and detail of the most important figures."""
    cost = plan.cost
    if cost is None or cost.usd_per_hour is None:
        yield "Cost", "unknown", "no price for this hardware"
    else:
        month = "" if cost.usd_per_month is None else f"${cost.usd_per_month:,.0f} a month"
        yield "Cost", f"{dollars(cost.usd_per_hour)}/h", month
        if not (answer.request.objective == "latency" and answer.request.requests_per_s is None):
            each = dollars(cost.usd_per_million_output_tokens)
            yield "Cost per token", each, "per million output tokens, the whole bill"
    if plan.energy is not None and plan.energy.j_per_output_token is not None:
        grams = plan.energy.gco2e_per_million_output_tokens
        yield (
            "Energy per output token",
            f"{digits(plan.energy.j_per_output_token)} J",
            f"{kilowatts(plan.energy.w_mean)} on average",
        )
        yield "Carbon", "unknown" if grams is None else f"{digits(grams)} gCO2e", "per million output tokens"
    carried = f"capacity {plan.capacity_words}; {plan.limit_words}" if plan.limit_words else "no capacity found"
    yield "Rate", rate(plan.requests_per_s), carried
    least = min((row.probability_met for row in plan.slo), default=None)
    yield "Confidence", sure_percent(least), "in each objective"


def _figures(answer: Answer, plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the figures of an answer, the main one first."""
    if plan.curve:
        missed_first = [row.metric for row in sorted(plan.slo, key=lambda row: row.name != plan.limited_by)]
        order = dict.fromkeys([*missed_first, *latency_figures.curve_metrics(plan)])
        for name in order:
            caption = "One replica under its share, scaled to the plan at its rate. Hollow marks: the queue grows."
            drawn = latency_figures.capacity_curve(plan, [], name)
            yield drawn_figure("curve", f"{capital(LATENCY_METRICS[name].title)} against load", caption, drawn, 400)
    if plan.latency_cdf:
        caption = "At the planned rate. Crosses mark the objectives."
        yield drawn_figure(
            "distribution", "Distribution of latencies", caption, latency_figures.distributions(plan), 380
        )
    if plan.memory is not None:
        drawn = machine_figures.memory_bar(plan.memory)
        yield drawn_figure("memory", "Memory of one accelerator", plan.memory.equation, drawn, 210)
    if plan.time_breakdown and any(value > 0 for value in plan.time_breakdown.values()):
        drawn = machine_figures.time_by_class(plan.time_breakdown)
        caption = "Share of the time of the replicas in the steady part of the run."
        yield drawn_figure("time", "Where the time goes", caption, drawn, 300)
    if answer.prices:
        drawn = money_figures.price_bars(answer.prices)
        caption = "Public list prices; the table has their dates and sources."
        yield drawn_figure("prices", "Prices by region", caption, drawn, 110 + 26 * len(answer.prices))
    if plan.calibration is not None:
        drawn = coverage([("recommended", plan.calibration)])
        caption = "Share of the simulated step time by evidence."
        yield drawn_figure("evidence", "What the step times rest on", caption, drawn, 170)


def drawn_figure(name: str, title: str, caption: str, drawn: PlotlyFigure, height: int) -> dict[str, Any]:
    """Return a figure as the page draws it: `name` selects its place, `height` is in pixels."""
    return {
        "name": name,
        "title": title,
        "caption": caption,
        "height": height,
        "data": drawn.data,
        "layout": drawn.layout,
    }


def _refusal(answer: Answer, refusal: Refusal) -> dict[str, Any]:
    ways = [(change, changed_keys(answer.request, change)) for change in refusal.what_would_meet_it]
    closest = None if refusal.closest is None else _closest(answer, refusal.closest)
    return refused_view(capital(refusal.binding_constraint), refusal.stages, ways, refusal.reasons, closest)


def _sure_words(row: SloResult) -> str:
    """Return the value of an objective at the confidence of the answer in words."""
    if row.has_no_value:
        return "none"
    most = row.value_at_confidence_s
    return "without limit" if most is None else f"at most {seconds(most)}"


def _closest(answer: Answer, closest: Plan) -> dict[str, Any]:
    rows = [
        (
            row.name,
            seconds(row.limit_s),
            "none" if row.has_no_value else seconds(row.value_s),
            _sure_words(row),
            "met" if row.met else "missed",
        )
        for row in closest.slo
    ]
    head = ("Objective", "Limit", "Simulated", f"With {percent(answer.request.confidence)} confidence", "Verdict")
    memory = None
    if closest.memory is not None:
        drawn = machine_figures.memory_bar(closest.memory)
        memory = drawn_figure("memory", "Memory of one accelerator", closest.memory.equation, drawn, 210)
    objectives = asdict(answer_tables.TextTable(head, tuple(rows))) if rows else None
    return {"words": deployment_words(closest.deployment), "objectives": objectives, "memory": memory}


def changed_keys(request: PlanRequest, change: Suggestion) -> dict[str, Any]:
    """Return the keys of the question that a change of a refused request sets."""
    if change.kind == "slo":
        return {"slo": split_slos(str(change.value))}
    if change.kind == "precision":
        return {"precisions": [change.value]}
    if change.kind == REQUEST_LENGTH:
        return {"fixed": {**request.fixed.values, REQUEST_LENGTH: int(change.value or 0)}}
    if change.kind in ("users", "input_tokens", "output_tokens"):
        return {change.kind: int(change.value or 0)}
    return {_CHANGED_KEY[change.kind]: change.value}
