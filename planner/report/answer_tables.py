"""The tables of an answer as text: objectives, plans in comparison, hardware, prices by region, and how to repeat it.

Every page of an answer shows these tables; what a page looks like is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from catalogs.ui.words import change, counted, dollars, joules, percent, plan_name, rate, seconds, sure_percent
from planner.answer.answer_schema import GOALS, Answer
from planner.answer.hardware_ranking import ESTIMATE_MARK, marked_words
from planner.answer.plan_schema import Plan
from planner.economics.money import RegionPrice, offer_words, rented_words
from planner.sections.refusal_words import capital
from planner.sections.section import interval_words, plan_near_miss_words


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text.

    Attributes:
        head: The names of the columns.
        rows: The cells of each row, as many as there are columns.
        caption: Sentences that the reader needs to read the table.
        words: Number of columns at the left that hold words; the others hold figures.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    words: int = 1


def question_words(answer: Answer) -> str:
    """Return the request in words: the workload, the load, and what is optimised within which budget."""
    r = answer.request
    if r.users is not None:
        load = f"{counted(r.users, 'user')} with a think time of {r.think_s:g} s"
    elif r.requests_per_s is not None:
        load = rate(r.requests_per_s)
    else:
        load = "a light load" if r.objective == "latency" else "highest sustainable rate"
    load += f" with {r.spare.words}" if r.spare else ""
    words = [f"workload {answer.workload_words}", load, GOALS.get(r.objective, f"lowest {r.objective}")]
    if answer.best is not None and answer.best.hardware != r.hardware:
        words.append(f"chosen from {r.hardware}")
    if r.max_usd_per_hour is not None:
        words.append(f"at most {dollars(r.max_usd_per_hour)} per hour")
    return ", ".join(words)


def objectives(answer: Answer, plan: Plan) -> TextTable:
    """Return a row for each objective with its value, interval and probability in a plan."""
    head = ("Objective", "Limit", "Simulated", f"{percent(plan.interval_level)} interval", "Met", "Probability")
    rows = []
    for words, row in zip(answer.request.slo_words, plan.slo, strict=True):
        interval = interval_words(row.ci_low_s, row.ci_high_s)
        verdict = ("yes" if row.met else "NO", sure_percent(row.probability_met))
        value = ("none", "") if row.has_no_value else (seconds(row.value_s), interval)
        rows.append((words, seconds(row.limit_s), *value, *verdict))
    return TextTable(head, tuple(rows), f"Simulated at {rate(plan.requests_per_s)}.")


def capacity_words(answer: Answer, plan: Plan) -> str:
    """Return the highest rate of a plan, what ends it and how suddenly, and the tokens of the planned rate."""
    why, sure = f"; {plan.limit_words}" if plan.limit_words else "", percent(answer.request.confidence)
    text = f"The highest rate that meets each objective with {sure} confidence is {plan.capacity_words}"
    near_miss, tokens = plan_near_miss_words(plan, answer.request.confidence), plan.metric("output_tokens_per_s")
    found = [f"{text}{why}.", *([f"{capital(near_miss)}."] if near_miss else [])]
    if tokens:
        found.append(f"At the planned rate it produces {tokens:,.0f} output tokens/s.")
    return " ".join(found)


def plans(answer: Answer) -> TextTable:
    """Return the plans in comparison: a row per figure and a column per plan."""
    names = [plan_name(i) for i in range(len(answer.plans))]
    columns = [_figures(plan, answer.plans[0] if i else None) for i, plan in enumerate(answer.plans)]
    rows = [(what, *(column[what] for column in columns)) for what in columns[0]]
    text = "Each plan at its own planned rate. Alternatives are simulated with fewer seeds than the recommended plan."
    return TextTable(("", *names), tuple(rows), text)


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
            f"{'none' if row.has_no_value else seconds(row.value_s)}, {sure_percent(row.probability_met)} confidence"
        )
        for row in plan.slo
    }


def hardware(answer: Answer) -> TextTable:
    """Return a plan on each kind of accelerator, or the reason why there is none."""
    head = ("Hardware", "Deployment, or reason", "Instance", "Offer", "Per hour", "Per month",
            "Per million output tokens", "Energy per output token", "Capacity", "Limited by")  # fmt: skip
    rows = tuple(
        (
            f"{place}. {row.marked_hardware}",
            row.candidate or row.why or "",
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
    )
    text = (
        "A plan on each kind of accelerator, best first. Only the kind of the recommended plan was searched in full: "
        "`--hw` with another kind alone may find a better plan on it. Alternatives are simulated with fewer seeds."
    )
    marked = marked_words(answer.hardware)
    text += f" {ESTIMATE_MARK} marks {marked}." if marked else ""
    return TextTable(head, rows, text, words=3)


#: Below a table of prices by region.
LIST_PRICES: Final = "Prices are public list prices of the date in the table."


def regions(answer: Answer) -> TextTable:
    """Return the prices of the recommended plan in each region under each contract, with their sources and dates."""
    head = ("Region", "Instances", "Source", "Per hour", "Per month", "Per million output tokens", "Per million tokens")
    rows = []
    for p in answer.prices:
        amounts = (p.usd_per_hour, p.usd_per_month, p.usd_per_million_output_tokens, p.usd_per_million_total_tokens)
        rows.append((*region_cells(p), *map(dollars, amounts)))
    return TextTable(head, tuple(rows), LIST_PRICES, words=3)


def region_cells(price: RegionPrice) -> tuple[str, str, str]:
    """Return the first cells of the price of a region: place and contract, instances, and source with its date."""
    note = f"; {price.note}" if price.note and price.note != price.contract else ""
    source = f"{price.source}, {price.as_of}{note}"
    return f"{price.place}, {price.contract}", rented_words(price.rented), source


def reproduction(answer: Answer) -> TextTable:
    """Return what the answer depends on beyond its command: seed, candidates, calibration, versions."""
    s, r = answer.search, answer.reproduce
    found = answer.plans or ([answer.infeasible.closest] if answer.infeasible and answer.infeasible.closest else [])
    bundle = next((p.calibration.bundle for p in found if p.calibration is not None), "none used")
    rows = (
        ("seed", str(r.seed)),
        ("candidates", f"{s.n_space:,}, of which bounds ruled out {s.n_bounded_out:,}"),
        ("not simulated", f"{s.n_not_simulated:,}"),
        ("simulated", f"{s.n_simulated:,}, of which {s.n_pruned:,} stopped early; {s.n_requests:,} requests"),
        ("searches", f"{s.n_searches}, with {s.n_trials:,} trials together"),
        ("search", f"{s.method}, {s.seconds:.1f} s"),
        ("calibration", f"{bundle} (fingerprint {r.calibration})"),
        *r.versions.items(),
    )
    text = "The same command with the same versions gives the same answer; this page is made from its JSON."
    return TextTable(("quantity", "value"), rows, text, words=2)
