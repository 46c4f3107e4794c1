"""The screen of an answer for a network: the plan, its objectives, capacity, cost and energy.

For a refused request, it shows the changes that would meet it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from catalogs.ui.terminal import PIPED, Line, labelled_rows
from catalogs.ui.words import (
    counted,
    digits,
    dollars,
    gigabytes,
    grams,
    kilowatts,
    percent,
    seconds,
    shares_words,
    watt_hours,
)
from planner.answer.answer_schema import GOALS
from planner.answer.plan_schema import SloResult
from planner.economics.money import calendar_words, offer_words
from planner.networks.candidate_counts import not_simulated
from planner.networks.deploy import NetworkPackage
from planner.networks.schema import NetworkAnswer, NetworkHardwareRow, NetworkPlan, PriceError
from planner.search.candidate_tester import TIE_WORDS
from planner.sections.refusal_words import NO_REASON, refused_lines, ruled_out_lines
from planner.sections.region_prices import OWN_GRID, region_lines
from planner.sections.section import interval_words, level_words, near_miss_words, verdict_words

#: Amounts per unit below this are written per thousand or million units.
_SMALL: Final = 0.01


def show_network(answer: NetworkAnswer) -> None:
    """Print the screen of an answer."""
    print(render(answer))


def show_files(package: NetworkPackage, folder: Path) -> None:
    """Print the files of a deployment of a network."""
    rows = [("Folder", str(folder)), *(("" if i else "Files", name) for i, name in enumerate(sorted(package.files)))]
    rows += [("Note", note) for note in package.notes]
    print("\n".join(row for label, text in rows for row in labelled_rows(label, text, PIPED)))


def render(answer: NetworkAnswer, width: int = PIPED) -> str:
    """Return the screen of an answer as plain text, each line at most `width` columns wide."""
    lines = _refused(answer) if answer.best is None else _feasible(answer, answer.best, width)
    rows = [row for label, text in lines for row in labelled_rows(label, text, width)]
    return "\n".join(rows)


def question_words(answer: NetworkAnswer) -> str:
    """Return the request in words: the network, the hardware, the job, the load, and what is optimised."""
    request, job = answer.request, answer.job
    if request.users is not None:
        think = f" with a think time of {seconds(request.think_s)}" if request.think_s else ""
        rate = f"{counted(request.users, 'user')}{think}"
    elif request.requests_per_s is not None:
        rate = f"{digits(request.requests_per_s)} jobs/s"
    else:
        rate = "a light load" if request.objective == "latency" else "highest rate within the objectives"
    goal = GOALS.get(request.objective, f"lowest {request.objective}")
    return f"{job.network} ({job.family}) on {request.hardware}, job {job.words}, {rate}, {goal}"


def _feasible(answer: NetworkAnswer, best: NetworkPlan, width: int) -> Iterator[Line]:
    request, unit = answer.request, answer.job.unit
    yield "Request", question_words(answer)
    yield "", ""
    yield "Recommended", best.words
    for words, row in zip(request.slo_words, best.slo, strict=True):
        yield "Objective", words
        interval = level_words(row.ci_level or 0.9, interval_words(row.ci_low_s, row.ci_high_s))
        yield "", f"{row.name} = {seconds(row.value_s)} ({interval}): {verdict_words(row)}"
    yield from _capacity(answer, best)
    yield from _money(best, unit)
    yield "Energy", _energy_line(best, unit)
    if best.unused_words:
        yield "", best.unused_words
    yield from _regions(answer, best, width)
    yield from _machine(best)
    for other in answer.alternatives:
        yield "Alternative", f"{other.words}: {difference_words(best, other, unit)}"
    for i, kind in enumerate(answer.hardware):
        yield "" if i else "Hardware", _hardware_words(kind, best, unit)
    for notice in (*answer.search.left_out, *best.notices):
        yield "Note", notice
    yield "Repeat", answer.reproduce.command
    yield _search(answer)


def _capacity(answer: NetworkAnswer, plan: NetworkPlan) -> Iterator[Line]:
    unit = answer.job.unit
    sure, capacity = percent(answer.request.confidence), capacity_words(plan)
    label = "Load" if capacity is None else ""
    if capacity is not None:
        why = f" ({plan.limited_by})" if plan.limited_by else ""
        yield "Capacity", f"{capacity} with {sure} confidence{why}"
        near_miss = job_near_miss_words(plan, answer.request.confidence)
        if near_miss:
            yield "", near_miss
    rate = digits(plan.requests_per_s)
    yield label, f"{hourly_words(plan, unit)} at {rate} jobs/s; latency, cost and energy refer to this rate"


def capacity_words(plan: NetworkPlan) -> str | None:
    """Return the most jobs per second, or the most users, that a plan holds; None if neither was found."""
    if plan.capacity_users is not None:
        return counted(plan.capacity_users, "user")
    return None if plan.capacity_requests_per_s is None else f"{digits(plan.capacity_requests_per_s)} jobs/s"


def job_near_miss_words(plan: NetworkPlan, confidence: float) -> str:
    """Return the words of `near_miss_words` for a plan of a network; empty for a plan for users."""
    beyond = plan.capacity_requests_per_s if plan.limited_by else None
    return near_miss_words(plan.slo, plan.requests_per_s, beyond, confidence)


def hourly_words(plan: NetworkPlan, unit: str) -> str:
    """Return how many units a plan yields in an hour."""
    n = plan.units_per_hour
    return f"{f'{n:,.0f}' if n >= 1000 else f'{n:.4g}'} {unit}s per hour"


def _money(plan: NetworkPlan, unit: str) -> Iterator[Line]:
    cost = plan.cost
    if cost is None or cost.usd_per_hour is None:
        yield "Cost", "unknown: no price for this hardware (give one with --price USD_PER_HOUR)"
        return
    yield "Cost", f"{calendar_words(cost)}; {cost_words(plan, unit)}"
    yield "", offer_words(cost)


def _regions(answer: NetworkAnswer, best: NetworkPlan, width: int) -> Iterator[Line]:
    """Yield the table of the prices by region, with the carbon of as many units as the line Energy has."""
    count = unit_count(best.energy.gco2e_per_unit or 1.0)
    grams = [None if p.gco2e_per_unit is None else count * p.gco2e_per_unit for p in answer.prices]
    lines = list(region_lines(answer.prices, grams, counted_unit(count, answer.job.unit), best.cost, width))
    yield from lines
    if lines and answer.request.tariff.grid is not None:
        yield "", OWN_GRID


def _energy_line(plan: NetworkPlan, unit: str) -> str:
    energy = plan.energy
    intensity = "" if energy.grid_gco2e_per_kwh is None else f" at {energy.grid_gco2e_per_kwh:.0f} g/kWh"
    grid = f"grid {energy.grid_region} ({energy.grid_reason}){intensity}"
    per_unit = f"{energy_words(plan, unit)}, {carbon_words(plan, unit)}"
    return f"{kilowatts(energy.w_mean)} at the servers; with PUE {energy.pue:g}: {per_unit} ({grid})"


def cost_words(plan: NetworkPlan | NetworkHardwareRow, unit: str, like: NetworkPlan | None = None) -> str:
    """Return the cost of a unit, of as many units as that of the plan `like`, if given."""
    return per_units(plan.usd_per_unit, unit, dollars, None if like is None else like.usd_per_unit)


def energy_words(plan: NetworkPlan, unit: str, like: NetworkPlan | None = None) -> str:
    """Return the energy of a unit, of as many units as that of the plan `like`, if given."""
    return per_units(plan.energy.wh_per_unit, unit, watt_hours, None if like is None else like.energy.wh_per_unit)


def carbon_words(plan: NetworkPlan, unit: str, like: NetworkPlan | None = None) -> str:
    """Return the carbon of a unit, of as many units as that of the plan `like`, if given."""
    like_grams = None if like is None else like.energy.gco2e_per_unit
    return per_units(plan.energy.gco2e_per_unit, unit, grams, like_grams)


def per_units(value: float | None, unit: str, write: Callable[[float], str], like: float | None = None) -> str:
    """Return an amount per unit, or per thousand or million units where one of them is small.

    With `like`, the number of units is that at which this amount is written, so that amounts of one list compare.
    """
    if value is None:
        return "unknown"
    count = unit_count(like or value)
    return f"{write(value * count)} per {counted_unit(count, unit)}"


def unit_count(amount: float) -> int:
    """Return for how many units an amount per unit is written: one, or a thousand or a million of small amounts."""
    return next((n for n in (1, 1000) if amount * n >= _SMALL), 1_000_000)


def counted_unit(count: int, unit: str) -> str:
    """Return units in words, behind "per": "image", "1,000 images"."""
    return unit if count == 1 else f"{count:,} {unit}s"


def _machine(plan: NetworkPlan) -> Iterator[Line]:
    memory = plan.memory
    peak = f"{gigabytes(memory.peak_bytes)} of {gigabytes(memory.device_bytes)} at the largest batch"
    yield "Memory", f"{peak}, up to {gigabytes(memory.peak_at_confidence_bytes)} at the confidence"
    stages = sorted(plan.stages, key=lambda stage: -stage.total_s)
    shares = shares_words({stage.name: stage.total_s for stage in stages}, 4)
    metrics = plan.metrics
    yield (
        "Time",
        (
            f"a single job takes {seconds(metrics.service_s)}: {shares}; mean wait {seconds(metrics.queue_s.mean)}; "
            f"jobs per batch {metrics.jobs_per_batch:.3g}; busy {percent(metrics.busy_fraction)}"
        ),
    )
    yield "Accuracy", error_words(plan.error)


def error_words(error: PriceError) -> str:
    """Return the error of the predicted seconds of a plan, and the factor that it was sized with."""
    span = f"between 1/{error.interval_factor:.3g} and {error.interval_factor:.3g} of the prediction"
    sized = f"sized with {error.slowdown:.2f} (calibration {error.bundle})"
    if error.hardware_measured:
        return f"90 % of measured {error.error_class} jobs took {span}; {sized}"
    return f"this hardware was not measured: a job is assumed to take {span} in 90 % of cases; {sized}"


def _hardware_words(row: NetworkHardwareRow, best: NetworkPlan, unit: str) -> str:
    if row.state == "holds":
        return f"{row.words}: {dollars(row.usd_per_hour)}/h, {cost_words(row, unit, best)}"
    return f"{row.hardware}: no plan, {row.why}"


def difference_words(best: NetworkPlan, other: NetworkPlan, unit: str) -> str:
    """Return the capacity, the cost and the energy of an alternative, of as many units as those of the best plan."""
    found = []
    if (capacity := capacity_words(other)) is not None:
        found.append(f"capacity {capacity}")
    if other.cost is not None and other.cost.usd_per_hour is not None:
        found.append(f"{dollars(other.cost.usd_per_hour)}/h, {cost_words(other, unit, best)}")
    found.append(energy_words(other, unit, best))
    return ", ".join([*found, *([TIE_WORDS] if other.ties else [])])


def _search(answer: NetworkAnswer) -> Line:
    search, refusal, more = answer.search, answer.infeasible, ""
    if refusal is not None and refusal.n_searches:
        searches = f"{refusal.n_searches} {'search' if refusal.n_searches == 1 else 'searches'}"
        more = f"{searches} for what would meet it, with {counted(refusal.n_jobs, 'job')}; "
    left = not_simulated(search)
    return "Search", (
        f"{counted(search.n_space, 'candidate')}: {search.n_bounded_out:,} ruled out by bounds, "
        f"{'' if left is None else f'{left:,} not simulated, '}{search.n_simulated:,} simulated "
        f"with {counted(search.n_requests, 'job')}; {search.method}; {more}{search.seconds:.1f} s"
    )


def _refused(answer: NetworkAnswer) -> Iterator[Line]:
    refusal, search = answer.infeasible, answer.search
    yield "Request", question_words(answer)
    yield from refused_lines(
        NO_REASON if refusal is None else refusal.binding_constraint,
        answer.request.slo_words,
        () if refusal is None or refusal.closest is None else _closest(refusal.closest, answer),
        () if refusal is None else refusal.what_would_meet_it,
        "a lower rate, TensorRT, more hardware",
    )
    yield from ruled_out_lines({} if refusal is None else refusal.main_reasons, search)
    for notice in search.left_out:
        yield "Note", notice
    yield "Repeat", answer.reproduce.command
    yield _search(answer)


def _closest(closest: NetworkPlan, answer: NetworkAnswer) -> Iterator[Line]:
    yield "Closest", f"{closest.words}, at {digits(closest.requests_per_s)} jobs/s:"
    for row in closest.slo:
        yield "", f"{row.name} = {seconds(row.value_s)}, {_sure_words(row, answer)}; limit {seconds(row.limit_s)}"
    yield from _machine(closest)


def _sure_words(row: SloResult, answer: NetworkAnswer) -> str:
    most = row.value_at_confidence_s
    sure = f"{percent(answer.request.confidence)} confidence"
    return f"no upper limit with {sure}" if most is None else f"at most {seconds(most)} with {sure}"
