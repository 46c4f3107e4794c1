"""The load as it was asked for: users who wait and think, rates that change over the day. As the screen words them."""

from __future__ import annotations

from collections.abc import Iterable

from catalogs.html_page import Section, paragraph, table
from planner.answer_file import AnswerFile
from planner.over_time_screen import over_time_lines
from planner.sections_screen import users_lines
from planner.terminal import Line

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
