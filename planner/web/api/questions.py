"""One question in its four spellings: JSON, URL query, command line and scenario file."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body

from planner.web.api.queries import QuestionQuery
from planner.web.api.state import PREFIX, Owner, State
from planner.web.questions import from_query, read_question

router = APIRouter(prefix=PREFIX, tags=["questions"])


@router.get("/question")
def question_of_query(query: QuestionQuery, state: State, owner: Owner) -> dict[str, Any]:
    """Return the question that the query of a URL sets, in all spellings."""
    return read_question(from_query(query), state.uploads, owner).spellings()


@router.post("/question")
def question_of_body(state: State, owner: Owner, body: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
    """Return the question of a JSON body, in all spellings."""
    return read_question(body, state.uploads, owner).spellings()
