"""The HTML page of an answer for agents: deployment, what agents see, what it was compared with, how to repeat it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from catalogs.io.output_files import write_atomically
from catalogs.ui.html_page import (
    Markup,
    Page,
    PageSection,
    bullets,
    cards,
    command,
    footer_of,
    note,
    paragraph,
    render,
    table,
)
from catalogs.ui.words import counted, digits, dollars, duration_text, percent, sure_percent
from planner.agents.answer import AgentsAnswer, AgentsRefusal, ComparedPlan, objective_text
from planner.agents.screen import (
    compared_note,
    compared_values,
    objective_name,
    plan_rows,
    question_words,
    router_words,
    share_words,
)
from planner.answer.plan_schema import SloResult

FOOTER: Final = footer_of("plan")


def write_page(answer: AgentsAnswer, file: Path) -> None:
    """Write the page of an answer.

    Raises:
        InputError: The file cannot be written.
    """
    write_atomically(file, [render(agents_page(answer))])


def agents_page(answer: AgentsAnswer) -> Page:
    """Return the page of an answer."""
    first = _recommended(answer) if answer.infeasible is None else _refused(answer, answer.infeasible)
    title = f"{answer.request['model']} on {answer.best.deployment['hardware']}"
    sections = [first, _load(answer), *([_compared(answer)] if answer.others else []), _again(answer)]
    return Page(title, question_words(answer), sections, FOOTER)


def result_cards(answer: AgentsAnswer) -> list[tuple[str, str]]:
    """Return label and value of the most important figures."""
    best = answer.best
    capacity = "none" if not answer.capacity_agents else counted(answer.capacity_agents, "agent")
    least = min((row.probability_met for row in best.objectives), default=0.0)
    return [
        ("Hardware", str(best.deployment["hardware"])),
        ("Cost", "unknown" if best.usd_per_hour is None else f"{dollars(best.usd_per_hour)} per hour"),
        ("Cost per task", dollars(best.usd_per_task)),
        ("Capacity", f"at least {capacity}" if answer.capacity_is_least else capacity),
        ("KV tier", best.tier),
        ("Prefix hits", f"{share_words(best.hit_rate)} of {share_words(best.theoretical_hit_rate)}"),
        ("Confidence in each objective", sure_percent(least)),
    ]


def objective_rows(answer: AgentsAnswer) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of the table of objectives."""
    sure = percent(float(answer.request["confidence"]))
    head = ("Objective", "Limit", "Simulated", f"With {sure} confidence", "Probability met", "Verdict")
    return head, [_objective_row(row, row.name in answer.as_interactivity) for row in answer.best.objectives]


def _objective_row(row: SloResult, as_rate: bool) -> tuple[str, ...]:
    sure = row.value_at_confidence_s
    return (
        objective_name(row.name, as_rate),
        objective_text(row.limit_s, as_rate),
        objective_text(row.value_s, as_rate),
        "without limit" if sure is None else objective_text(sure, as_rate),
        sure_percent(row.probability_met),
        "met" if row.met else "missed",
    )


def compared_rows(answer: AgentsAnswer) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of the table of choices."""
    head = ("Deployment", "KV tier", "Routing", "Objectives", "Hits")
    return head, [_compared_row(plan, answer) for plan in (answer.compared, *answer.others)]


def _compared_row(plan: ComparedPlan, answer: AgentsAnswer) -> tuple[str, ...]:
    values = ", ".join(compared_values(plan, answer.as_interactivity))
    return plan.words, plan.tier, router_words(plan), values, share_words(plan.hit_rate)


def _recommended(answer: AgentsAnswer) -> PageSection:
    parts = [
        cards(result_cards(answer)),
        paragraph(f"Run {answer.best.words}."),
        table(*objective_rows(answer)),
        bullets(answer.notices),
    ]
    return PageSection("Recommended", parts)


def _refused(answer: AgentsAnswer, refusal: AgentsRefusal) -> PageSection:
    parts: list[Markup] = [
        cards([("Recommended", "NO deployment"), ("Reason", refusal.binding_constraint)]),
        bullets(answer.slo_words),
        paragraph(f"The closest deployment is {answer.best.words}, {answer.best.tier}, {router_words(answer.best)}."),
        table(*objective_rows(answer)),
        bullets([*refusal.why, *answer.notices]),
    ]
    if refusal.what_would_meet_it:
        rows = [(change.change, change.verified_by) for change in refusal.what_would_meet_it]
        parts.append(table(("Would meet the objectives", "Checked by"), rows, words=2))
    else:
        parts.append(note("No change that was tried meets the objectives."))
    return PageSection("Result", parts)


def _load(answer: AgentsAnswer) -> PageSection:
    best = answer.best
    times = [
        (what, *("unknown" if s is None else duration_text(s) for s in (stats.mean, stats.p50, stats.p90)))
        for what, stats in (("Session", best.session_s), ("Task", best.task_s))
    ]
    rows = [(label, text) for label, text in plan_rows(answer) if label != "Objective"]
    intro = (
        "A session lasts from its first request to the end of its last, with the times of tools and humans. A task is "
        "what an agent does from one request of a human to the next."
    )
    head = ("Time", "Mean", "Half take at most", "90 % take at most")
    per_task = f"{digits(best.requests_per_task)} requests per task, {best.tasks_per_hour:,.0f} tasks per hour."
    parts = [table(("With these agents", ""), rows, words=2), paragraph(intro), table(head, times), paragraph(per_task)]
    return PageSection("Under the load of the agents", parts, "Load")


def _compared(answer: AgentsAnswer) -> PageSection:
    text = f"The first row is the deployment above. The rows have {compared_note(answer)}."
    return PageSection("Compared", [paragraph(text), table(*compared_rows(answer), words=4)])


def _again(answer: AgentsAnswer) -> PageSection:
    rows = [
        ("Seed", str(answer.request["seed"])),
        ("Placements simulated", f"{answer.n_simulated} of {answer.n_placements}"),
        ("Runs", f"{answer.n_runs:,}"),
        ("Simulated requests", f"{answer.n_requests:,}"),
    ]
    parts = [command(answer.command), table(("How it was found", ""), rows)]
    return PageSection("How to reproduce", parts, "Reproduce")
