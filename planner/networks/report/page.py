"""The HTML page of an answer for a network: the plan, its evidence, the alternatives, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from catalogs.io.output_files import write_atomically
from catalogs.ui.html_page import (
    Markup,
    Page,
    PageSection,
    bullets,
    cards,
    chart,
    command,
    footer_of,
    need_plotly,
    paragraph,
    render,
    table,
)
from catalogs.ui.words import digits, dollars, kilowatts, sure_percent
from planner.economics.money import offer_words
from planner.networks.report import figures, tables
from planner.networks.schema import NetworkAnswer, NetworkPlan
from planner.networks.screen import carbon_words, cost_words, energy_words
from planner.report.answer_tables import TextTable
from planner.sections.refusal_words import refused_section, unexplained_section

FOOTER: Final = footer_of("plan")


def write_page(answer: NetworkAnswer, file: Path) -> None:
    """Write the page of an answer.

    Raises:
        InputError: Plotly is missing, or the file cannot be written.
    """
    need_plotly()
    write_atomically(file, [render(network_page(answer))])


def network_page(answer: NetworkAnswer) -> Page:
    """Return the page of an answer."""
    best = answer.best
    if best is None:
        sections = [_refused(answer)]
    else:
        sections = [_recommended(answer, best), *_trade_offs(answer), _load(answer, best), _job(best)]
        sections += [_alternatives(answer), _energy(answer, best)]
        if answer.prices:
            sections.append(PageSection("Prices by region", [_drawn(tables.regions(answer, best))], "Prices"))
    sections += [_hardware(answer)] if answer.hardware else []
    subtitle = f"{answer.job.family}, job {answer.job.words}"
    title = f"{answer.job.network} on {answer.request.hardware if best is None else best.deployment['hardware']}"
    return Page(title, subtitle, [*sections, _confidence(answer), _again(answer)], FOOTER)


def _drawn(found: TextTable) -> Markup:
    return table(found.head, found.rows, found.caption, found.words)


def _recommended(answer: NetworkAnswer, plan: NetworkPlan) -> PageSection:
    unit = answer.job.unit
    least = min((row.probability_met for row in plan.slo), default=0.0)
    month = None if plan.cost is None else plan.cost.usd_per_month
    shown = [
        ("Hardware", str(plan.deployment["hardware"])),
        ("Cost", f"{dollars(plan.usd_per_hour)} per hour"),
        ("Cost per month", "unknown" if month is None else f"${month:,.0f}"),
        (f"Cost per {unit}", cost_words(plan, unit)),
        (f"Energy per {unit}", energy_words(plan, unit)),
        (f"Carbon per {unit}", carbon_words(plan, unit)),
        (f"{unit.capitalize()}s per hour", digits(plan.units_per_hour)),
        ("Confidence in each objective", sure_percent(least)),
    ]
    parts = [cards(shown), paragraph(f"Run {plan.words}."), _drawn(tables.objectives(answer, plan))]
    parts.append(bullets(plan.notices))
    if plan.cost is not None and plan.usd_per_hour is not None:
        parts.append(paragraph(f"Price: {offer_words(plan.cost)}."))
    return PageSection("Recommended", parts)


def _trade_offs(answer: NetworkAnswer) -> Iterator[PageSection]:
    drawn = figures.cost_against_latency(answer)
    if drawn is not None:
        yield PageSection("Cost against latency", [chart(drawn, figures.COST_CAPTION)], "Trade-offs")


def _load(answer: NetworkAnswer, plan: NetworkPlan) -> PageSection:
    drawn = [chart(figures.latency_against_load(plan), figures.LOAD_CAPTION)] if plan.curve else []
    parts = [
        paragraph(tables.capacity_sentences(answer, plan)),
        _drawn(tables.load(plan)),
        *drawn,
        _drawn(tables.latencies(plan)),
    ]
    parts.append(paragraph("What this rests on:"))
    return PageSection("Under load", [*parts, bullets(answer.assumptions)])


def _job(plan: NetworkPlan) -> PageSection:
    bar = chart(figures.time_by_stage(plan), figures.STAGES_CAPTION, 300)
    memory = chart(figures.memory_bar(plan.memory), tables.memory_words(plan), 190)
    return PageSection("One job", [bar, _drawn(tables.stages(plan)), memory])


def _alternatives(answer: NetworkAnswer) -> PageSection:
    if len(answer.plans) == 1:
        none = paragraph("No other setup or accelerator that was simulated meets the objectives.")
        return PageSection("Alternatives", [none, _drawn(tables.plans(answer))])
    return PageSection("Alternatives", [_drawn(tables.plans(answer))])


def _energy(answer: NetworkAnswer, plan: NetworkPlan) -> PageSection:
    energy = plan.energy
    unused = f" {plan.unused_words}." if plan.unused_words else ""
    text = (
        f"The plan draws {kilowatts(energy.w_mean)} at its rate, hosts and idle accelerators included.{unused} Energy "
        f"per {answer.job.unit} counts the facility (PUE {energy.pue:g})."
    )
    return PageSection("Energy and carbon", [paragraph(text), _drawn(tables.carbon(plan, answer.job.unit))], "Energy")


def _hardware(answer: NetworkAnswer) -> PageSection:
    left_out = [bullets(answer.search.left_out)] if answer.search.left_out else []
    return PageSection("Hardware to choose from", [_drawn(tables.hardware(answer)), *left_out], "Hardware")


def _confidence(answer: NetworkAnswer) -> PageSection:
    return PageSection("Confidence", [_drawn(tables.errors(answer))])


def _refused(answer: NetworkAnswer) -> PageSection:
    no = answer.infeasible
    if no is None:
        return unexplained_section()
    closest: list[Markup] = []
    if no.closest is not None:
        words = paragraph(f"The closest plan is {no.closest.words}.")
        closest = [words, _drawn(tables.objectives(answer, no.closest))]
    return refused_section(
        no.binding_constraint, answer.request.slo_words, closest, no.what_would_meet_it, answer.search
    )


def _again(answer: NetworkAnswer) -> PageSection:
    parts = [command(answer.reproduce.command), _drawn(tables.reproduction(answer))]
    return PageSection("How to reproduce", parts, "Reproduce")
