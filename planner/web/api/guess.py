"""The address of the first guess of a plan, which a form shows while one types."""

from __future__ import annotations

from fastapi import APIRouter

from planner.web.api.queries import QuestionQuery
from planner.web.api.state import PREFIX, Owner, State
from planner.web.documents.shapes import GuessDocument
from planner.web.questions import from_query, read_question, shown_names
from planner.web.uploads import with_names

router = APIRouter(prefix=PREFIX, tags=["plans"])


@router.get("/guess")
def guess(query: QuestionQuery, state: State, owner: Owner) -> GuessDocument:
    """Guess a plan in a few milliseconds, without simulation: the query is that of a question."""
    from planner.problem.scenario import request_of_keys
    from planner.web.documents.guess import guess_document

    question = read_question(from_query(query), state.uploads, owner)
    with shown_names(question.files):
        found: GuessDocument = with_names(guess_document(request_of_keys(question.keys)), question.files)
    return found
