"""What the plan page shows of an answer for agents, in the keys that it shows of other answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from planner.agents.answer import AgentsAnswer, AgentsRefusal
from planner.agents.page import compared_rows, objective_rows, result_cards
from planner.agents.screen import plan_rows, question_words, render, router_words
from planner.answer.answer_schema import Suggestion
from planner.problem.slo import split_slos
from planner.report.answer_tables import TextTable
from planner.sections.refusal_words import capital, refused_view

#: The key of the question that a suggestion of each kind changes, besides `slo`.
CHANGED_KEY: Final = {"agents": "agents", "hardware": "hardware", "confidence": "confidence"}


def agents_document(answer: AgentsAnswer) -> dict[str, Any]:
    """Return what the page shows of an answer for agents."""
    best = answer.best
    head, rows = objective_rows(answer)
    objectives = asdict(TextTable(head, tuple(rows)))
    again = (("Seed", str(answer.request["seed"])), ("Simulated requests", f"{answer.n_requests:,}"))
    found: dict[str, Any] = {
        "feasible": answer.feasible,
        "title": f"{answer.request['model']} on {best.deployment['hardware']}",
        "question": question_words(answer),
        "screen": render(answer),
        "hardware": None,
        "left_out": [],
        "assumptions": answer.notices,
        "reproduce": {"command": answer.command, "table": asdict(TextTable(("How it was found", ""), again))},
    }
    if answer.infeasible is not None:
        return found | {"refusal": _refusal(answer, answer.infeasible, objectives)}
    rows_of_plan = {label: text for label, text in plan_rows(answer) if label != "Objective"}
    head, rows = compared_rows(answer)
    return found | {
        "planned_hardware": best.deployment["hardware"],
        "headline": f"{best.words}, {best.tier}, {router_words(best)}",
        "rents": best.usd_per_hour is not None,
        "offer": "",
        "cards": [[label, value, ""] for label, value in result_cards(answer)],
        "objectives": objectives,
        "sections": [list(row) for row in rows_of_plan.items()],
        "capacity": f"Capacity: {rows_of_plan['Capacity']}.",
        "figures": [],
        "alternatives": [
            {"words": f"{plan.words}, {plan.tier}", "difference": router_words(plan)} for plan in answer.others
        ],
        "plans": asdict(TextTable(head, tuple(rows), words=4)),
        "regions": None,
        "stated": None,
        "start": None,
    }


def _refusal(answer: AgentsAnswer, refusal: AgentsRefusal, objectives: dict[str, Any]) -> dict[str, Any]:
    words = f"{answer.best.words}, {answer.best.tier}, {router_words(answer.best)}"
    closest = {"words": words, "objectives": objectives, "memory": None}
    ways = [(change, _changed_keys(change)) for change in refusal.what_would_meet_it]
    return refused_view(capital(refusal.binding_constraint), refusal.why, ways, {}, closest)


def _changed_keys(change: Suggestion) -> dict[str, Any]:
    """Return the keys of the question that a change sets."""
    if change.kind == "slo":
        return {"slo": split_slos(str(change.value))}
    value = int(change.value) if change.kind == "agents" and change.value is not None else change.value
    return {CHANGED_KEY[change.kind]: value}
