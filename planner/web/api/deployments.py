"""The addresses of deployments as someone writes them: their schema, and the faults of a text."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from planner.web.api.state import PREFIX, Owner, State
from planner.web.documents.shapes import CheckedText

router = APIRouter(prefix=f"{PREFIX}/deployments", tags=["deployments"])


class DeploymentText(BaseModel):
    """The text of a deployment.yaml."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=100_000)]


@router.post("/check")
def check(body: DeploymentText, state: State, owner: Owner) -> CheckedText:
    """Check the text of a deployment.yaml: each fault with its line, or the deployment with all defaults filled in."""
    from planner.web.documents.deployment_text import checked_text

    return checked_text(body.text, state.uploads, owner)


@router.get("/schema")
def schema() -> dict[str, Any]:
    """Return the JSON Schema of deployment.yaml."""
    from planner.web.documents.deployment_text import deployment_schema

    return deployment_schema()
