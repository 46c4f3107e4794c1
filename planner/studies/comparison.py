"""Two plans side by side: what was asked and chosen differently, what each figure is, which is better at what.

Two answers side by side: the questions, the best plans, and what keeps them from being compared one to one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from planner.answer.plan_schema import Plan, SloResult
from planner.answer.schema import Answer

Unit = Literal["rate", "seconds", "usd", "joules", "grams", "share"]

Better = Literal["A", "B", "same", ""]

#: Figures nearer than this are equal: two runs of one plan differ as much.
TIE: Final = 0.02

#: Deployment keys that follow from others.
_FOLLOWS: Final = ("kv_blocks",)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of both plans; None where a plan has none. unit: how to print it."""

    name: str
    unit: Unit
    a: float | None
    b: float | None
    lower_is_better: bool = True
    judged: bool = True  # False: neither more nor less of it is better

    @property
    def change(self) -> float | None:
        """b over a, less one."""
        return None if self.a is None or self.b is None or not self.a else self.b / self.a - 1

    @property
    def better(self) -> Better:
        """Empty where one has no figure, or none is better."""
        if self.a is None or self.b is None or not self.judged:
            return ""
        if abs(self.a - self.b) <= TIE * max(abs(self.a), abs(self.b)):
            return "same"
        return "A" if (self.a < self.b) == self.lower_is_better else "B"

    def as_dict(self) -> dict[str, object]:
        known: dict[str, object] = {"name": self.name, "unit": self.unit, "a": self.a, "b": self.b}
        return known | {"change": self.change, "better": self.better or None}


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """differs: (what, of A, of B) in words; figures as Figure says."""

    differs: tuple[tuple[str, str, str], ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()

    def better_at(self, side: Better) -> list[str]:
        """Names of the figures one plan is better at."""
        return [f.name for f in self.figures if f.better == side]

    def document(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "differs": [{"what": w, "a": a, "b": b} for w, a, b in self.differs],
            "figures": [f.as_dict() for f in self.figures],
            "better": {"a": self.better_at("A"), "b": self.better_at("B"), "same": self.better_at("same")},
            "notes": list(self.notes),
        }


def deployment_differs(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Keys of two deployment blocks that are not equal."""
    for key in dict.fromkeys((*a, *b)):
        if key not in _FOLLOWS and a.get(key) != b.get(key):
            yield key, _text(a.get(key)), _text(b.get(key))


def figures(a: Plan, b: Plan) -> Iterator[Figure]:
    """Every figure at least one of them has."""
    pairs: list[Figure] = [
        Figure("requests/s looked at", "rate", a.requests_per_s, b.requests_per_s, judged=False),
        Figure("highest requests/s", "rate", a.capacity_requests_per_s, b.capacity_requests_per_s, False),
        Figure("90 % sure requests/s", "rate", a.safe_requests_per_s, b.safe_requests_per_s, False),
        *_latencies(a, b),
        Figure("$ per hour", "usd", a.usd_per_hour, b.usd_per_hour),
        *(Figure(n, "usd", _cost(a, k), _cost(b, k)) for n, k in _COSTS),
        *(Figure(n, u, _energy(a, k), _energy(b, k)) for n, u, k in _ENERGIES),
        Figure("KV cache at its peak", "share", a.metric(_KV), b.metric(_KV), judged=False),
    ]
    yield from (f for f in pairs if f.a is not None or f.b is not None)


_KV: Final = "kv_peak_fraction"

_COSTS: Final = (
    ("$ per M output tokens", "usd_per_million_output_tokens"),
    ("$ per M tokens", "usd_per_million_total_tokens"),
)

_ENERGIES: Final[tuple[tuple[str, Unit, str], ...]] = (
    ("J per output token", "joules", "j_per_output_token"),
    ("g CO2e per M output", "grams", "gco2e_per_million_output_tokens"),
)


def _latencies(a: Plan, b: Plan) -> Iterator[Figure]:
    """Each objective's value and how sure it is; equal objectives share a row."""
    rows = [{row.name: row for row in p.slo} for p in (a, b)]
    for name in dict.fromkeys((*rows[0], *rows[1])):
        one, two = rows[0].get(name), rows[1].get(name)
        yield Figure(name, "seconds", _value(one, a, name), _value(two, b, name))
        yield Figure(f"sure of {name}", "share", _sure(one), _sure(two), False)


def _value(row: SloResult | None, plan: Plan, name: str) -> float | None:
    """Of the objective; of a plan without it, what its metrics say."""
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


#: Parts of the question; the deployment says model, engine and hardware as they were resolved.
_ASKED: Final = ("slo", "workload", "rate", "objective", "precisions", "seed")


def compare_answers(a: Answer, b: Answer) -> PlanComparison:
    """Of a refused answer its closest plan is looked at, and a note says so."""
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
            yield f"{name} is a no ({answer.infeasible.binding_constraint}): {shown}"
    if a.reproduce.calibration != b.reproduce.calibration:
        yield "made with different calibrations (other hardware, or another time): part of a difference may be theirs"
    if a.request.workload != b.request.workload:
        yield "the workloads differ: latencies and costs per token are of different requests"
    rates = [p.requests_per_s for p in (one, two) if p is not None and p.requests_per_s]
    if len(rates) == 2 and abs(rates[0] / rates[1] - 1) > TIE:
        yield "latency, cost and energy are each at the plan's own rate"
