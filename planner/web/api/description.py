"""The OpenAPI description of the API, in which every error is a problem (RFC 9457)."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from planner.web.problems import MEDIA_TYPE

_SUMMARY: Final = (
    "Which GPUs, how many, at which cost, energy and latency: the planner over HTTP. Anything that takes longer "
    "than a moment runs as a job, with an address, events for its progress, and a result that is kept."
)

_TEXT: Final = {"type": "string"}

_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "Problem details (RFC 9457). Invalid input has the rule, the value and the nearest valid choice.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": _TEXT,
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "rule": _TEXT,
        "value": _TEXT,
        "nearest": _TEXT,
        "hint": _TEXT,
    },
}

#: Schemas of FastAPI's own errors, which this API does not send.
_NOT_SENT: Final = ("HTTPValidationError", "ValidationError")


def describe(app: FastAPI) -> None:
    """Make the app describe itself; the description is made when it is first read."""

    def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _description(app)
        return app.openapi_schema

    app.openapi = description  # type: ignore[method-assign]


def _description(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, description=_SUMMARY, routes=app.routes)
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for operations in found["paths"].values():
        for operation in operations.values():
            answers = {code: answer for code, answer in operation["responses"].items() if code != "422"}
            operation["responses"] = answers | {"4XX": {"description": "The request is refused.", "content": content}}
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    for name in _NOT_SENT:
        schemas.pop(name, None)
    schemas["Problem"] = _PROBLEM
    return found
