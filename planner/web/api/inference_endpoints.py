"""The route that lists the inference endpoints which inference tasks may use."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from planner.web.api.state import PREFIX, State
from planner.web.listed_endpoints import read_endpoints

router = APIRouter(prefix=PREFIX, tags=["inference tasks"])


@router.get("/endpoints")
def list_endpoints(state: State) -> dict[str, list[dict[str, Any]]]:
    """List the endpoints of the operator by name, with their models and limits, but without their addresses."""
    found = read_endpoints(state.settings.endpoints_file)
    return {"items": [endpoint.public(name) for name, endpoint in found.items()]}
