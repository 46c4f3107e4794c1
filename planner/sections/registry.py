"""The sections of an answer, in the order of the screen and of the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from catalogs.ui.html_page import PageSection
from catalogs.ui.terminal import Line
from planner.answer.answer_schema import Answer
from planner.answer.evaluated_plan import EvaluatedPlan
from planner.answer.hardware_ranking import estimate_sentences
from planner.answer.plan_schema import Plan
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator
from planner.problem.price_list import PriceList
from planner.problem.request import PlanRequest
from planner.search.workers import WorkerPool
from planner.sections.accounts import AccountsSection
from planner.sections.complexity import ComplexitySection
from planner.sections.daily_load import DailyLoadSection
from planner.sections.power_limits import PowerLimitsSection
from planner.sections.quality import QualitySection
from planner.sections.section import ChosenPlan, Section
from planner.sections.users import UsersSection

SECTIONS: Final[tuple[Section[Any], ...]] = (
    ComplexitySection(),
    UsersSection(),
    DailyLoadSection(),
    AccountsSection(),
    PowerLimitsSection(),
    QualitySection(),
)


def check_sections(request: PlanRequest, evaluator: HardwareChoiceEvaluator) -> None:
    """Check the inputs of every section in the answer to this request, so that faults are reported before the search.

    Raises:
        InputError: An input is not valid for the hardware of the request.
    """
    for section in SECTIONS:
        if section.wanted(request):
            section.check(request, evaluator)


def compute_sections(
    request: PlanRequest, best: EvaluatedPlan, evaluator: Evaluator, workers: WorkerPool
) -> dict[str, Any]:
    """Return the blocks of the recommended plan by section name; empty for an evaluator that does not simulate."""
    if not isinstance(evaluator, HardwareChoiceEvaluator):
        return {}
    prices = PriceList.of(request.tariff, evaluator.names.hardware, request.accounting)
    chosen = ChosenPlan(request, best, evaluator.of(best.candidate), prices, evaluator.named, workers)
    return {section.name: section.compute(chosen) for section in SECTIONS if section.wanted(request)}


def recommended_sentences(answer: Answer, plan: Plan) -> str:
    """Return what must be read together with the recommended plan of an answer, in full sentences; may be empty.

    It may be an estimate, and a section may need more replicas than the plan has.
    """
    caveats = [section.caveat(block, best) for section, block, best in _blocks(answer)]
    return " ".join(filter(None, [estimate_sentences(plan, answer.hardware), *caveats]))


def section_lines(answer: Answer) -> Iterator[Line]:
    """Yield the terminal lines of the sections of a feasible answer."""
    for section, block, plan in _blocks(answer):
        yield from section.screen(block, plan)


def section_pages(answer: Answer) -> Iterator[PageSection]:
    """Yield the HTML sections of a feasible answer; a section without content is left out."""
    for section, block, plan in _blocks(answer):
        parts = list(section.page(block, plan))
        if parts:
            yield PageSection(section.title, parts, section.short_title)


def _blocks(answer: Answer) -> Iterator[tuple[Section[Any], Any, Plan]]:
    """Yield the sections of a feasible answer with their blocks and the recommended plan."""
    for section in SECTIONS:
        block = getattr(answer, section.name, None)
        if block is not None and answer.best is not None:
            yield section, block, answer.best
