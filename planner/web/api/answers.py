"""What the page shows of an answer: `POST /api/v1/answers/view` with the document of `plan --json`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from planner.web.api.state import PREFIX

router = APIRouter(prefix=f"{PREFIX}/answers", tags=["answers"])


@router.post("/view", summary="An answer in words, tables and figures")
def view(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the words, tables and figures of an answer, as the plan page shows them."""
    from planner.agents.answer import is_agents_answer, parse_agents_answer
    from planner.networks.answer_file import any_answer
    from planner.networks.schema import NetworkAnswer
    from planner.web.documents.agents_answer import agents_document
    from planner.web.documents.answers import answer_document
    from planner.web.documents.network_answer import network_document

    if is_agents_answer(answer):
        return agents_document(parse_agents_answer(answer, "the answer"))
    found = any_answer(answer, "the answer")
    return network_document(found) if isinstance(found, NetworkAnswer) else answer_document(found)
