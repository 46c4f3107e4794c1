"""Which command can read which answer: one table, so that every command says no in the same words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from catalogs.errors import InputError
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.problem.request import DISAGGREGATED


@dataclass(frozen=True, slots=True)
class AnswerFeature:
    """What a plan may have and a command cannot read. of: what that command reads instead."""

    has: Callable[[Plan], bool]
    of: str
    name: str
    nearest: str

    def refusal(self, command: str) -> InputError:
        """One line."""
        return InputError(f"plan {command} is of {self.of}", self.name, self.nearest)


APART: Final = AnswerFeature(
    lambda plan: bool(plan.deployment.get("disaggregation")),
    "plans with one kind of replica",
    DISAGGREGATED,
    f"plan again without also: {DISAGGREGATED}",
)

TOKEN_GAPS: Final = AnswerFeature(
    lambda plan: any(row.metric == "itl" for row in plan.slo), "objectives on ttft, tpot and e2e", "itl", "tpot"
)

#: What a command cannot read; of the others it reads everything.
UNSUPPORTED: Final[dict[str, tuple[AnswerFeature, ...]]] = {
    "report": (),
    "explain": (),
    "spares": (APART, TOKEN_GAPS),
    "whatif": (APART,),
    "deploy": (),
    "verify": (),
    "drift": (),
    "compare": (),
}


def need_readable(command: str, plans: Iterable[Plan]) -> None:
    """Raises InputError where a plan has what the command cannot read."""
    plans = tuple(plans)
    for feature in UNSUPPORTED[command]:
        if any(map(feature.has, plans)):
            raise feature.refusal(command)


def need_readable_kinds(command: str, kinds: Iterable[str]) -> None:
    """The same before there is a plan: kinds of candidate that a request looks at. Raises InputError."""
    for feature in UNSUPPORTED[command]:
        if feature.name in kinds:
            raise feature.refusal(command)


def chosen(command: str, answer: Answer, alternative: int = 0) -> Plan:
    """The best plan, or an alternative by its number from 1. Raises InputError where the answer has none such, or one
    that the command cannot read."""
    if not answer.feasible or not answer.plans:
        why = answer.infeasible.binding_constraint if answer.infeasible else "no reason recorded"
        raise InputError(f"this answer is no, it has no plan for plan {command}: {why}")
    if not 0 <= alternative < len(answer.plans):
        rule = f"the answer has {len(answer.plans) - 1} alternatives, numbered from 1"
        raise InputError(rule, alternative, str(len(answer.plans) - 1))
    plan = answer.plans[alternative]
    need_readable(command, [plan])
    return plan
