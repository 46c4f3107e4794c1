"""The page of an answer: what to rent first, then the evidence, then how to get it again."""

from __future__ import annotations

from catalogs.html_page import Markup, Page, Section, bullets, cards, chart, command, note, paragraph, table
from planner.answer_file import AnswerFile, Known, Plan
from planner.explain_screen import cheapest_words, extra_words
from planner.growth import GOAL
from planner.report import evidence, latency_figures, machine_figures, money_figures
from planner.report.material import Material, Simulated
from planner.report.words import change, dollars, joules, percent, rate, seconds
from planner.screen import deployment_words
from planner.sensitivity import Effect, Input

FOOTER = "Written by plan report. This file loads nothing from elsewhere."
STATED_WORDS = latency_figures.METRIC_TITLES | {"power": "power", "j_per_token": "energy per token"}


def answer_page(m: Material) -> Page:
    """Sections whose material is missing say so in a sentence."""
    asked = m.answer.request
    carried = "the highest rate it holds" if asked.rate is None else rate(asked.rate)
    if asked.objective == "latency" and asked.rate is None:
        carried = "a light load"
    subtitle = f"workload {asked.workload}, {carried}, lowest {asked.objective}".replace(
        "lowest throughput", "highest throughput"
    )
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
            *_sensitivity(m.answer.best, s),
            *_growth(s),
            _alternatives(m.answer),
            _sure(m.answer),
        ]
    return Page(f"{asked.model} on {asked.hardware}", subtitle, [*sections, _again(m.answer)], FOOTER)


def _answer(answer: AnswerFile, plan: Plan, s: Simulated) -> Section:
    parts = [cards(_cards(plan, s)), paragraph(f"Run {deployment_words(plan.deployment)}.")]
    parts += [_slo_table(answer, plan), paragraph(_capacity_words(plan)), command(plan.command)]
    parts.append(bullets([*plan.command_notes, *plan.notices]))
    parts.append(paragraph(_sources(answer, plan)))
    return Section("Answer", parts)


def _cards(plan: Plan, s: Simulated) -> list[tuple[str, str]]:
    d, least = plan.deployment, min((row.probability_met for row in plan.slo), default=0.0)
    binding = [u.resource for u in s.uses if u.binds]
    found = [("Rent", str(d["hardware"]))]
    if plan.cost is not None and plan.cost.usd_per_hour is not None:
        each = dollars(plan.cost.usd_per_million_output_tokens)
        found += [
            ("It costs", f"{dollars(plan.cost.usd_per_hour)} per hour"),
            ("That is", f"{each} per million output tokens"),
        ]
    else:
        found.append(("It costs", "unknown: no price for this hardware"))
    found += [
        ("It carries", rate(plan.requests_per_s)),
        ("Sure to meet each objective", percent(least)),
        ("What binds", ", ".join(binding)),
    ]
    return found


def _slo_table(answer: AnswerFile, plan: Plan) -> Markup:
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
    text = f"The highest rate that holds every objective, at even odds, is {rate(capacity)}{why}."
    sure = f" {rate(safe)} can be carried with 90 % certainty of each objective." if safe is not None else ""
    tokens = plan.metric("output_tokens_per_s")
    return text + sure + (f" At the planned rate it produces {tokens:,.0f} output tokens/s." if tokens else "")


def _sources(answer: AnswerFile, plan: Plan) -> str:
    """Where the numbers of the first section come from."""
    c = plan.calibration
    bundle = "" if c is None else f" on the calibration {c.bundle}"
    text = f"Rates, latencies, energy: simulated{bundle}, seed {answer.request.seed}."
    if plan.cost is not None and plan.cost.usd_per_hour is not None:
        when = "given with the question" if plan.cost.price_as_of == "given" else f"as of {plan.cost.price_as_of}"
        text += f" Price: {plan.cost.price_source}, {when}."
    return text


def _sensitivity(plan: Plan, s: Simulated) -> list[Section]:
    if s.sensitivity is None:
        return []
    inputs = s.sensitivity.inputs
    text = (
        "One input at a time is changed by a fifth down and a quarter up (host overhead: half and double; step time: "
        "as far as the answer's stated error goes; prefix hits: half of every prompt shared, or none), and everything "
        "is simulated again. Inputs that move nothing are left out of the charts."
    )
    parts, height = [paragraph(text)], 110 + 44 * len(inputs)
    usd = None if plan.cost is None else plan.cost.usd_per_million_output_tokens
    if usd:
        words = "change of the cost per million output tokens"
        figure = money_figures.tornado(inputs, "usd_per_million_output_tokens", usd, words)
        said = (
            f"From {dollars(usd)} per million output tokens, at the rate asked for or else at the highest that holds."
        )
        parts.append(chart(figure, said, height))
    if plan.capacity_requests_per_s:
        words = "change of the highest rate that holds"
        figure = money_figures.tornado(inputs, "capacity_requests_per_s", plan.capacity_requests_per_s, words)
        parts.append(
            chart(figure, f"From {rate(plan.capacity_requests_per_s)}. Rate and price do not change it.", height)
        )
    head = ("Input", "Where the choice flips", "Change", "Highest rate", "Cost per M output", "Nearest objective")
    rows = [row for i in inputs for row in _input_rows(i)]
    said = "Nearest objective: its value as a share of its limit at the planned rate; over 100 % it is missed."
    parts.append(table(head, rows, said, words=3))
    return [Section("Sensitivity: what moves the answer", parts, "Sensitivity")]


def _growth(s: Simulated) -> list[Section]:
    if s.growth is None:
        return []
    g = s.growth
    rows = []
    for c in g.changes:
        words = c.words + (f" ({c.note})" if c.note else "")
        rows.append((words, "yes" if c.holds else "no", dollars(c.usd_per_hour), extra_words(c)))
    best = g.cheapest
    said = "Nothing tried buys it." if best is None else f"Cheapest: {cheapest_words(best)}."
    text = f"What would carry {rate(g.goal_per_s)} at even odds, simulated at that rate. {said}"
    text += " Prices are read as the answer's."
    found = table(("Change", "Holds", "Then, per hour", "More per hour"), rows)
    return [Section(f"{GOAL - 1:.0%} more capacity", [paragraph(text), found], "More capacity")]


def _input_rows(i: Input) -> list[tuple[str, ...]]:
    effects = [e for e in (i.low, i.high) if e is not None]
    return [(i.name if n == 0 else "", i.flips if n == 0 else "", *_effect(e)) for n, e in enumerate(effects)]


def _effect(e: Effect) -> tuple[str, str, str, str]:
    share = "queue grows" if e.slo_share == float("inf") else f"{100 * e.slo_share:.0f} %"
    return e.variant.change, rate(e.capacity_requests_per_s), dollars(e.usd_per_million_output_tokens), share


def _alternatives(answer: AnswerFile) -> Section:
    """Plans side by side: figures down, plans across."""
    plans = answer.plans
    names = [_name(i) for i in range(len(plans))]
    if len(plans) == 1:
        return Section("Alternatives", [note("This answer holds no plan of another kind that meets the objectives.")])
    columns = [_figures(plan, plans[0] if i else None) for i, plan in enumerate(plans)]
    rows = [(what, *(column[what] for column in columns)) for what in columns[0]]
    text = "Each at its own planned rate. Alternatives are measured with fewer seeds than the best plan."
    told = [f"{name}: {deployment_words(p.deployment)}" for name, p in zip(names, plans, strict=True)]
    return Section("Alternatives", [paragraph(text), bullets(told), table(("", *names), rows)])


def _name(i: int) -> str:
    return f"Alternative {i}" if i else "Best"


def _figures(plan: Plan, best: Plan | None) -> dict[str, str]:
    """What a plan carries, costs and promises; against the best where that is another."""
    usd = None if plan.cost is None else plan.cost.usd_per_million_output_tokens
    own = None if best is None or best.cost is None else best.cost.usd_per_million_output_tokens
    used = None if plan.energy is None else plan.energy.j_per_output_token
    capacity = plan.capacity_requests_per_s
    found = {
        "Planned rate": rate(plan.requests_per_s),
        "Highest rate that holds, at even odds": rate(capacity),
        "against the best": change(capacity, best.capacity_requests_per_s) if best else "",
        "Price per hour": dollars(plan.usd_per_hour),
        "Cost per million output tokens": dollars(usd),
        "cost against the best": change(usd, own),
        "Energy per output token": joules(used),
    }
    for row in plan.slo:
        limit = f"{row.name}, limit {seconds(row.limit_s)}"
        found[limit] = f"{seconds(row.value_s)}, {percent(row.probability_met)} sure"
    return found


def _sure(answer: AnswerFile) -> Section:
    known = [(_name(i), p.calibration) for i, p in enumerate(answer.plans)]
    plans = [(name, c) for name, c in known if c is not None]
    rows = [(name, c.bundle, f"{100 * c.of_operators:.1f} %") for name, c in plans]
    text = (
        "How much of the simulated step time rests on measured operators, on interpolation between them, and on the "
        "roofline alone. The error stated for whole runs is carried into every interval and probability."
    )
    head = ("Plan", "Calibration", "Error of a step's time, operators alone (median)")
    parts = [paragraph(text), chart(machine_figures.coverage(plans), "From the answer.", 120 + 40 * len(plans))]
    parts += [table(head, rows, words=2), *_stated(plans[0][1] if plans else None)]
    parts += [paragraph("What is taken for granted:"), bullets(answer.assumptions)]
    return Section("How sure: calibration and assumptions", parts, "How sure")


def _stated(known: Known | None) -> list[Markup]:
    """How far whole runs were off, by statistic."""
    if known is None or not known.intervals:
        return []
    counts = known.stated_error.get("n") or {}
    rows = []
    for name, (low, high) in known.intervals.items():
        span = f"{100 * low:+.0f} % to {100 * high:+.0f} %".replace("-", "−")
        rows.append((STATED_WORDS.get(name, name), str(counts.get(name, "")), span))
    share = float(known.stated_error.get("coverage") or 0.0)
    said = f"In {share:.0%} of whole runs compared with measured ones: {known.stated_error.get('source')}."
    return [table(("Statistic", "Runs compared", "True value against the simulated one"), rows, said)]


def _refused(answer: AnswerFile) -> list[Section]:
    no = answer.infeasible
    if no is None:
        return [Section("Answer", [note("No plan, and no reason recorded.")])]
    parts: list[Markup] = [cards([("Answer", "NO"), ("What binds", no.binding_constraint)])]
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
        table(("What would meet it", "Checked by"), changes, words=2)
        if changes
        else note("Nothing tried would meet it.")
    )
    ruled = [(reason, f"{n:,}") for reason, n in answer.search.bounded_out.items()]
    parts += [found, *([table(("Ruled out unseen, because", "Candidates"), ruled)] if ruled else [])]
    return [Section("Answer", parts)]


def _again(answer: AnswerFile) -> Section:
    s, r = answer.search, answer.reproduce
    rows = [
        ("seed", str(r.seed)),
        ("candidates", f"{s.n_space:,}, of which {s.n_bounded_out:,} ruled out by bounds"),
        ("simulated", f"{s.n_simulated:,}, of which {s.n_pruned:,} stopped early"),
        ("search", f"{s.method}, {s.seconds:.1f} s"),
        ("calibration", f"{_bundle(answer)} (fingerprint {r.calibration})"),
        *((name, version) for name, version in r.versions.items()),
    ]
    text = "The same command with the same versions gives the same answer; this page is then made from its JSON."
    parts = [paragraph(text), command(f"{r.command} --json answer.json\nplan report answer.json --html answer.html")]
    return Section("How to reproduce", [*parts, table(("what", "value"), rows, words=2)], "Reproduce")


def _bundle(answer: AnswerFile) -> str:
    plans = answer.plans or ([answer.infeasible.closest] if answer.infeasible and answer.infeasible.closest else [])
    return next((p.calibration.bundle for p in plans if p.calibration is not None), "none used")
