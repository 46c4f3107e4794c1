"""The HTML page of an answer: the recommendation, the evidence, and how to reproduce it.

Sections are Python functions over the elements of `catalogs.ui.html_page`, not Jinja2 templates: there are eight kinds
of element, each escaped in one place, and mypy checks the name of every figure.
"""

from __future__ import annotations

from typing import Final

from catalogs.ui.html_page import Markup, Page, PageSection, bullets, cards, chart, command, note, paragraph, table
from catalogs.ui.words import change, counted, dollars, joules, percent, plan_name, rate, seconds
from planner.answer.plan_schema import Plan
from planner.answer.schema import GOALS, Answer
from planner.economics.money import offer_words
from planner.problem.candidate import deployment_words
from planner.problem.request import PlanRequest
from planner.report import evidence, machine_figures
from planner.report.certainty import certainty
from planner.report.material import ReportData, ReportSimulations
from planner.sections.registry import section_pages
from planner.sections.section import interval_words

FOOTER: Final = "Written by plan report. This file loads no external resources."


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
    return Page(title, _subtitle(m.answer, hardware), [*sections, _again(m.answer)], FOOTER)


def _subtitle(answer: Answer, hardware: str) -> str:
    """Return the request in words; `hardware` is that of the recommended plan, or the requested one."""
    r = answer.request
    if r.users is not None:
        load = f"{counted(r.users, 'user')} with a think time of {r.think_s:g} s"
    elif r.requests_per_s is not None:
        load = rate(r.requests_per_s)
    else:
        load = "a light load" if r.objective == "latency" else "highest sustainable rate"
    load += f" with {r.spare.words}" if r.spare else ""
    words = [f"workload {answer.workload_words}", load, GOALS.get(r.objective, f"lowest {r.objective}")]
    if hardware != r.hardware:
        words.append(f"chosen from {r.hardware}")
    if r.max_usd_per_hour is not None:
        words.append(f"at most {dollars(r.max_usd_per_hour)} per hour")
    return ", ".join(words)


def _answer(answer: Answer, plan: Plan, s: ReportSimulations) -> PageSection:
    parts = [
        cards(_cards(plan, s)),
        paragraph(f"Run {deployment_words(plan.deployment)}."),
        _slo_table(answer, plan),
        paragraph(_capacity_words(plan, answer.request)),
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
    return [
        ("Rent", plan.hardware),
        *costs,
        ("Rate", rate(plan.requests_per_s)),
        ("Confidence in each objective", percent(least)),
        ("Bottleneck", ", ".join(u.resource for u in s.uses if u.binds)),
    ]


def _slo_table(answer: Answer, plan: Plan) -> Markup:
    head = ("Objective", "Limit", "Simulated", f"{percent(plan.interval_level)} interval", "Met", "Probability")
    rows = []
    for words, row in zip(answer.request.slo_words, plan.slo, strict=True):
        interval = interval_words(row.ci_low_s, row.ci_high_s)
        verdict = ("yes" if row.met else "NO", percent(row.probability_met))
        rows.append((words, seconds(row.limit_s), seconds(row.value_s), interval, *verdict))
    return table(head, rows, f"Simulated at {rate(plan.requests_per_s)}.")


def _capacity_words(plan: Plan, request: PlanRequest) -> str:
    why, sure = f"; {plan.limited_by}" if plan.limited_by else "", percent(request.confidence)
    text = f"The highest rate that meets each objective with {sure} confidence is {rate(plan.capacity_requests_per_s)}"
    tokens = plan.metric("output_tokens_per_s")
    return f"{text}{why}." + (f" At the planned rate it produces {tokens:,.0f} output tokens/s." if tokens else "")


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
    names = [plan_name(i) for i in range(len(answer.plans))]
    if len(answer.plans) == 1:
        return PageSection("Alternatives", [note("No plan of another kind meets the objectives.")])
    columns = [_figures(plan, answer.plans[0] if i else None) for i, plan in enumerate(answer.plans)]
    rows = [(what, *(column[what] for column in columns)) for what in columns[0]]
    text = "Each plan at its own planned rate. Alternatives are simulated with fewer seeds than the recommended plan."
    plans = [f"{name}: {deployment_words(p.deployment)}" for name, p in zip(names, answer.plans, strict=True)]
    return PageSection("Alternatives", [paragraph(text), bullets(plans), table(("", *names), rows)])


def _figures(plan: Plan, best: Plan | None) -> dict[str, str]:
    """Return the figures of a plan in words, compared with the recommended plan if given."""
    usd = None if plan.cost is None else plan.cost.usd_per_million_output_tokens
    best_usd = None if best is None or best.cost is None else best.cost.usd_per_million_output_tokens
    capacity = plan.capacity_requests_per_s
    found = {
        "Planned rate": rate(plan.requests_per_s),
        "Capacity": rate(capacity),
        "compared with the recommended plan": change(capacity, best.capacity_requests_per_s) if best else "",
        "Price per hour": dollars(plan.usd_per_hour),
        "Offer": "" if plan.cost is None or plan.cost.usd_per_hour is None else offer_words(plan.cost),
        "Cost per million output tokens": dollars(usd),
        "cost compared with the recommended plan": change(usd, best_usd),
        "Energy per output token": joules(None if plan.energy is None else plan.energy.j_per_output_token),
    }
    return found | {
        f"{row.name}, limit {seconds(row.limit_s)}": (
            f"{seconds(row.value_s)}, {percent(row.probability_met)} confidence"
        )
        for row in plan.slo
    }


def _hardware(answer: Answer) -> list[PageSection]:
    """Return the section of the ranking of the hardware, if there was a choice."""
    if not answer.hardware:
        return []
    head = ("Hardware", "Best deployment, or reason", "Instance", "Offer", "Per hour", "Per month",
            "Per million output tokens", "Energy per output token", "Capacity", "Limited by")  # fmt: skip
    rows = [
        (
            f"{place}. {row.hardware}",
            row.candidate or row.why,
            row.instance or "",
            row.offer or "",
            dollars(row.usd_per_hour),
            dollars(row.usd_per_month),
            dollars(row.usd_per_million_output_tokens),
            joules(row.j_per_output_token),
            rate(row.capacity_requests_per_s),
            row.limited_by or "",
        )
        for place, row in enumerate(answer.hardware, 1)
    ]
    text = "The best plan on each kind of accelerator, best first. Alternatives are simulated with fewer seeds."
    left_out = [bullets(answer.search.left_out)] if answer.search.left_out else []
    return [PageSection("Hardware to choose from", [paragraph(text), table(head, rows, words=3), *left_out])]


def _refused(answer: Answer) -> PageSection:
    no = answer.infeasible
    if no is None:
        return PageSection("Recommended", [note("No plan, and no reason recorded.")])
    parts = [cards([("Recommended", "NO deployment"), ("Reason", no.binding_constraint)])]
    parts.append(bullets(answer.request.slo_words))
    if no.closest is not None:
        parts.append(paragraph(f"The closest plan is {deployment_words(no.closest.deployment)}."))
        if no.closest.slo:
            parts.append(_slo_table(answer, no.closest))
        if no.closest.memory is not None:
            memory = no.closest.memory
            parts.append(chart(machine_figures.memory_bar(memory), memory.equation, 190))
    if no.what_would_meet_it:
        changes = [(c.change, c.verified_by) for c in no.what_would_meet_it]
        parts.append(table(("Would meet the objectives", "Checked by"), changes, words=2))
    else:
        parts.append(note("No change that was tried meets the objectives."))
    if answer.search.bounded_out:
        reasons = [(reason, f"{n:,}") for reason, n in answer.search.main_reasons.items()]
        parts.append(table(("Ruled out by bounds, because", "Candidates"), reasons))
    return PageSection("Result", parts)


def _again(answer: Answer) -> PageSection:
    s, r = answer.search, answer.reproduce
    plans = answer.plans or ([answer.infeasible.closest] if answer.infeasible and answer.infeasible.closest else [])
    bundle = next((p.calibration.bundle for p in plans if p.calibration is not None), "none used")
    rows = [
        ("seed", str(r.seed)),
        ("candidates", f"{s.n_space:,}, of which bounds ruled out {s.n_bounded_out:,}"),
        ("not simulated", f"{s.n_not_simulated:,}"),
        ("simulated", f"{s.n_simulated:,}, of which {s.n_pruned:,} stopped early; {s.n_requests:,} requests"),
        ("search", f"{s.method}, {s.seconds:.1f} s"),
        ("calibration", f"{bundle} (fingerprint {r.calibration})"),
        *r.versions.items(),
    ]
    text = "The same command with the same versions gives the same answer; this page is made from its JSON."
    commands = f"{r.command} --json answer.json\nplan report answer.json --html answer.html"
    parts = [paragraph(text), command(commands), table(("quantity", "value"), rows, words=2)]
    return PageSection("How to reproduce", parts, "Reproduce")
