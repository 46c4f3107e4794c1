"""The comparison of two plans or two answers: differences, figures, and advantages of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from calibration.complexity.comparison import common_weights
from catalogs.io.json_files import dotted
from planner.answer.answer_schema import Answer
from planner.answer.plan_schema import Plan
from planner.problem.request import PlanRequest
from planner.sections.complexity import LatencyByLength

Unit = Literal["rate", "jobs", "seconds", "usd", "joules", "watt_hours", "grams", "share", "confidence"]

#: The units whose change is a difference and not a ratio.
_SHARES: Final[tuple[Unit, ...]] = ("share", "confidence")

Better = Literal["A", "B", "same", ""]

#: Relative difference below which figures count as equal; two runs of one plan differ by as much.
SAME_WITHIN: Final = 0.02

#: Name of the figure of the price, of plans of any kind.
USD_PER_HOUR: Final = "$ per hour"

#: Deployment keys that follow from others.
_FOLLOWS: Final = ("kv_blocks",)

#: Request keys that are compared; the deployments contain the resolved model, engine and hardware.
_REQUEST_KEYS: Final = (
    "slo", "confidence", "workload", "input_tokens", "output_tokens", "rate", "users", "think_s", "survive",
    "objective", "precisions", "seed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of two plans; None for a plan without it.

    `lower_is_better` is None if neither direction is better.
    """

    name: str
    unit: Unit
    a: float | None
    b: float | None
    lower_is_better: bool | None = True

    @property
    def change(self) -> float | None:
        """Return the change from a to b; None if it is undefined.

        It is relative, except of shares such as a confidence, whose change is their difference.
        """
        if self.a is None or self.b is None:
            return None
        if self.unit in _SHARES:
            return self.b - self.a
        return self.b / self.a - 1 if self.a else None

    @property
    def better(self) -> Better:
        """Return the better side; empty if a figure is missing or neither direction is better."""
        if self.a is None or self.b is None or self.lower_is_better is None:
            return ""
        if abs(self.a - self.b) <= SAME_WITHIN * max(abs(self.a), abs(self.b)):
            return "same"
        return "A" if (self.a < self.b) == self.lower_is_better else "B"

    def as_dict(self) -> dict[str, object]:
        """Return the figure as JSON data."""
        known: dict[str, object] = {"name": self.name, "unit": self.unit, "a": self.a, "b": self.b}
        kind = "difference" if self.unit in _SHARES else "relative"
        return known | {"change": self.change, "change_is": kind, "better": self.better or None}


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """The comparison of two plans; `differs` holds triples of a name, the value of A and the value of B."""

    differs: tuple[tuple[str, str, str], ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()

    def better_at(self, side: Better) -> list[str]:
        """Return the names of the figures in which a side is better."""
        return [f.name for f in self.figures if f.better == side]

    def document(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        return {
            "schema_version": 1,
            "differs": [{"what": w, "a": a, "b": b} for w, a, b in self.differs],
            "figures": [f.as_dict() for f in self.figures],
            "better": {"a": self.better_at("A"), "b": self.better_at("B"), "same": self.better_at("same")},
            "notes": list(self.notes),
        }


def differences(
    a: Mapping[str, Any], b: Mapping[str, Any], keys: Iterable[str], absent: str = "none"
) -> Iterator[tuple[str, str, str]]:
    """Yield the keys whose values differ, with both values in words; `absent` stands for None."""
    for key in keys:
        values = a.get(key), b.get(key)
        if values[0] != values[1]:
            one, two = (absent if value is None else _words(value) for value in values)
            yield key, one, two


def question_differs(
    requests: tuple[Mapping[str, Any], Mapping[str, Any]], feasible: tuple[bool, bool], keys: Iterable[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the keys in which the requests of two answers differ, and the verdicts if these differ, with both values.

    Args:
        requests: The requests as dicts; a key that is missing was free.
        feasible: Whether each answer has a plan.
        keys: The keys that are compared.
    """
    one, two = (
        {key: ", ".join(map(str, value)) if isinstance(value, list) else value for key, value in block.items()}
        for block in requests
    )
    yield from differences(one, two, keys, "free")
    if feasible[0] != feasible[1]:
        yield "answer", "yes" if feasible[0] else "no", "yes" if feasible[1] else "no"


def deployment_differs(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the keys in which two deployment blocks differ, with both values."""
    one, two = (dotted(block) for block in (a, b))
    return differences(one, two, (key for key in dict.fromkeys((*one, *two)) if key not in _FOLLOWS))


def _words(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


#: Figures of plans before and after the latencies: name, unit, path of the value, and whether a lower value is better.
_RATES: Final[tuple[tuple[str, Unit, str, bool | None], ...]] = (
    ("planned requests/s", "rate", "requests_per_s", None),
    ("capacity, requests/s", "rate", "capacity_requests_per_s", False),
)

_COSTS: Final[tuple[tuple[str, Unit, str, bool | None], ...]] = (
    (USD_PER_HOUR, "usd", "usd_per_hour", True),
    ("$ per million output tokens", "usd", "cost.usd_per_million_output_tokens", True),
    ("$ per million tokens", "usd", "cost.usd_per_million_total_tokens", True),
    ("J per output token", "joules", "energy.j_per_output_token", True),
    ("gCO2e per million output tokens", "grams", "energy.gco2e_per_million_output_tokens", True),
)


def figures(a: Plan, b: Plan) -> Iterator[Figure]:
    """Yield every figure that at least one of the plans has."""
    found = [*_figures(a, b, _RATES), *_latencies(a, b), *_figures(a, b, _COSTS)]
    kv = "kv_peak_fraction"
    found.append(Figure("peak KV cache utilisation", "share", a.metric(kv), b.metric(kv), None))
    yield from (f for f in found if f.a is not None or f.b is not None)


def _figures(a: Plan, b: Plan, rows: Iterable[tuple[str, Unit, str, bool | None]]) -> Iterator[Figure]:
    for name, unit, path, lower_is_better in rows:
        block, _, key = path.rpartition(".")
        one, two = (getattr(getattr(plan, block) if block else plan, key, None) for plan in (a, b))
        yield Figure(name, unit, one, two, lower_is_better)


def _latencies(a: Plan, b: Plan) -> Iterator[Figure]:
    """Yield the value of and the confidence in each objective; equal objectives share a row.

    For a plan without the objective, the value is that of the same statistic in its metrics. Neither of two confidences
    is better if they refer to different limits.
    """
    rows = [{row.name: row for row in plan.slo} for plan in (a, b)]
    for name in dict.fromkeys((*rows[0], *rows[1])):
        found = [(plan, by_name.get(name)) for plan, by_name in zip((a, b), rows, strict=True)]
        metric, _, stat = name.partition(".")
        one, two = (plan.latency_s(metric, stat) if row is None else row.value_s for plan, row in found)
        yield Figure(name, "seconds", one, two)
        one, two = (None if row is None else row.probability_met for _, row in found)
        limits_s = {row.limit_s for _, row in found if row is not None}
        yield Figure(f"confidence in {name}", "confidence", one, two, False if len(limits_s) == 1 else None)


def compare_answers(a: Answer, b: Answer) -> PlanComparison:
    """Return the comparison of two answers; an infeasible answer is represented by its closest plan, with a note."""
    one, two = _plan(a), _plan(b)
    differs = [*question_differs((a.request.as_dict(), b.request.as_dict()), (a.feasible, b.feasible), _REQUEST_KEYS)]
    found: list[Figure] = []
    if one is not None and two is not None:
        differs += deployment_differs(one.deployment, two.deployment)
        found = [*figures(one, two), *at_equal_lengths(a, b)]
    return PlanComparison(tuple(differs), tuple(found), tuple(_notes(a, b, one, two)))


def at_equal_lengths(a: Answer, b: Answer) -> Iterator[Figure]:
    """Yield the mean end-to-end times of both plans with equal weights of the lengths of requests.

    Nothing is yielded for answers whose latencies are not in the same bins of lengths, as for other workloads.
    """
    one, two = (getattr(answer, "complexity", None) for answer in (a, b))
    if not isinstance(one, LatencyByLength) or not isinstance(two, LatencyByLength) or one.edges != two.edges:
        return
    weight = common_weights(one.counts, two.counts)
    shared = weight > 0
    if shared.any():
        first_s, second_s = (float(weight[shared] @ block.means_s[shared]) for block in (one, two))
        yield Figure("end-to-end time at equal lengths", "seconds", first_s, second_s)


def _plan(answer: Answer) -> Plan | None:
    return answer.best or (None if answer.infeasible is None else answer.infeasible.closest)


def _load(request: PlanRequest) -> tuple[str, int | None, int | None]:
    return request.workload, request.input_tokens, request.output_tokens


def _notes(a: Answer, b: Answer, one: Plan | None, two: Plan | None) -> Iterator[str]:
    for name, answer, plan in (("A", a, one), ("B", b, two)):
        if not answer.feasible and answer.infeasible is not None:
            shown = "its closest plan is shown" if plan is not None else "it has no plan to show"
            yield f"{name} is infeasible ({answer.infeasible.binding_constraint}): {shown}"
    same_calibration = one is not None and two is not None and one.calibration == two.calibration
    if a.reproduce.calibration != b.reproduce.calibration and not same_calibration:
        yield "the calibrations differ (other hardware, or another time), which may explain part of a difference"
    if _load(a.request) != _load(b.request):
        yield "the workloads differ: latencies and costs per token refer to different requests"
    rates = [p.requests_per_s for p in (one, two) if p is not None and p.requests_per_s]
    if len(rates) == 2 and abs(rates[0] / rates[1] - 1) > SAME_WITHIN:
        yield "latency, cost and energy refer to the planned rate of each plan"
