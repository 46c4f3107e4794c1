"""The address of comparisons of finished plans."""

from __future__ import annotations

import json
from typing import Annotated, Final

from fastapi import APIRouter, Query

from catalogs.errors import InputError
from planner.web.api.state import PREFIX, Owner, State
from planner.web.documents.shapes import AnswerComparison
from planner.web.questions import subject_of

router = APIRouter(prefix=PREFIX, tags=["comparisons"])

#: Most plans that are compared at once.
MOST_PLANS: Final = 4


@router.get("/comparison")
def compare(
    state: State,
    owner: Owner,
    job: Annotated[list[str], Query(min_length=2, max_length=MOST_PLANS, description="Ids of finished plans.")],
) -> AnswerComparison:
    """Compare finished plans: every figure, what differs, and which plan is best at what."""
    from planner.networks.answer_file import any_answer
    from planner.web.documents.comparisons import comparison_document

    found = [state.submission(owner).finished(id_, "plan") for id_ in dict.fromkeys(job)]
    if len(found) < 2:
        raise InputError("a comparison needs two different plans", job[0])
    subjects = {subject_of(each.question, state.uploads, owner) for each in found}
    if "agents" in subjects:
        hint = "the answer for agents compares its own alternatives"
        raise InputError("plans for agents cannot be compared", job[0], hint=hint)
    answers = []
    for each in found:
        content = state.store.artifact(each.id)
        if content is None:
            raise InputError("this plan has no result", each.id)
        answers.append(any_answer(json.loads(content), each.title))
    return comparison_document(answers, [each.title for each in found])
