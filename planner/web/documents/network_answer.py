"""What the plan page shows of an answer for a network, in the keys that it shows of other answers.

Every number comes from the answer, in the words of its screen and of its HTML page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from catalogs.ui.words import digits, dollars, sure_percent
from planner.economics.money import offer_words
from planner.networks.deploy import usual_target
from planner.networks.report import figures, tables
from planner.networks.schema import NetworkAnswer, NetworkPlan, NetworkRefusal
from planner.networks.screen import (
    capacity_words,
    carbon_words,
    cost_words,
    difference_words,
    energy_words,
    hourly_words,
    question_words,
    render,
)
from planner.problem.slo import split_slos
from planner.sections.refusal_words import capital, refused_view
from planner.web.documents.answers import drawn_figure

#: The key of the question that a suggestion of each kind changes.
CHANGED_KEY: Final = {"hardware": "hardware", "rate": "rate", "users": "users", "modes": "modes", "slo": "slo"}


def network_document(answer: NetworkAnswer) -> dict[str, Any]:
    """Return what the page shows of an answer; figures are in the keys of plotly's reference."""
    best = answer.best
    hardware = answer.request.hardware if best is None else best.deployment["hardware"]
    found: dict[str, Any] = {
        "feasible": best is not None,
        "title": f"{answer.job.network} on {hardware}",
        "question": question_words(answer),
        "screen": render(answer),
        "hardware": asdict(tables.hardware(answer)) if answer.hardware else None,
        "left_out": answer.search.left_out,
        "assumptions": answer.assumptions,
        "reproduce": {"command": answer.reproduce.command, "table": asdict(tables.reproduction(answer))},
    }
    if best is not None:
        return found | _recommended(answer, best)
    return found | {"refusal": None if answer.infeasible is None else _refusal(answer, answer.infeasible)}


def _recommended(answer: NetworkAnswer, plan: NetworkPlan) -> dict[str, Any]:
    unit = answer.job.unit
    offer = "" if plan.cost is None or plan.usd_per_hour is None else offer_words(plan.cost)
    target = usual_target(plan)
    return {
        "planned_hardware": plan.deployment["hardware"],
        "headline": plan.words,
        "rents": offer != "",
        "offer": offer,
        "cards": [list(card) for card in _cards(answer, plan)],
        "objectives": asdict(tables.objectives(answer, plan)),
        "sections": [],
        "capacity": tables.capacity_sentences(answer, plan),
        "figures": list(_figures(answer, plan)),
        "tables": [
            {"title": "Under load", "table": asdict(tables.load(plan))},
            {"title": "Latency of jobs", "table": asdict(tables.latencies(plan))},
            {"title": "Stages of a single job", "table": asdict(tables.stages(plan))},
            {"title": "Carbon by grid", "table": asdict(tables.carbon(plan, unit))},
        ],
        "alternatives": [
            {"words": other.words, "difference": difference_words(plan, other, unit)} for other in answer.alternatives
        ],
        "plans": asdict(tables.plans(answer)),
        "regions": None,
        "stated": None,
        "errors": asdict(tables.errors(answer)),
        "start": {
            "command": f"plan deploy ANSWER.json --target {target} --out DIR",
            "notes": ["ANSWER.json is the JSON of this answer; the zip archive holds the same files", *plan.notices],
        },
    }


def _cards(answer: NetworkAnswer, plan: NetworkPlan) -> Iterator[tuple[str, str, str]]:
    """Yield label, value and detail of the most important figures."""
    unit = answer.job.unit
    if plan.cost is None or plan.usd_per_hour is None:
        yield "Cost", "unknown", "no price for this hardware"
    else:
        month = "" if plan.cost.usd_per_month is None else f"${plan.cost.usd_per_month:,.0f} a month"
        yield "Cost", f"{dollars(plan.usd_per_hour)}/h", month
        yield f"Cost per {unit}", *_split(cost_words(plan, unit))
    yield f"Energy per {unit}", *_split(energy_words(plan, unit))
    yield f"Carbon per {unit}", *_split(carbon_words(plan, unit))
    capacity = capacity_words(plan)
    most = "" if capacity is None else f"; capacity {capacity}"
    yield "Rate", f"{digits(plan.requests_per_s)} jobs/s", f"{hourly_words(plan, unit)}{most}"
    least = min((row.probability_met for row in plan.slo), default=None)
    yield "Confidence", sure_percent(least), "in each objective"


def _split(words: str) -> tuple[str, str]:
    """Return an amount and what it is per, such as "$0.25" and "per video"."""
    amount, per, rest = words.partition(" per ")
    return amount, f"{per.strip()} {rest}".strip()


def _figures(answer: NetworkAnswer, plan: NetworkPlan) -> Iterator[dict[str, Any]]:
    """Yield the figures of an answer, the main one first."""
    drawn = figures.cost_against_latency(answer)
    if drawn is not None:
        yield drawn_figure("front", "Cost against latency", figures.COST_CAPTION, drawn, 400)
    if plan.curve:
        drawn = figures.latency_against_load(plan)
        yield drawn_figure("curve", "Latency against load", figures.LOAD_CAPTION, drawn, 400)
    drawn = figures.memory_bar(plan.memory)
    yield drawn_figure("memory", "Memory of one accelerator", tables.memory_words(plan), drawn, 210)
    drawn = figures.time_by_stage(plan)
    yield drawn_figure("time", "Where the time of a job goes", figures.STAGES_CAPTION, drawn, 300)


def _refusal(answer: NetworkAnswer, refusal: NetworkRefusal) -> dict[str, Any]:
    closest = None
    if refusal.closest is not None:
        closest = {
            "words": refusal.closest.words,
            "objectives": asdict(tables.objectives(answer, refusal.closest)),
            "memory": None,
        }
    ways = []
    for change in refusal.what_would_meet_it:
        value: object = change.value
        if change.kind == "slo":
            value = split_slos(str(change.value))
        elif change.kind == "modes":
            value = [change.value]
        elif change.kind == "users":
            value = int(change.value or 0)
        ways.append((change, {CHANGED_KEY[change.kind]: value}))
    return refused_view(capital(refusal.binding_constraint), (), ways, refusal.reasons, closest)
