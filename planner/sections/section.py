"""What a section of an answer is: a block of its JSON, lines of its screen, parts of its page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from calibration.accuracy.stated_error import StatedError
from catalogs.hardware.specs import Hardware
from catalogs.ui import html_page
from catalogs.ui.terminal import Line
from planner.answer.measure import MeasuredPlan
from planner.answer.plan_schema import Plan
from planner.evaluation.simulated import SimulatedEvaluator
from planner.problem.candidate import Candidate
from planner.problem.price_list import PriceList
from planner.problem.request import PlanRequest

B = TypeVar("B")

#: How the page introduces a section that was simulated with the answer.
SIMULATED: Final = "Simulated for the answer, with its calibration and seed; intervals as everywhere on this page."


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """What a section is computed from: the question, the measured best plan, and the evaluator of its hardware."""

    request: PlanRequest
    measured: MeasuredPlan
    world: SimulatedEvaluator
    prices: PriceList
    named: Hardware | None  # all of the hardware of the request; None where the request names several kinds

    @property
    def candidate(self) -> Candidate:
        """Return the candidate that the plan is of."""
        return self.measured.candidate

    @property
    def plan(self) -> Plan:
        """Return the plan as the answer holds it."""
        return self.measured.plan

    @property
    def error(self) -> StatedError:
        """Return how far simulated runs of the request's engine are from measured ones."""
        return StatedError.of(self.request.engine, self.plan.operator_error)


class Section(Protocol[B]):
    """One section of an answer, of block type B.

    A new section is one file with a class like this, and its line in `registry.SECTIONS`.
    """

    @property
    def name(self) -> str:
        """Return the key of the block in the answer."""

    @property
    def schema(self) -> Any:
        """Return the type of the block, which writes it and reads it back."""

    def wanted(self, request: PlanRequest) -> bool:
        """Return whether an answer to this request has the section."""

    def compute(self, chosen: ChosenPlan) -> B:
        """Compute the block of the best plan."""

    def screen(self, block: B, plan: Plan) -> Iterable[Line]:
        """Return the lines of the terminal; `plan` is the best plan of the answer."""

    def page(self, block: B, plan: Plan) -> Iterable[html_page.PageSection]:
        """Return the sections of the HTML page; libraries for charts are imported inside."""
