"""Two answers side by side: the questions, the best plans, and what keeps them from being compared one to one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from planner.answer_file import AnswerFile, Plan
from planner.comparison import TIE, PlanComparison, deployment_differs, figures

#: Parts of the question; the deployment says model, engine and hardware as they were resolved.
_ASKED: Final = ("slo", "workload", "rate", "objective", "precisions", "seed")


def compare_answers(a: AnswerFile, b: AnswerFile) -> PlanComparison:
    """Of a refused answer its closest plan is looked at, and a note says so."""
    one, two = _plan(a), _plan(b)
    differs = [*_questions(a, b)]
    found = []
    if one is not None and two is not None:
        differs += list(deployment_differs(one.deployment, two.deployment))
        found = list(figures(one, two))
    return PlanComparison(tuple(differs), tuple(found), tuple(_notes(a, b, one, two)))


def _plan(answer: AnswerFile) -> Plan | None:
    if answer.best is not None or answer.infeasible is None:
        return answer.best
    return answer.infeasible.closest


def _questions(a: AnswerFile, b: AnswerFile) -> Iterator[tuple[str, str, str]]:
    for key in _ASKED:
        one, two = getattr(a.request, key), getattr(b.request, key)
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


def _notes(a: AnswerFile, b: AnswerFile, one: Plan | None, two: Plan | None) -> Iterator[str]:
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
