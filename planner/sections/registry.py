"""The sections of an answer on the screen: its users in a closed loop.

What is looked at once a plan is chosen, beside it in the answer: the blocks, by name, and when there is one.

The load as it was asked for: users who wait and think, rates that change over the day. As the screen words them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from catalogs.ui.html_page import Section, paragraph, table
from catalogs.ui.terminal import Line
from planner.answer.answer import Answer
from planner.answer.schema import AnswerFile
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator
from planner.evaluation.simulated import SimulatedEvaluator
from planner.sections.accounts import PlanAccounts, accounts_block, accounts_lines
from planner.sections.daily_load import over_time_block, over_time_lines
from planner.sections.power_limits import PowerLimitedPlan, power_cap_lines, power_caps_block
from planner.sections.quality import quality_block, quality_lines
from planner.sections.users import users_block, users_lines


def section_lines(answer: dict[str, Any]) -> Iterator[Line]:
    """Of whatever sections the answer has."""
    if "closed_loop" in answer:
        yield from users_lines(answer["closed_loop"])
    if "over_time" in answer:
        yield from over_time_lines(answer["over_time"])
    yield from accounts_lines(answer)
    yield from power_cap_lines(answer)
    yield from quality_lines(answer)


def sections(answer: Answer, world: Evaluator) -> dict[str, Any]:
    """Of the best plan; none for a refused request, or a world without plants."""
    if not answer.feasible or answer.interrupted or not isinstance(world, SimulatedEvaluator | HardwareChoiceEvaluator):
        return {}
    request, best = answer.request, answer.entries[0]
    owner, block = world.of(best.candidate), best.block
    price, grid = world.price(best.candidate), world.grid()
    planned = PlanAccounts.of(block, request.hardware, price, grid, request.users, request.tariff.committed)
    found: dict[str, Any] = {
        "accounts": accounts_block(request.accounts, planned),
        "quality": quality_block(owner.names.model, planned.deployment),
    }
    if request.accounts.power_caps_w:
        subject = PowerLimitedPlan(best.candidate, best.requests_per_s, best.capacity_requests_per_s)
        found["power_caps"] = power_caps_block(owner, subject, request.accounts.power_caps_w)
    if request.users is not None:
        found["closed_loop"] = users_block(answer, owner)
    if request.over_time:
        found["over_time"] = over_time_block(answer, owner)
    return found


SIMULATED = "Simulated for the answer, with its calibration and seed; intervals as everywhere on this page."


def load_sections(answer: AnswerFile) -> list[Section]:
    """One for users, one for a trace; none where a rate was asked for, or nothing."""
    found = []
    if answer.closed_loop is not None:
        found.append(_section("Users in a closed loop", users_lines(answer.closed_loop), "Users"))
    if answer.over_time is not None:
        found.append(_section("Sized over time", over_time_lines(answer.over_time), "Over time"))
    return found


def _section(title: str, lines: Iterable[Line], name: str) -> Section:
    return Section(title, [paragraph(SIMULATED), table(("what", "found"), list(lines), words=2)], name)
