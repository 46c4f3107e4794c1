"""The HTML page of an answer: the recommendation, the evidence, and how to reproduce it."""

from __future__ import annotations

from catalogs.ui.html_page import Markup, Page, PageSection, bullets, cards, chart, command, note, paragraph, table
from catalogs.ui.words import change, dollars, joules, percent, plan_name, rate, seconds
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.problem.candidate import deployment_words
from planner.problem.request import PlanRequest
from planner.report import evidence, machine_figures, sensitivity_sections
from planner.report.certainty import certainty
from planner.report.material import ReportData, ReportSimulations
from planner.sections.registry import section_pages

#: Words for the objectives that are maximised.
GOALS = {"throughput": "highest throughput", "goodput": "highest goodput per accelerator"}

FOOTER = "Written by plan report. This file loads no external resources."


def answer_page(m: ReportData) -> Page:
    """Return the page of an answer; a section without data has a note instead."""
    if m.answer.best is None or m.simulated is None:
        sections = _refused(m.answer)
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
            *sensitivity_sections.sensitivity(m.answer, m.answer.best, s),
            *sensitivity_sections.growth(s),
            _alternatives(m.answer),
            *_hardware(m.answer),
            certainty(m.answer),
        ]
    title, subtitle = _heading(m.answer)
    return Page(title, subtitle, [*sections, _again(m.answer)], FOOTER)


def _heading(answer: Answer) -> tuple[str, str]:
    """Return the title (model and hardware) and the subtitle (the request)."""
    asked, best = answer.request, answer.best
    where = asked.hardware if best is None else str(best.deployment["hardware"])
    said = [f"workload {asked.workload}", _load_words(asked), GOALS.get(asked.objective, f"lowest {asked.objective}")]
    if where != asked.hardware:
        said.append(f"chosen from {asked.hardware}")
    if asked.max_usd_per_hour is not None:
        said.append(f"at most {dollars(asked.max_usd_per_hour)} per hour")
    return f"{asked.model} on {where}", ", ".join(said)


def _load_words(asked: PlanRequest) -> str:
    if asked.users is not None:
        carried = f"{asked.users:,} users with a think time of {asked.think_s:g} s"
    elif asked.requests_per_s is not None:
        carried = rate(asked.requests_per_s)
    else:
        carried = "a light load" if asked.objective == "latency" else "highest sustainable rate"
    return carried + (f" with {asked.spare.words}" if asked.spare else "")


def _answer(answer: Answer, plan: Plan, s: ReportSimulations) -> PageSection:
    parts = [cards(_cards(plan, s)), paragraph(f"Run {deployment_words(plan.deployment)}.")]
    parts += [_slo_table(answer, plan), paragraph(_capacity_words(plan)), command(plan.command)]
    parts.append(bullets([*plan.command_notes, *plan.notices]))
    parts.append(paragraph(_sources(answer, plan)))
    return PageSection("Recommended", parts)


def _cards(plan: Plan, s: ReportSimulations) -> list[tuple[str, str]]:
    d, least = plan.deployment, min((row.probability_met for row in plan.slo), default=0.0)
    binding = [u.resource for u in s.uses if u.binds]
    found = [("Rent", str(d["hardware"]))]
    if plan.cost is not None and plan.cost.usd_per_hour is not None:
        each = dollars(plan.cost.usd_per_million_output_tokens)
        found += [
            ("Cost", f"{dollars(plan.cost.usd_per_hour)} per hour"),
            ("Cost per token", f"{each} per million output tokens"),
        ]
    else:
        found.append(("Cost", "unknown: no price for this hardware"))
    found += [
        ("Rate", rate(plan.requests_per_s)),
        ("Confidence in each objective", percent(least)),
        ("Bottleneck", ", ".join(binding)),
    ]
    return found


def _slo_table(answer: Answer, plan: Plan) -> Markup:
    head = ("Objective", "Limit", "Simulated", "90 % interval", "Met", "Probability")
    rows = []
    for words, row in zip(answer.request.slo_words, plan.slo, strict=True):
        span = f"{seconds(row.ci_low_s)} to {seconds(row.ci_high_s)}"
        met = "yes" if row.met else "NO"
        rows.append((words, seconds(row.limit_s), seconds(row.value_s), span, met, percent(row.probability_met)))
    return table(head, rows, f"Simulated at {rate(plan.requests_per_s)}.")


def _capacity_words(plan: Plan) -> str:
    capacity, safe = plan.capacity_requests_per_s, plan.safe_requests_per_s
    why = f"; {plan.limited_by}" if plan.limited_by else ""
    text = f"The highest rate that meets every objective with 50 % confidence is {rate(capacity)}{why}."
    confident = f" With 90 % confidence in each objective it is {rate(safe)}." if safe is not None else ""
    tokens = plan.metric("output_tokens_per_s")
    return text + confident + (f" At the planned rate it produces {tokens:,.0f} output tokens/s." if tokens else "")


def _sources(answer: Answer, plan: Plan) -> str:
    """Return the sources of the figures in the first section."""
    c = plan.calibration
    bundle = "" if c is None else f" on the calibration {c.bundle}"
    text = f"Rates, latencies, energy: simulated{bundle}, seed {answer.request.seed}."
    if plan.cost is not None and plan.cost.usd_per_hour is not None:
        when = "given on the command line" if plan.cost.price_as_of == "given" else f"as of {plan.cost.price_as_of}"
        text += f" Price: {plan.cost.price_source}, {when}."
    return text


def _alternatives(answer: Answer) -> PageSection:
    """Return the section of the plans side by side: a row per figure and a column per plan."""
    plans = answer.plans
    names = [plan_name(i) for i in range(len(plans))]
    if len(plans) == 1:
        return PageSection("Alternatives", [note("No plan of another kind meets the objectives.")])
    columns = [_figures(plan, plans[0] if i else None) for i, plan in enumerate(plans)]
    rows = [(what, *(column[what] for column in columns)) for what in columns[0]]
    text = "Each plan at its own planned rate. Alternatives are simulated with fewer seeds than the recommended plan."
    told = [f"{name}: {deployment_words(p.deployment)}" for name, p in zip(names, plans, strict=True)]
    return PageSection("Alternatives", [paragraph(text), bullets(told), table(("", *names), rows)])


def _figures(plan: Plan, best: Plan | None) -> dict[str, str]:
    """Return the figures of a plan in words, compared with the recommended plan if given."""
    usd = None if plan.cost is None else plan.cost.usd_per_million_output_tokens
    own = None if best is None or best.cost is None else best.cost.usd_per_million_output_tokens
    used = None if plan.energy is None else plan.energy.j_per_output_token
    capacity = plan.capacity_requests_per_s
    found = {
        "Planned rate": rate(plan.requests_per_s),
        "Highest rate with 50 % confidence": rate(capacity),
        "compared with the recommended plan": change(capacity, best.capacity_requests_per_s) if best else "",
        "Price per hour": dollars(plan.usd_per_hour),
        "Cost per million output tokens": dollars(usd),
        "cost compared with the recommended plan": change(usd, own),
        "Energy per output token": joules(used),
    }
    for row in plan.slo:
        limit = f"{row.name}, limit {seconds(row.limit_s)}"
        found[limit] = f"{seconds(row.value_s)}, {percent(row.probability_met)} confidence"
    return found


def _hardware(answer: Answer) -> list[PageSection]:
    """Return the section of the ranking of the hardware, if there was a choice."""
    if not answer.hardware:
        return []
    rows = []
    for place, row in enumerate(answer.hardware, 1):
        held = row.requests_per_s is not None
        known = rate(row.requests_per_s) if held else f"less than {rate(row.at_most_requests_per_s)}"
        found = known if held or row.at_most_requests_per_s is not None else "unknown"
        said = row.candidate if held and row.candidate else row.why
        rows.append((f"{place}. {row.hardware}", row.state, said, dollars(row.usd_per_hour), found))
    text = "Ranked by the objective. Rates are from the search with one seed; 'less than' marks an unsustainable rate."
    head = ("Hardware", "Result", "Best deployment, or reason", "Per hour", "Highest rate")
    return [PageSection("Hardware to choose from", [paragraph(text), table(head, rows, words=3), *_left_out(answer)])]


def _left_out(answer: Answer) -> list[Markup]:
    return [bullets(answer.search.left_out)] if answer.search.left_out else []


def _refused(answer: Answer) -> list[PageSection]:
    no = answer.infeasible
    if no is None:
        return [PageSection("Recommended", [note("No plan, and no reason recorded.")])]
    parts: list[Markup] = [cards([("Recommended", "NO deployment"), ("Reason", no.binding_constraint)])]
    parts.append(bullets(answer.request.slo_words))
    if no.closest is not None:
        parts.append(paragraph(f"The closest plan is {deployment_words(no.closest.deployment)}."))
        if no.closest.slo:
            parts.append(_slo_table(answer, no.closest))
        if no.closest.memory is not None:
            said = no.closest.memory.equation
            parts.append(chart(machine_figures.memory_bar(no.closest.memory), said, 190))
    changes = [(c.change, c.verified_by) for c in no.what_would_meet_it]
    found = (
        table(("Would meet the objectives", "Checked by"), changes, words=2)
        if changes
        else note("No change that was tried meets the objectives.")
    )
    ruled = [(reason, f"{n:,}") for reason, n in answer.search.bounded_out.items()]
    parts += [found, *([table(("Ruled out by bounds, because", "Candidates"), ruled)] if ruled else [])]
    return [PageSection("Result", parts)]


def _again(answer: Answer) -> PageSection:
    s, r = answer.search, answer.reproduce
    rows = [
        ("seed", str(r.seed)),
        ("candidates", f"{s.n_space:,}, of which bounds ruled out {s.n_bounded_out:,}"),
        ("simulated", f"{s.n_simulated:,}, of which {s.n_pruned:,} stopped early; {s.n_requests:,} requests"),
        ("search", f"{s.method}, {s.seconds:.1f} s"),
        ("calibration", f"{_bundle(answer)} (fingerprint {r.calibration})"),
        *((name, version) for name, version in r.versions.items()),
    ]
    text = "The same command with the same versions gives the same answer; this page is made from its JSON."
    parts = [paragraph(text), command(f"{r.command} --json answer.json\nplan report answer.json --html answer.html")]
    return PageSection("How to reproduce", [*parts, table(("quantity", "value"), rows, words=2)], "Reproduce")


def _bundle(answer: Answer) -> str:
    plans = answer.plans or ([answer.infeasible.closest] if answer.infeasible and answer.infeasible.closest else [])
    return next((p.calibration.bundle for p in plans if p.calibration is not None), "none used")
