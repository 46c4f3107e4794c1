"""The HTML page of an answer: the recommendation, the evidence, and how to reproduce it.

Sections are Python functions over the elements of `catalogs.ui.html_page`, not Jinja2 templates: there are eight kinds
of element, each escaped in one place, and mypy checks the name of every figure.
"""

from __future__ import annotations

from typing import Final

from catalogs.ui.html_page import (
    Markup,
    Page,
    PageSection,
    bullets,
    cards,
    chart,
    command,
    footer_of,
    note,
    paragraph,
    table,
)
from catalogs.ui.words import dollars, plan_name, rate, sure_percent
from planner.answer.answer_schema import Answer
from planner.answer.plan_schema import Plan
from planner.economics.money import offer_words
from planner.problem.candidate import deployment_words
from planner.report import answer_tables, evidence, machine_figures
from planner.report.answer_tables import TextTable
from planner.report.certainty import certainty
from planner.report.material import ReportData, ReportSimulations
from planner.sections.refusal_words import refused_section, unexplained_section
from planner.sections.registry import recommended_sentences, section_pages

FOOTER: Final = footer_of("plan report")


def answer_page(m: ReportData) -> Page:
    """Return the page of an answer; a section without data has a note instead."""
    if m.answer.best is None or m.simulated is None:
        sections = [_refused(m.answer)]
    else:
        s = m.simulated
        sections = [
            _answer(m.answer, m.answer.best, s),
            evidence.trade_offs(m, s),
            evidence.capacity(m.answer.best, s),
            evidence.binds(m.answer.best, s),
            evidence.money(m.answer, m.answer.best),
            evidence.energy(m, m.answer.best),
            *section_pages(m.answer),
            *evidence.sensitivity(m.answer.best, s),
            *evidence.growth(m.answer, s),
            _alternatives(m.answer),
            *_hardware(m.answer),
            certainty(m.answer),
        ]
    hardware = m.answer.request.hardware if m.answer.best is None else m.answer.best.hardware
    title = f"{m.answer.request.model} on {hardware}"
    return Page(title, answer_tables.question_words(m.answer), [*sections, _again(m.answer)], FOOTER)


def _answer(answer: Answer, plan: Plan, s: ReportSimulations) -> PageSection:
    parts = [
        cards(_cards(plan, s)),
        paragraph(f"Run {deployment_words(plan.deployment)}. {recommended_sentences(answer, plan)}".rstrip()),
        _drawn(answer_tables.objectives(answer, plan)),
        paragraph(answer_tables.capacity_words(answer, plan)),
        command(plan.command),
        bullets([*plan.command_notes, *filter(None, [plan.versions]), *plan.notices]),
        paragraph(_sources(answer, plan)),
    ]
    return PageSection("Recommended", parts)


def _cards(plan: Plan, s: ReportSimulations) -> list[tuple[str, str]]:
    costs = [("Cost", "unknown: no price for this hardware")]
    if plan.cost is not None and plan.cost.usd_per_hour is not None:
        each = dollars(plan.cost.usd_per_million_output_tokens)
        costs = [
            ("Cost", f"{dollars(plan.cost.usd_per_hour)} per hour"),
            ("Cost per token", f"{each} per million output tokens"),
        ]
    least = min((row.probability_met for row in plan.slo), default=0.0)
    found = [
        ("Hardware", plan.hardware),
        *costs,
        ("Rate", rate(plan.requests_per_s)),
        ("Confidence in each objective", sure_percent(least)),
        ("Bottleneck", ", ".join(u.resource for u in s.uses if u.binds)),
    ]
    return [(label, value) for label, value in found if value]  # what binds is unknown without the sensitivity


def _sources(answer: Answer, plan: Plan) -> str:
    """Return the sources of the figures in the first section."""
    c = plan.calibration
    bundle = "" if c is None else f" on the calibration {c.bundle}"
    text = f"Rates, latencies, energy: simulated{bundle}, seed {answer.request.seed}."
    if plan.cost is not None and plan.cost.usd_per_hour is not None:
        text += f" Price: {offer_words(plan.cost)}."
    return text


def _alternatives(answer: Answer) -> PageSection:
    """Return the section of the plans in comparison: a row per figure and a column per plan."""
    if len(answer.plans) == 1:
        return PageSection("Alternatives", [note("No plan of another kind meets the objectives.")])
    found = answer_tables.plans(answer)
    plans = [f"{plan_name(i)}: {_plan_words(p)}" for i, p in enumerate(answer.plans)]
    return PageSection("Alternatives", [paragraph(found.caption), bullets(plans), table(found.head, found.rows)])


def _plan_words(plan: Plan) -> str:
    return ", ".join(filter(None, (deployment_words(plan.deployment), plan.estimate_clause)))


def _hardware(answer: Answer) -> list[PageSection]:
    """Return the section of the ranking of the hardware, if there was a choice."""
    if not answer.hardware:
        return []
    found = answer_tables.hardware(answer)
    left_out = [bullets(answer.search.left_out)] if answer.search.left_out else []
    parts = [paragraph(found.caption), table(found.head, found.rows, words=found.words), *left_out]
    return [PageSection("Hardware to choose from", parts)]


def _drawn(found: TextTable) -> Markup:
    return table(found.head, found.rows, found.caption, found.words)


def _refused(answer: Answer) -> PageSection:
    no = answer.infeasible
    if no is None:
        return unexplained_section()
    closest: list[Markup] = []
    if no.closest is not None:
        closest.append(paragraph(f"The closest plan is {deployment_words(no.closest.deployment)}."))
        if no.closest.slo:
            closest.append(_drawn(answer_tables.objectives(answer, no.closest)))
        if no.closest.memory is not None:
            memory = no.closest.memory
            closest.append(chart(machine_figures.memory_bar(memory), memory.equation, 190))
    return refused_section(
        no.binding_constraint, answer.request.slo_words, closest, no.what_would_meet_it, answer.search
    )


def _again(answer: Answer) -> PageSection:
    found = answer_tables.reproduction(answer)
    commands = f"{answer.reproduce.command} --json answer.json\nplan report answer.json --html answer.html"
    parts = [paragraph(found.caption), command(commands), table(found.head, found.rows, words=found.words)]
    return PageSection("How to reproduce", parts, "Reproduce")
