"""The address of the first guess of a plan, which a form shows while one types."""

from __future__ import annotations

from fastapi import APIRouter

from planner.web.api.queries import QuestionQuery
from planner.web.api.state import PREFIX, Owner, State
from planner.web.documents.shapes import GuessDocument
from planner.web.questions import any_request, from_query, read_question, shown_names
from planner.web.uploads import with_names

router = APIRouter(prefix=PREFIX, tags=["plans"])


@router.get("/guess")
def guess(query: QuestionQuery, state: State, owner: Owner) -> GuessDocument:
    """Guess a plan in a few milliseconds, without simulation: the query is that of a question."""
    from planner.web.documents.guess import any_guess_document

    question = read_question(from_query(query), state.uploads, owner)
    with shown_names(question.files):
        document = any_guess_document(any_request(question.keys))
        found: GuessDocument = with_names(document, question.files)
    return found
