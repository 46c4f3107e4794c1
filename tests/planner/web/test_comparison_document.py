"""Several answers side by side, with figures chosen by hand."""

from __future__ import annotations

from typing import Any

from planner.sections.full_answer import parse_answer
from planner.web.documents.comparisons import comparison_document
from tests.planner.report.test_plan_report import answer, data


def priced(usd_per_hour: float, **deployment: Any) -> dict[str, Any]:
    """The shared answer with another price and other keys of its deployment."""
    found = data()
    best = found["best"]
    cost, keys = best["cost"] | {"usd_per_hour": usd_per_hour}, best["deployment"] | deployment
    found["best"] = best | {"cost": cost, "deployment": keys}
    return found


def test_the_best_of_several_is_marked_and_ties_are_shared() -> None:
    answers = [parse_answer(priced(usd)) for usd in (4.0, 2.0, 2.02)]
    found = comparison_document(answers, ["a", "b", "c"])
    (price,) = (figure for figure in found["figures"] if figure["name"] == "$ per hour")
    assert price["values"] == [4.0, 2.0, 2.02]
    assert price["best"] == [1, 2]  # 1 % is a tie
    equal = next(figure for figure in found["figures"] if figure["name"] == "$ per million output tokens")
    assert equal["best"] == []
    assert [head["title"] for head in found["answers"]] == ["a", "b", "c"]


def test_what_differs_has_a_value_for_every_answer() -> None:
    first, *_ = answers = [
        parse_answer(priced(1.0)),
        parse_answer(priced(1.0, tensor_parallel=16)),
        parse_answer(priced(1.0, block_size=64)),
    ]
    mine = first.best.deployment if first.best else {}
    found = comparison_document(answers, ["a", "b", "c"])
    differs = {row["what"]: row["values"] for row in found["differs"]}
    own = str(mine["tensor_parallel"])
    assert differs["tensor_parallel"] == [own, "16", own]
    assert differs["block_size"][2] == "64"
    assert all(len(values) == 3 for values in differs.values())


def test_a_refused_answer_is_compared_by_its_closest_plan() -> None:
    no = data()
    why = {"binding_constraint": "too slow", "closest": no["best"], "what_would_meet_it": []}
    no |= {"feasible": False, "best": None, "alternatives": [], "infeasible": why}
    found = comparison_document([answer(), answer(), parse_answer(no)], ["a", "b", "c"])
    assert [head["feasible"] for head in found["answers"]] == [True, True, False]
    assert any(note.startswith("A and C: ") and "closest plan" in note for note in found["notes"])
