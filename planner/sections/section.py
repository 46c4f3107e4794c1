"""The interface of a section of an answer: a JSON block, lines on the terminal, and parts of the HTML page."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from calibration.accuracy.stated_error import StatedError
from catalogs.hardware.specs import Hardware
from catalogs.ui.html_page import Markup, paragraph, table
from catalogs.ui.terminal import Line
from catalogs.ui.words import human_s, percent, seconds, sure_percent
from planner.answer.evaluated_plan import EvaluatedPlan
from planner.answer.plan_schema import Plan, SloResult
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.problem.candidate import Candidate
from planner.problem.price_list import PriceList
from planner.problem.request import PlanRequest
from planner.search.workers import WorkerPool

B = TypeVar("B")

#: Introduction of the page's default content.
SIMULATED: Final = "Simulated with the calibration and seed of the answer. Intervals have the level used on this page."


#: Up to this multiple of the planned rate, a rate that misses an objective counts as near. A judgement.
_NEAR: Final = 1.1

#: Below this share of its limit, an objective counts as far from it. A judgement.
_FAR_FROM_LIMIT_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """The inputs of a section: the request, the recommended plan as simulated, and the evaluator of its hardware.

    `named` is all of the hardware in the request; it is None if the request names several kinds of hardware. The
    `workers` are those of the search.
    """

    request: PlanRequest
    evaluated: EvaluatedPlan
    evaluator: SimulatedEvaluator
    prices: PriceList
    named: Hardware | None
    workers: WorkerPool

    @property
    def candidate(self) -> Candidate:
        """Return the candidate that became the recommended plan."""
        return self.evaluated.candidate

    @property
    def plan(self) -> Plan:
        """Return the recommended plan as it appears in the answer."""
        return self.evaluated.plan

    @property
    def error(self) -> StatedError:
        """Return the stated error of simulated runs of the request's engine against measured runs."""
        return StatedError.of(self.request.engine, self.plan.operator_error, self.plan.regime)


class Section(Protocol[B]):
    """A section of an answer; `B` is the type of its JSON block.

    To add a section, write a file with a subclass and add the class to `registry.SECTIONS`.

    Attributes:
        name: JSON key of the block in the answer.
        title: Title of the section on the page.
        short_title: Entry of the section in the table of contents of the page.
        schema: Type of the block, which pydantic uses to write it and to read it back.
    """

    name: str
    title: str
    short_title: str
    schema: Any

    def wanted(self, request: PlanRequest) -> bool:  # noqa: ARG002
        """Return True if the answer to this request has the section; by default every answer with a plan has it."""
        return True

    def check(self, request: PlanRequest, evaluator: HardwareChoiceEvaluator) -> None:  # noqa: ARG002
        """Check the inputs of the section against the hardware of the request, before the search; by default nothing.

        Raises:
            InputError: An input is not valid for the hardware.
        """
        return

    @abstractmethod
    def compute(self, chosen: ChosenPlan) -> B:
        """Compute the block for the recommended plan."""

    def caveat(self, block: B, plan: Plan) -> str:  # noqa: ARG002
        """Return what must be read together with the recommended plan, in full sentences; by default nothing."""
        return ""

    @abstractmethod
    def screen(self, block: B, plan: Plan) -> Iterable[Line]:
        """Return the lines of the terminal screen; `plan` is the recommended plan."""

    def page(self, block: B, plan: Plan) -> Iterable[Markup]:
        """Return the content of the HTML page; `plan` is the recommended plan.

        By default, this is a table with the lines of the screen. Implementations import chart libraries inside this
        method, because they are optional.
        """
        return [paragraph(SIMULATED), table(("quantity", "result"), list(self.screen(block, plan)), words=2)]


def verdict_words(row: SloResult, at_confidence: str | None = None) -> str:
    """Return the verdict on an objective, for example "met with 91 % confidence".

    The interval of an objective that is met may end beyond its limit if a confidence below 90 % is required. Only then
    does the verdict state the value at this confidence, which is the one that was compared with the limit.

    Args:
        row: The objective.
        at_confidence: The value at the required confidence in words; None: "at most" and the time of the row.
    """
    sure = sure_percent(row.probability_met)
    if not row.met:
        return f"missed ({sure} confidence that it is met)"
    value_s = row.value_at_confidence_s
    if value_s is None or (row.ci_high_s is not None and row.ci_high_s <= row.limit_s):
        return f"met with {sure} confidence"
    return f"met with {sure} confidence, {at_confidence or f'at most {seconds(value_s)}'} at the required confidence"


def near_miss_words(
    rows: Sequence[SloResult], requests_per_s: float | None, missed_per_s: float | None, confidence: float
) -> str:
    """Return that objectives far from their limits are missed at a slightly higher rate; empty where that is not so.

    Args:
        rows: The objectives at the planned rate.
        requests_per_s: The planned rate.
        missed_per_s: The rate beyond which an objective is known to be missed; None if it is not known.
        confidence: The confidence of the request.
    """
    if requests_per_s is None or missed_per_s is None or missed_per_s > _NEAR * requests_per_s:
        return ""
    largest = max((row.excess()[0] for row in rows), default=0.0)
    if not 0.0 < largest < _FAR_FROM_LIMIT_SHARE:
        return ""
    tightest = f"with {percent(confidence)} confidence the tightest objective is at {percent(largest)} of its limit"
    higher = missed_per_s / requests_per_s - 1
    return f"{tightest}; it is missed at a rate {f'{percent(higher)} higher' if higher >= 0.01 else 'just above'}"


def plan_near_miss_words(plan: Plan, confidence: float) -> str:
    """Return the words of `near_miss_words` for a plan; empty if nothing is known to limit its capacity."""
    beyond = plan.missed_requests_per_s or plan.capacity_requests_per_s
    return near_miss_words(plan.slo, plan.requests_per_s, beyond if plan.limited_by else None, confidence)


def tightest_words(rows: Sequence[SloResult], confidence: float) -> str:
    """Return a sentence on the objective whose value at the required confidence is nearest to its limit."""
    near = max(rows, key=SloResult.excess)
    limit = f"of the limit {human_s(near.limit_s)}"
    if near.value_at_confidence_s is None:  # an answer of an earlier version, or an overloaded plan
        return f"Its tightest objective is {near.name}: {seconds(near.value_s)} is {percent(near.share)} {limit}."
    share = percent(near.value_at_confidence_s / near.limit_s)
    most = f"at most {seconds(near.value_at_confidence_s)} with {percent(confidence)} confidence"
    return f"Its tightest objective is {near.name}: {most}, {share} {limit}."


def result_words(row: SloResult, level: float) -> str:
    """Return the value of an objective, its interval and the verdict; or that no request has the metric.

    `level` is that of the interval where the row does not state its own.
    """
    if row.has_no_value:
        return f"{row.name}: no request has one: met"
    interval = level_words(row.ci_level or level, interval_words(row.ci_low_s, row.ci_high_s))
    return f"{row.name} = {seconds(row.value_s)} ({interval}): {verdict_words(row)}"


def level_words(level: float, span: str) -> str:
    """Return an interval with its level, for example "90 % interval: 28 ms to 205 ms"."""
    return f"{percent(level)} interval: {span}"


def interval_words(low_s: float | None, high_s: float | None) -> str:
    """Return an interval of seconds, for example "28 ms to 205 ms" or, without an upper bound, "28 ms or more"."""
    if high_s is None:
        return f"{seconds(low_s)} or more"
    return f"{seconds(low_s)} to {seconds(high_s)}"
