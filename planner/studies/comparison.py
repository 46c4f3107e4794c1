"""The comparison of two plans or two answers: differences, figures, and advantages of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from planner.answer.plan_schema import Plan, SloResult
from planner.answer.schema import Answer

Unit = Literal["rate", "seconds", "usd", "joules", "grams", "share"]

Better = Literal["A", "B", "same", ""]

#: Relative difference below which figures count as equal; two runs of one plan differ by as much.
TIE: Final = 0.02

#: Deployment keys that follow from others.
_FOLLOWS: Final = ("kv_blocks",)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of two plans; None for a plan without it."""

    name: str
    unit: Unit
    a: float | None
    b: float | None
    lower_is_better: bool = True
    judged: bool = True  # False: neither direction is better

    @property
    def change(self) -> float | None:
        """Return the relative change from a to b; None if it is undefined."""
        return None if self.a is None or self.b is None or not self.a else self.b / self.a - 1

    @property
    def better(self) -> Better:
        """Return the better side; empty if a figure is missing or neither direction is better."""
        if self.a is None or self.b is None or not self.judged:
            return ""
        if abs(self.a - self.b) <= TIE * max(abs(self.a), abs(self.b)):
            return "same"
        return "A" if (self.a < self.b) == self.lower_is_better else "B"

    def as_dict(self) -> dict[str, object]:
        """Return the figure as JSON data."""
        known: dict[str, object] = {"name": self.name, "unit": self.unit, "a": self.a, "b": self.b}
        return known | {"change": self.change, "better": self.better or None}


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


def deployment_differs(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the keys in which two deployment blocks differ, with both values."""
    for key in dict.fromkeys((*a, *b)):
        if key not in _FOLLOWS and a.get(key) != b.get(key):
            yield key, _text(a.get(key)), _text(b.get(key))


def figures(a: Plan, b: Plan) -> Iterator[Figure]:
    """Yield every figure that at least one of the plans has."""
    pairs: list[Figure] = [
        Figure("planned requests/s", "rate", a.requests_per_s, b.requests_per_s, judged=False),
        Figure("highest requests/s", "rate", a.capacity_requests_per_s, b.capacity_requests_per_s, False),
        Figure("requests/s with 90 % confidence", "rate", a.safe_requests_per_s, b.safe_requests_per_s, False),
        *_latencies(a, b),
        Figure("$ per hour", "usd", a.usd_per_hour, b.usd_per_hour),
        *(Figure(n, "usd", _cost(a, k), _cost(b, k)) for n, k in _COSTS),
        *(Figure(n, u, _energy(a, k), _energy(b, k)) for n, u, k in _ENERGIES),
        Figure("peak KV cache utilisation", "share", a.metric(_KV), b.metric(_KV), judged=False),
    ]
    yield from (f for f in pairs if f.a is not None or f.b is not None)


_KV: Final = "kv_peak_fraction"

_COSTS: Final = (
    ("$ per million output tokens", "usd_per_million_output_tokens"),
    ("$ per million tokens", "usd_per_million_total_tokens"),
)

_ENERGIES: Final[tuple[tuple[str, Unit, str], ...]] = (
    ("J per output token", "joules", "j_per_output_token"),
    ("g CO2e per million output tokens", "grams", "gco2e_per_million_output_tokens"),
)


def _latencies(a: Plan, b: Plan) -> Iterator[Figure]:
    """Yield the value of and the confidence in each objective; equal objectives share a row."""
    rows = [{row.name: row for row in p.slo} for p in (a, b)]
    for name in dict.fromkeys((*rows[0], *rows[1])):
        one, two = rows[0].get(name), rows[1].get(name)
        yield Figure(name, "seconds", _value(one, a, name), _value(two, b, name))
        yield Figure(f"confidence in {name}", "share", _sure(one), _sure(two), False)


def _value(row: SloResult | None, plan: Plan, name: str) -> float | None:
    """Return the value of an objective, or of the same metric for a plan without the objective."""
    if row is not None:
        return row.value_s
    metric, _, stat = name.partition(".")
    found = ((plan.metrics or {}).get(f"{metric}_s") or {}).get(stat)
    return float(found) if isinstance(found, int | float) else None


def _sure(row: SloResult | None) -> float | None:
    return None if row is None else row.probability_met


def _energy(plan: Plan, key: str) -> float | None:
    found: float | None = getattr(plan.energy, key, None)
    return found


def _cost(plan: Plan, key: str) -> float | None:
    found: float | None = getattr(plan.cost, key, None)
    return found


def _text(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


#: Request keys that are compared; the deployments contain the resolved model, engine and hardware.
_ASKED: Final = ("slo", "workload", "rate", "objective", "precisions", "seed")


def compare_answers(a: Answer, b: Answer) -> PlanComparison:
    """Return the comparison of two answers; an infeasible answer is represented by its closest plan, with a note."""
    one, two = _plan(a), _plan(b)
    differs = [*_questions(a, b)]
    found = []
    if one is not None and two is not None:
        differs += list(deployment_differs(one.deployment, two.deployment))
        found = list(figures(one, two))
    return PlanComparison(tuple(differs), tuple(found), tuple(_notes(a, b, one, two)))


def _plan(answer: Answer) -> Plan | None:
    if answer.best is not None or answer.infeasible is None:
        return answer.best
    return answer.infeasible.closest


def _questions(a: Answer, b: Answer) -> Iterator[tuple[str, str, str]]:
    ours, theirs = a.request.as_dict(), b.request.as_dict()
    for key in _ASKED:
        one, two = ours[key], theirs[key]
        if one != two:
            yield key, _words(one), _words(two)
    if a.feasible != b.feasible:
        yield "answer", "yes" if a.feasible else "no", "yes" if b.feasible else "no"


def _words(value: object) -> str:
    if value is None:
        return "free"
    return (
        ", ".join(map(str, value))
        if isinstance(value, list)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _notes(a: Answer, b: Answer, one: Plan | None, two: Plan | None) -> Iterator[str]:
    for name, answer, plan in (("A", a, one), ("B", b, two)):
        if not answer.feasible and answer.infeasible is not None:
            shown = "its closest plan is shown" if plan is not None else "it has no plan to show"
            yield f"{name} is infeasible ({answer.infeasible.binding_constraint}): {shown}"
    if a.reproduce.calibration != b.reproduce.calibration:
        yield "the calibrations differ (other hardware, or another time), which may explain part of a difference"
    if a.request.workload != b.request.workload:
        yield "the workloads differ: latencies and costs per token refer to different requests"
    rates = [p.requests_per_s for p in (one, two) if p is not None and p.requests_per_s]
    if len(rates) == 2 and abs(rates[0] / rates[1] - 1) > TIE:
        yield "latency, cost and energy refer to the planned rate of each plan"
