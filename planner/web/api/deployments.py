"""The addresses of deployments as someone writes them: their schema, and the faults of a text."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from planner.web.api.state import PREFIX
from planner.web.documents import deployment_text as documents

router = APIRouter(prefix=f"{PREFIX}/deployments", tags=["deployments"])


class DeploymentText(BaseModel):
    """The text of a deployment.yaml."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=100_000)]


@router.post("/check")
def check(body: DeploymentText) -> documents.CheckedText:
    """Check the text of a deployment.yaml: each fault with its line, or the deployment with all defaults filled in."""
    return documents.checked_text(body.text)


@router.get("/schema")
def schema() -> dict[str, Any]:
    """Return the JSON Schema of deployment.yaml."""
    return documents.deployment_schema()
