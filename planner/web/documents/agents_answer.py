"""What the plan page shows of an answer for agents, in the keys that it shows of other answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from planner.agents.answer import AgentsAnswer, AgentsRefusal
from planner.agents.page import compared_rows, objective_rows, result_cards
from planner.agents.screen import plan_rows, question_words, render, router_words
from planner.answer.schema import Suggestion
from planner.problem.slo import split_slos
from planner.report.answer_tables import TextTable

#: The key of the question that a suggestion of each kind changes, besides `slo`.
_CHANGED_KEY: Final = {"agents": "agents", "hardware": "hardware", "confidence": "confidence"}


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
    best = answer.best
    return {
        "reason": _capital(refusal.binding_constraint),
        "ways": [_way_out(change) for change in refusal.what_would_meet_it],
        "reasons": [],
        "closest": {
            "words": f"{best.words}, {best.tier}, {router_words(best)}",
            "objectives": objectives,
            "memory": None,
        },
        "stages": [_capital(why) for why in refusal.why],
    }


def _way_out(change: Suggestion) -> dict[str, Any]:
    """Return a change that would meet the request, with the keys of the question that it sets."""
    keys: dict[str, Any]
    if change.kind == "slo":
        keys = {"slo": split_slos(str(change.value))}
    else:
        value = int(change.value) if change.kind == "agents" and change.value is not None else change.value
        keys = {_CHANGED_KEY[change.kind]: value}
    return {"words": _capital(change.change), "verified_by": change.verified_by, "changes": keys}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
