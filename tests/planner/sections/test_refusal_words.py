"""A refused request in words: on a screen and on a page, with and without a change that would meet it."""

from __future__ import annotations

from catalogs.ui.html_page import Page, render
from planner.answer.answer_schema import SearchSummary, Suggestion
from planner.sections.refusal_words import refused_lines, refused_section, ruled_out_lines

MORE = Suggestion(kind="hardware", change="twice as many H100", value="h100x2", verified_by="simulation")
FEWER = Suggestion(kind="rate", change="a rate of 2 requests/s", value=2.0, verified_by="bounds")
SEARCH = SearchSummary(
    n_space=9, n_bounded_out=5, n_simulated=4, n_pruned=0, seconds=1.0, seed=0, method="all", bounded_out={"memory": 5}
)


def test_each_change_has_a_line_and_its_check() -> None:
    lines = list(refused_lines("no memory", ["p99 below 1 s"], [("Closest", "one")], [MORE, FEWER], "nothing"))
    assert lines == [
        ("", ""),
        ("NO", "no memory"),
        ("Objective", "p99 below 1 s"),
        ("Closest", "one"),
        ("Would meet", "twice as many H100 (checked by simulation)"),
        ("", "a rate of 2 requests/s (checked by bounds)"),
    ]


def test_without_a_change_the_line_names_what_was_tried() -> None:
    (*_, last) = refused_lines("no memory", [], [], [], "more hardware")
    assert last == ("Would meet", "no change that was tried meets the objectives (more hardware)")


def test_the_candidates_are_counted_by_reason() -> None:
    assert list(ruled_out_lines({"ruled out: memory": 5, "ruled out: time": 4}, SEARCH)) == [
        ("Candidates", "5 of 9 ruled out: memory"),
        ("", "4 of 9 ruled out: time"),
    ]


def test_the_page_has_the_same_reasons_and_changes() -> None:
    with_change = refused_section("no memory", ["p99 below 1 s"], [], [MORE], SEARCH)
    text = render(Page("Plan", "refused", [with_change, refused_section("no memory", [], [], [], SEARCH)]))
    for words in ("NO deployment", "no memory", "p99 below 1 s", "twice as many H100", "memory"):
        assert words in text
    assert "No change that was tried meets the objectives." in text
