"""The comparison of two plans of networks, or of two answers: differences, figures, and advantages of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from catalogs.errors import InputError
from planner.answer.answer_schema import Answer
from planner.networks.schema import NetworkAnswer, NetworkPlan
from planner.networks.screen import counted_unit, unit_count
from planner.problem.slo import STATS
from planner.studies.comparison import (
    SAME_WITHIN,
    USD_PER_HOUR,
    Figure,
    PlanComparison,
    Unit,
    compare_answers,
    deployment_differs,
    question_differs,
)

# Names of the figures that a plan has also where it cannot serve the rate; that of the price is USD_PER_HOUR.

PLANNED_RATE: Final = "planned jobs/s"

CAPACITY: Final = "capacity, jobs/s"

SINGLE_JOB: Final = "a single job"

#: Keys of a request that are compared; the deployments contain the network, the hardware and the job.
_REQUEST_KEYS: Final = ("slo", "rate", "users", "objective", "confidence", "precisions", "seed")


def compare_any(a: Answer | NetworkAnswer, b: Answer | NetworkAnswer) -> PlanComparison:
    """Return the comparison of two answers for models of the same kind.

    Raises:
        InputError: One answer is for a language model and the other one for a network.
    """
    if isinstance(a, NetworkAnswer) and isinstance(b, NetworkAnswer):
        return compare_network_answers(a, b)
    if isinstance(a, NetworkAnswer) or isinstance(b, NetworkAnswer):
        names = f"{a.request.model}, {b.request.model}"
        raise InputError("an answer for a network has no figures in common with one for a language model", names)
    return compare_answers(a, b)


def compare_network_answers(a: NetworkAnswer, b: NetworkAnswer) -> PlanComparison:
    """Return the comparison of two answers; a refused one is represented by its closest plan, with a note."""
    one, two = _plan(a), _plan(b)
    differs = [*question_differs((a.request.as_dict(), b.request.as_dict()), (a.feasible, b.feasible), _REQUEST_KEYS)]
    found: list[Figure] = []
    differs += [("job", a.job.words, b.job.words)] if a.job.words != b.job.words else []
    if one is not None and two is not None:
        differs += setup_differs(one.deployment, two.deployment)
        found = list(figures(one, two, a.job.unit, b.job.unit))
    return PlanComparison(tuple(differs), tuple(found), tuple(_notes(a, b, one, two)))


def setup_differs(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the keys in which two deployments of a network differ, with both values.

    The job is left out: its sizes may be written or left at their defaults, and it has a row of its own, in words.
    """
    yield from deployment_differs(a | {"job": None}, b | {"job": None})


def _plan(answer: NetworkAnswer) -> NetworkPlan | None:
    return answer.best or (None if answer.infeasible is None else answer.infeasible.closest)


def figures(a: NetworkPlan, b: NetworkPlan, unit: str, other_unit: str | None = None) -> Iterator[Figure]:
    """Yield the figures of two plans; those for each unit only where both plans yield the same one."""
    yield Figure(PLANNED_RATE, "jobs", a.requests_per_s, b.requests_per_s, None)
    yield Figure(CAPACITY, "jobs", a.capacity_requests_per_s, b.capacity_requests_per_s, False)
    if a.capacity_users is not None and b.capacity_users is not None:
        yield Figure("capacity, users", "jobs", a.capacity_users, b.capacity_users, False)
    yield from _latencies(a, b)
    yield Figure("mean wait", "seconds", a.metrics.queue_s.mean, b.metrics.queue_s.mean)
    yield Figure(SINGLE_JOB, "seconds", a.metrics.service_s, b.metrics.service_s)
    yield Figure("accelerators busy", "share", a.metrics.busy_fraction, b.metrics.busy_fraction, None)
    yield Figure(USD_PER_HOUR, "usd", a.usd_per_hour, b.usd_per_hour)
    if other_unit not in (None, unit):
        return
    yield from _per_unit("$", "usd", unit, (a.usd_per_unit, b.usd_per_unit))
    yield from _per_unit("Wh", "watt_hours", unit, (a.energy.wh_per_unit, b.energy.wh_per_unit))
    yield from _per_unit("gCO2e", "grams", unit, (a.energy.gco2e_per_unit, b.energy.gco2e_per_unit))


def _per_unit(name: str, kind: Unit, unit: str, amounts: tuple[float | None, float | None]) -> Iterator[Figure]:
    """Yield the amounts per unit of two plans, for as many units as the screen of `plan` writes for the first."""
    known = next((amount for amount in amounts if amount is not None), None)
    if known is not None:
        count = unit_count(known)
        a, b = (None if amount is None else amount * count for amount in amounts)
        yield Figure(f"{name} per {counted_unit(count, unit)}", kind, a, b)


def _latencies(a: NetworkPlan, b: NetworkPlan) -> Iterator[Figure]:
    """Yield the value and the confidence of each objective of either plan.

    If only one of them has the objective, the value of the other is the same statistic of its latencies.
    """
    rows = [{row.name: row for row in plan.slo} for plan in (a, b)]
    for name in dict.fromkeys((*rows[0], *rows[1])):
        stat = name.partition(".")[2]
        found = [by_name.get(name) for by_name in rows]
        values = [
            row.value_s if row is not None else plan.metrics.e2e_s.at(stat) if stat in STATS else None
            for plan, row in zip((a, b), found, strict=True)
        ]
        yield Figure(name, "seconds", values[0], values[1])
        sure = [None if row is None else row.probability_met for row in found]
        yield Figure(f"confidence in {name}", "confidence", sure[0], sure[1], False)


def _notes(a: NetworkAnswer, b: NetworkAnswer, one: NetworkPlan | None, two: NetworkPlan | None) -> Iterator[str]:
    for name, answer, plan in (("A", a, one), ("B", b, two)):
        if not answer.feasible and answer.infeasible is not None:
            shown = "its closest plan is shown" if plan is not None else "it has no plan to show"
            yield f"{name} is infeasible ({answer.infeasible.binding_constraint}): {shown}"
    if a.reproduce.calibration != b.reproduce.calibration:
        yield "the calibrations differ (other hardware, or another time), which may explain part of a difference"
    if a.job != b.job:
        yield "the jobs differ: latencies and costs refer to different work"
    if one is not None and two is not None and abs(one.requests_per_s / two.requests_per_s - 1) > SAME_WITHIN:
        yield "latency, cost and energy refer to the planned rate of each plan"
