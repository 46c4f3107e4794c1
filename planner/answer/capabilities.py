"""Which command can read which answer: one table, so that all commands refuse with the same message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from catalogs.errors import InputError
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.problem.latency_metrics import LATENCY_METRICS, TPOT
from planner.problem.request import DISAGGREGATED


@dataclass(frozen=True, slots=True)
class AnswerFeature:
    """A feature of plans that some commands cannot read.

    Attributes:
        has: Returns whether a plan has the feature.
        of: The plans that such a command supports.
        name: The name of the feature.
        nearest: What to use instead.
    """

    has: Callable[[Plan], bool]
    of: str
    name: str
    nearest: str


DISAGGREGATION: Final = AnswerFeature(
    lambda plan: bool(plan.deployment.get("disaggregation")),
    "plans with one kind of replica",
    DISAGGREGATED,
    f"plan again without also: {DISAGGREGATED}",
)

_PER_REQUEST: Final = [name for name, metric in LATENCY_METRICS.items() if metric.is_per_request]

TOKEN_GAPS: Final = AnswerFeature(
    lambda plan: not {row.metric for row in plan.slo} <= set(_PER_REQUEST),
    f"objectives on {', '.join(_PER_REQUEST[:-1])} and {_PER_REQUEST[-1]}",
    ", ".join(name for name in LATENCY_METRICS if name not in _PER_REQUEST),
    TPOT.name,
)

#: The features that each command cannot read.
UNSUPPORTED: Final[dict[str, tuple[AnswerFeature, ...]]] = {
    "report": (),
    "explain": (),
    "spares": (DISAGGREGATION, TOKEN_GAPS),
    "whatif": (DISAGGREGATION,),
    "deploy": (),
    "verify": (),
    "drift": (),
    "compare": (),
}


def need_readable(command: str, plans: Iterable[Plan]) -> None:
    """Check that a command can read plans.

    Raises:
        InputError: A plan has a feature that the command cannot read.
    """
    plans = tuple(plans)
    for feature in UNSUPPORTED[command]:
        if any(map(feature.has, plans)):
            raise InputError(f"plan {command} only supports {feature.of}", feature.name, feature.nearest)


def chosen(command: str, answer: Answer, alternative: int = 0) -> Plan:
    """Return the best plan of an answer, or an alternative by its number from 1.

    Raises:
        InputError: The answer has no such plan, or the command cannot read it.
    """
    if not answer.feasible or not answer.plans:
        why = answer.infeasible.binding_constraint if answer.infeasible else "no reason recorded"
        raise InputError(f"this answer has no plan, so there is nothing for plan {command}: {why}")
    if not 0 <= alternative < len(answer.plans):
        rule = f"the answer has {len(answer.plans) - 1} alternatives, numbered from 1"
        raise InputError(rule, alternative, str(len(answer.plans) - 1))
    plan = answer.plans[alternative]
    need_readable(command, [plan])
    return plan
