"""The tables of an answer for a network as text, and its plans as rows of a CSV file."""

from __future__ import annotations

from typing import Any

from catalogs.economics.electricity import list_grids, load_grid
from catalogs.ui.words import digits, dollars, gigabytes, kilowatts, percent, plan_name, seconds, sure_percent
from planner.evaluation.confidence import LEVEL
from planner.networks.candidate_counts import not_simulated
from planner.networks.schema import NetworkAnswer, NetworkPlan
from planner.networks.screen import (
    capacity_words,
    carbon_words,
    cost_words,
    energy_words,
    job_near_miss_words,
    per_units,
)
from planner.report.answer_tables import LIST_PRICES, TextTable, region_cells
from planner.report.material import REGIONS
from planner.search.candidate_tester import TIE_WORDS
from planner.sections.refusal_words import capital
from planner.sections.section import interval_words


def objectives(answer: NetworkAnswer, plan: NetworkPlan) -> TextTable:
    """Return a row for each objective of a plan."""
    sure = percent(answer.request.confidence)
    level = percent(plan.slo[0].ci_level or LEVEL)  # the same for all objectives of a plan
    head = ("Objective", "Limit", "Simulated", f"{level} interval", f"At {sure} confidence", "Met", "Probability")
    rows = [
        (
            words,
            seconds(row.limit_s),
            seconds(row.value_s),
            interval_words(row.ci_low_s, row.ci_high_s),
            "no limit" if row.value_at_confidence_s is None else f"at most {seconds(row.value_at_confidence_s)}",
            "yes" if row.met else "NO",
            sure_percent(row.probability_met),
        )
        for words, row in zip(answer.request.slo_words, plan.slo, strict=True)
    ]
    return TextTable(head, tuple(rows), f"Simulated at {digits(plan.requests_per_s)} jobs/s.")


def latencies(plan: NetworkPlan) -> TextTable:
    """Return the latency of jobs and their wait by statistic."""
    metrics = plan.metrics
    rows = [
        (stat, seconds(metrics.e2e_s.at(stat)), seconds(metrics.queue_s.at(stat)))
        for stat in ("mean", "p50", "p90", "p95", "p99")
    ]
    return TextTable(("Statistic", "End to end", "Waiting"), tuple(rows), f"{metrics.n_jobs:,} simulated jobs.")


def capacity_sentences(answer: NetworkAnswer, plan: NetworkPlan) -> str:
    """Return the capacity of a plan, what limits it, and how suddenly objectives are missed beyond it."""
    capacity, near_miss = capacity_words(plan), job_near_miss_words(plan, answer.request.confidence)
    if capacity is None:
        return "No rate of jobs meets the objectives at the confidence."
    limit = f": {plan.limited_by}" if plan.limited_by else ""
    return f"The plan serves {capacity} at the confidence{limit}." + (f" {capital(near_miss)}." if near_miss else "")


def load(plan: NetworkPlan) -> TextTable:
    """Return the load of a plan, and how busy it is."""
    metrics, capacity = plan.metrics, capacity_words(plan)
    known = () if capacity is None else (("Capacity", capacity),)
    limit = () if plan.limited_by is None else (("Limit of the capacity", plan.limited_by),)
    unused_w = plan.energy.unused_w
    unused = (("Of it, rented accelerators that are not used", kilowatts(unused_w)),) if unused_w else ()
    rows = (
        ("Rate of these figures", f"{digits(plan.requests_per_s)} jobs/s"),
        *known,
        *limit,
        ("Jobs per batch", f"{metrics.jobs_per_batch:.3g}"),
        ("Accelerators busy", percent(metrics.busy_fraction)),
        ("Power", kilowatts(plan.energy.w_mean)),
        *unused,
    )
    return TextTable(("Under load", ""), rows, words=2)


def stages(plan: NetworkPlan) -> TextTable:
    """Return a row for each stage of a single job."""
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
            percent(stage.borrowed_fraction),
        )
        for stage in plan.stages
    ]
    head = ("Stage", "Runs", "Time", "Share", "Communication", "Waits for", "Measured", "Interpolated", "Borrowed")
    text = (
        "Measured, interpolated and borrowed (from the tables of another accelerator) are shares of the kernels' time; "
        "the rest follows from the roofline."
    )
    return TextTable(head, tuple(rows), text)


def plans(answer: NetworkAnswer) -> TextTable:
    """Return a row for each plan."""
    head = ("Plan", "Deployment", "Capacity", "Per hour", "Per month", "Cost", "Energy", "Carbon")
    rows = [_plan(i, plan, answer.plans[0], answer.job.unit) for i, plan in enumerate(answer.plans)]
    return TextTable(head, tuple(rows), "Cost, energy and carbon refer to the rate of each plan.", words=2)


def _plan(i: int, plan: NetworkPlan, best: NetworkPlan, unit: str) -> tuple[str, ...]:
    month = None if plan.cost is None else plan.cost.usd_per_month
    return (
        plan_name(i),
        f"{plan.words} ({TIE_WORDS})" if plan.ties else plan.words,
        capacity_words(plan) or "none",
        dollars(plan.usd_per_hour),
        "unknown" if month is None else f"${month:,.0f}",
        cost_words(plan, unit, best),
        energy_words(plan, unit, best),
        carbon_words(plan, unit, best),
    )


def carbon(plan: NetworkPlan, unit: str) -> TextTable:
    """Return the carbon of a unit on several grids, the cleanest first."""
    own = plan.energy.grid_region
    grids = sorted((load_grid(code) for code in list_grids() if code in REGIONS | {own}), key=lambda g: g.gco2e_per_kwh)
    rows = []
    for grid in grids:
        grams = plan.energy.wh_per_unit / 1e3 * grid.gco2e_per_kwh
        words = per_units(grams, unit, lambda g: f"{digits(g)} gCO2e", plan.energy.gco2e_per_unit)
        name = f"{grid.name} (the plan's)" if grid.region == own else grid.name
        rows.append((name, f"{grid.gco2e_per_kwh:,.0f} g/kWh", words))
    return TextTable(("Grid (yearly mean)", "Carbon of electricity", "Carbon"), tuple(rows))


def regions(answer: NetworkAnswer, plan: NetworkPlan) -> TextTable:
    """Return the prices of the recommended plan in each region under each contract, with the carbon there."""
    unit, energy = answer.job.unit, plan.energy
    head = ("Region", "Instances", "Source", "Per hour", "Per month", "Cost", "Carbon")
    rows = [
        (
            *region_cells(p),
            dollars(p.usd_per_hour),
            dollars(p.usd_per_month),
            per_units(p.usd_per_unit, unit, dollars, plan.usd_per_unit),
            per_units(p.gco2e_per_unit, unit, lambda g: f"{digits(g)} gCO2e", energy.gco2e_per_unit),
        )
        for p in answer.prices
    ]
    return TextTable(head, tuple(rows), LIST_PRICES, words=3)


def hardware(answer: NetworkAnswer) -> TextTable:
    """Return a row for each kind of hardware that was compared."""
    rows = [
        (
            row.hardware,
            row.words or f"no plan: {row.why}",
            dollars(row.usd_per_hour) if row.state == "holds" else "",
            cost_words(row, answer.job.unit, answer.best) if row.state == "holds" else "",
        )
        for row in answer.hardware
    ]
    return TextTable(("Hardware", "Plan", "Per hour", "Cost"), tuple(rows), "The best plan of each kind.", words=2)


def errors(answer: NetworkAnswer) -> TextTable:
    """Return the published error of each plan's prices."""
    closest = answer.infeasible.closest if answer.infeasible else None
    rows = [
        (plan.words, plan.error.error_class, f"{plan.error.interval_factor:.3g}", f"{plan.error.slowdown:.2f}")
        for plan in [*answer.plans, *([closest] if closest else [])]
    ]
    text = (
        "90 % of the public measurements of a class are between the prediction divided by its factor and the "
        "prediction times it; the factor is wider on hardware that was not measured. Plans are sized with batches "
        "slowed down by the factor at the confidence."
    )
    return TextTable(("Plan", "Class", "Published factor", "Sized with"), tuple(rows), text, words=2)


def reproduction(answer: NetworkAnswer) -> TextTable:
    """Return what the answer depends on beyond its command."""
    search, again = answer.search, answer.reproduce
    left = not_simulated(search)
    rows = (
        ("seed", str(again.seed)),
        ("calibration", again.calibration),
        ("candidates", f"{search.n_space:,}, of which bounds ruled out {search.n_bounded_out:,}"),
        *(() if left is None else (("not simulated", f"{left:,}"),)),
        ("simulated", f"{search.n_simulated:,}, with {search.n_requests:,} jobs"),
        ("search", f"{search.method}, {search.seconds:.1f} s"),
        *again.versions.items(),
    )
    return TextTable(("quantity", "value"), rows, words=2)


def memory_words(plan: NetworkPlan) -> str:
    """Return the memory of one accelerator at the largest batch."""
    memory = plan.memory
    return (
        f"Peak at the largest batch: {gigabytes(memory.peak_bytes)} of {gigabytes(memory.device_bytes)}, up to "
        f"{gigabytes(memory.peak_at_confidence_bytes)} at the confidence."
    )


def plan_rows(answer: NetworkAnswer) -> list[dict[str, Any]]:
    """Return a row of figures for each plan, in SI units, as `result.csv` holds them."""
    return [_row(i, plan, answer) for i, plan in enumerate(answer.plans)]


def _row(i: int, plan: NetworkPlan, answer: NetworkAnswer) -> dict[str, Any]:
    keys = {k: v for k, v in plan.deployment.items() if isinstance(v, str | int | float | bool)}
    sizes = {f"job_{name}": size for name, size in answer.job.sizes.items()}
    rates = {
        "requests_per_s": plan.requests_per_s,
        "capacity_requests_per_s": plan.capacity_requests_per_s,
        "capacity_users": plan.capacity_users,
        f"{answer.job.unit}s_per_hour": plan.units_per_hour,
    }
    values = {f"{row.name}_s": row.value_s for row in plan.slo}
    values |= {f"{row.name}_probability": row.probability_met for row in plan.slo}
    costs = {
        "usd_per_hour": plan.usd_per_hour,
        f"usd_per_{answer.job.unit}": plan.usd_per_unit,
        "w_mean": plan.energy.w_mean,
        "unused_w": plan.energy.unused_w,
        f"j_per_{answer.job.unit}": plan.energy.j_per_unit,
        f"gco2e_per_{answer.job.unit}": plan.energy.gco2e_per_unit,
    }
    return {"plan": i, "label": plan_name(i), "ties": plan.ties, **keys, **sizes, **rates, **values, **costs}
