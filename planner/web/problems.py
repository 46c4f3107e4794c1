"""Errors of the API as problem details (RFC 9457): the rule, the value, and the nearest valid choice."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from catalogs.errors import InputError, printable

MEDIA_TYPE: Final = "application/problem+json"

INVALID_INPUT: Final = "Invalid input"


class ProblemResponse(JSONResponse):
    """A response with problem details."""

    media_type = MEDIA_TYPE


def problem_details(status: int, title: str, detail: str, **members: Any) -> dict[str, Any]:
    """Return problem details; further members describe the problem to programs."""
    document = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return document | {name: value for name, value in members.items() if value is not None}


def problem(status: int, title: str, detail: str, **members: Any) -> ProblemResponse:
    """Return a response with problem details."""
    return ProblemResponse(problem_details(status, title, detail, **members), status)


def input_problem(error: InputError) -> ProblemResponse:
    """Return the response to input that breaks a rule."""
    value = None if error.value is None else printable(str(error.value))
    return problem(422, INVALID_INPUT, str(error), rule=error.rule, value=value, nearest=error.nearest, hint=error.hint)


def add_error_handlers(app: FastAPI) -> None:
    """Make the app answer every error with problem details."""

    @app.exception_handler(InputError)
    def refuse(_: Request, error: InputError) -> ProblemResponse:
        return input_problem(error)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> ProblemResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:]) or "the request"
        return problem(422, INVALID_INPUT, f"{place}: {first['msg']}", rule=first["msg"], value=place)

    @app.exception_handler(HTTPException)
    def failed(_: Request, error: HTTPException) -> ProblemResponse:
        response = problem(error.status_code, str(error.detail), str(error.detail))
        response.headers.update(error.headers or {})
        return response
