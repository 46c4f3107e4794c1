"""The HTML page of an answer for a network: the plan, its evidence, the alternatives, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from catalogs.io.output_files import write_atomically
from catalogs.ui.html_page import Markup, Page, PageSection, bullets, cards, command, paragraph, render, table
from catalogs.ui.words import digits, dollars, gigabytes, kilowatts, percent, plan_name, seconds, sure_percent
from planner.economics.money import offer_words
from planner.networks.schema import NetworkAnswer, NetworkPlan
from planner.networks.screen import per_units
from planner.sections.refusal import refused_section, unexplained_section
from planner.sections.section import interval_words

FOOTER: Final = "Written by plan. This file loads no external resources."


def write_page(answer: NetworkAnswer, file: Path) -> None:
    """Write the page of an answer.

    Raises:
        InputError: The file cannot be written.
    """
    write_atomically(file, [render(network_page(answer))])


def network_page(answer: NetworkAnswer) -> Page:
    """Return the page of an answer."""
    best = answer.best
    sections = [_refused(answer)] if best is None else [_recommended(answer, best), _load(answer, best), _job(best)]
    sections += [_alternatives(answer)] if answer.alternatives else []
    sections += [_hardware(answer)] if answer.hardware else []
    subtitle = f"{answer.job.family}, job {answer.job.words}"
    title = f"{answer.job.network} on {answer.request.hardware if best is None else best.deployment['hardware']}"
    return Page(title, subtitle, [*sections, _confidence(answer), _again(answer)], FOOTER)


def _recommended(answer: NetworkAnswer, plan: NetworkPlan) -> PageSection:
    unit = answer.job.unit
    least = min((row.probability_met for row in plan.slo), default=0.0)
    usd = None if plan.cost is None else plan.cost.usd_per_hour
    shown = [
        ("Hardware", str(plan.deployment["hardware"])),
        ("Cost", f"{dollars(usd)} per hour"),
        (f"Cost per {unit}", per_units(plan.usd_per_unit, unit, dollars)),
        (f"Energy per {unit}", per_units(plan.energy.wh_per_unit, unit, lambda wh: f"{digits(wh)} Wh")),
        (f"{unit.capitalize()}s per hour", digits(plan.units_per_hour)),
        ("Confidence in each objective", sure_percent(least)),
    ]
    parts = [cards(shown), paragraph(f"Run {plan.words}."), _objectives(plan), bullets(plan.notices)]
    if plan.cost is not None and usd is not None:
        parts.append(paragraph(f"Price: {offer_words(plan.cost)}."))
    return PageSection("Recommended", parts)


def _objectives(plan: NetworkPlan) -> Markup:
    head = ("Objective", "Limit", "Simulated", "Interval", "At the confidence", "Probability met")
    rows = [
        (
            row.name,
            seconds(row.limit_s),
            seconds(row.value_s),
            interval_words(row.ci_low_s, row.ci_high_s),
            seconds(row.value_at_confidence_s),
            sure_percent(row.probability_met),
        )
        for row in plan.slo
    ]
    return table(head, rows)


def _load(answer: NetworkAnswer, plan: NetworkPlan) -> PageSection:
    metrics = plan.metrics
    stats = [
        (stat, seconds(metrics.e2e_s.at(stat)), seconds(metrics.queue_s.at(stat)))
        for stat in ("mean", "p50", "p90", "p95", "p99")
    ]
    capacity = plan.capacity_requests_per_s
    rows = [
        ("Rate of these figures", f"{digits(plan.requests_per_s)} jobs/s"),
        ("Capacity", "none" if capacity is None else f"{digits(capacity)} jobs/s ({plan.limited_by})"),
        ("Jobs per batch", f"{metrics.jobs_per_batch:.3g}"),
        ("Busy", percent(metrics.busy_fraction)),
        ("Power", kilowatts(plan.energy.w_mean)),
        ("Simulated jobs", f"{metrics.n_jobs:,}"),
    ]
    head = ("Statistic", "End to end", "Waiting")
    parts = [table(("Under load", ""), rows), table(head, stats), bullets(answer.assumptions)]
    return PageSection("Under load", parts)


def _job(plan: NetworkPlan) -> PageSection:
    total = sum(stage.total_s for stage in plan.stages)
    rows = [
        (
            stage.name,
            f"{stage.runs:,}",
            seconds(stage.total_s),
            percent(stage.total_s / total),
            seconds(stage.communication_s),
            "host" if stage.host_bound else "accelerator",
            percent(stage.measured_fraction),
            percent(stage.interpolated_fraction),
        )
        for stage in plan.stages
    ]
    head = ("Stage", "Runs", "Time", "Share", "Communication", "Waits for", "Measured", "Interpolated")
    memory = plan.memory
    peak = f"Peak memory at the largest batch: {gigabytes(memory.peak_bytes)} of {gigabytes(memory.device_bytes)}"
    words = f"{peak}, up to {gigabytes(memory.peak_at_confidence_bytes)} at the confidence."
    return PageSection("One job", [table(head, rows), paragraph(words)])


def _alternatives(answer: NetworkAnswer) -> PageSection:
    rows = [_row(i, plan, answer.job.unit) for i, plan in enumerate(answer.plans)]
    head = ("Plan", "Deployment", "Capacity, jobs/s", "Per hour", "Cost", "Energy")
    return PageSection("Alternatives", [table(head, rows, words=2)])


def _row(i: int, plan: NetworkPlan, unit: str) -> tuple[str, ...]:
    capacity, usd = plan.capacity_requests_per_s, None if plan.cost is None else plan.cost.usd_per_hour
    return (
        plan_name(i),
        plan.words,
        "none" if capacity is None else digits(capacity),
        dollars(usd),
        per_units(plan.usd_per_unit, unit, dollars),
        per_units(plan.energy.wh_per_unit, unit, lambda wh: f"{digits(wh)} Wh"),
    )


def _hardware(answer: NetworkAnswer) -> PageSection:
    rows = [
        (row.hardware, row.words or f"no plan: {row.why}", dollars(row.usd_per_hour) if row.state == "holds" else "")
        for row in answer.hardware
    ]
    return PageSection("Hardware", [table(("Hardware", "Plan", "Per hour"), rows, words=2), *_left_out(answer)])


def _left_out(answer: NetworkAnswer) -> Iterator[Markup]:
    if answer.search.left_out:
        yield bullets(answer.search.left_out)


def _confidence(answer: NetworkAnswer) -> PageSection:
    plans = [*answer.plans, *([answer.infeasible.closest] if answer.infeasible and answer.infeasible.closest else [])]
    rows = [
        (plan.words, plan.error.error_class, f"{plan.error.interval_factor:g}", f"{plan.error.slowdown:.2f}")
        for plan in plans
    ]
    text = (
        "90 % of the public measurements of a class are between the prediction divided by its factor and the "
        "prediction times it. Plans are sized with batches slowed down by the factor at the confidence."
    )
    head = ("Plan", "Class", "Published factor", "Sized with")
    return PageSection("Confidence", [paragraph(text), table(head, rows)])


def _refused(answer: NetworkAnswer) -> PageSection:
    no = answer.infeasible
    if no is None:
        return unexplained_section()
    closest: list[Markup] = []
    if no.closest is not None:
        closest = [paragraph(f"The closest plan is {no.closest.words}."), _objectives(no.closest)]
    return refused_section(
        no.binding_constraint, answer.request.slo_words, closest, no.what_would_meet_it, answer.search
    )


def _again(answer: NetworkAnswer) -> PageSection:
    search, again = answer.search, answer.reproduce
    rows = [("Seed", str(again.seed)), ("Calibration", again.calibration), *again.versions.items()]
    rows += [("Candidates", f"{search.n_space:,}"), ("Simulated jobs", f"{search.n_requests:,}")]
    parts = [command(again.command), table(("What it depends on", ""), rows)]
    return PageSection("How to reproduce", parts, "Reproduce")
