"""Several answers side by side: every figure, which answer is best at it, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.answer.answer_schema import Answer
from planner.networks.schema import NetworkAnswer
from planner.networks.studies.comparison import compare_any
from planner.studies.comparison import SAME_WITHIN, Figure
from planner.web.documents.shapes import AnswerComparison, AnswerDifference, ComparedFigure


def comparison_document(answers: Sequence[Answer | NetworkAnswer], titles: Sequence[str]) -> AnswerComparison:
    """Return answers side by side; each is compared with the first.

    Args:
        answers: Two answers or more.
        titles: Their titles.

    Raises:
        InputError: Some answers are for language models and others for networks.
    """
    pairs = [compare_any(answers[0], other) for other in answers[1:]]
    names = dict.fromkeys(figure.name for pair in pairs for figure in pair.figures)
    tables = [{figure.name: figure for figure in pair.figures} for pair in pairs]
    keys = dict.fromkeys(what for pair in pairs for what, _, _ in pair.differs)
    differs = [{what: (one, two) for what, one, two in pair.differs} for pair in pairs]
    letters = [f"{_letter(0)} and {_letter(i)}" for i in range(1, len(answers))]
    notes = [
        note if len(pairs) == 1 else f"{letter}: {note}"
        for letter, pair in zip(letters, pairs, strict=True)
        for note in pair.notes
    ]
    return {
        "answers": [_head(answer, title) for answer, title in zip(answers, titles, strict=True)],
        "figures": [_figure(name, [table.get(name) for table in tables]) for name in names],
        "differs": [_difference(what, [pair.get(what) for pair in differs]) for what in keys],
        "notes": notes,
    }


def _letter(i: int) -> str:
    return chr(ord("A") + i)


def _head(answer: Answer | NetworkAnswer, title: str) -> dict[str, Any]:
    plan = answer.best or (answer.infeasible and answer.infeasible.closest)
    return {
        "title": title,
        "feasible": answer.feasible,
        "model": answer.request.model,
        "hardware": plan.deployment.get("hardware") if plan else None,
        "deployment": plan.deployment if plan else None,
        "calibration": answer.reproduce.calibration,
    }


def _figure(name: str, found: Sequence[Figure | None]) -> ComparedFigure:
    known = [figure for figure in found if figure is not None]
    first = known[0]
    values = [next((f.a for f in known if f.a is not None), None), *(None if f is None else f.b for f in found)]
    return {"name": name, "unit": first.unit, "values": values, "best": _best(values, first.lower_is_better)}


def _best(values: Sequence[float | None], lower_is_better: bool | None) -> list[int]:
    """Return the positions of the best values within the tie of a comparison; empty if all are equally good."""
    known = [value for value in values if value is not None]
    if lower_is_better is None or len(known) < 2:
        return []
    best = min(known) if lower_is_better else max(known)
    found = [i for i, v in enumerate(values) if v is not None and abs(v - best) <= SAME_WITHIN * max(abs(v), abs(best))]
    return found if len(found) < len(known) else []


def _difference(what: str, found: Sequence[tuple[str, str] | None]) -> AnswerDifference:
    """Return the values of a key; an answer that does not differ from the first has its value."""
    first = next(pair[0] for pair in found if pair is not None)
    return {"what": what, "values": [first, *(first if pair is None else pair[1] for pair in found)]}
