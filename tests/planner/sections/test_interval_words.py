"""The words for an interval of seconds."""

from __future__ import annotations

import pytest

from planner.sections.section import interval_words


@pytest.mark.parametrize(
    ("high_s", "words"),
    [(0.205, "28 ms to 205 ms"), (None, "28 ms or more")],
)
def test_an_interval_without_a_meaningful_end_has_none(high_s: float | None, words: str) -> None:
    assert interval_words(0.028, high_s) == words
