"""Errors of the API as problem details (RFC 9457): the rule, the value, and the nearest valid choice."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from catalogs.errors import InputError, printable
from catalogs.io.yaml_files import nearest_choice
from planner.web.option_names import in_keys

MEDIA_TYPE: Final = "application/problem+json"

INVALID_INPUT: Final = "Invalid input"

UNREADABLE: Final = "the body is not valid JSON: it is nested too deeply, or a number has too many digits"

#: Characters of an invalid value that an error repeats.
_LONGEST_VALUE: Final = 200


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
    return ProblemResponse(input_details(error), 422)


def input_details(error: InputError) -> dict[str, Any]:
    """Return the problem details of input that breaks a rule; they name keys of a JSON body, and no options."""
    e = in_keys(error)
    value = None if e.value is None else printable(_shown(e.value))
    return problem_details(422, INVALID_INPUT, str(e), rule=e.rule, value=value, nearest=e.nearest, hint=e.hint)


def add_error_handlers(app: FastAPI) -> None:
    """Make the app answer every error with problem details."""

    @app.exception_handler(InputError)
    def refuse(_: Request, error: InputError) -> ProblemResponse:
        return input_problem(error)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> ProblemResponse:
        return input_problem(_input_error(error.errors()[0]))

    @app.exception_handler(HTTPException)
    def failed(_: Request, error: HTTPException) -> ProblemResponse:
        if isinstance(error.__cause__, RecursionError | ValueError):  # FastAPI could not read the body
            return input_problem(InputError(UNREADABLE))
        return http_problem(error)

    @app.exception_handler(Exception)
    def broken(_: Request, __: Exception) -> ProblemResponse:
        return problem(500, "The server failed", "this is a fault of the server; its log states what happened")


def http_problem(error: HTTPException) -> ProblemResponse:
    """Return the response to an error of HTTP, such as an address that does not exist."""
    response = problem(error.status_code, str(error.detail), str(error.detail))
    response.headers.update(error.headers or {})
    return response


def _input_error(first: dict[str, Any]) -> InputError:
    """Return the first fault that FastAPI found in a request, with the rule, the value and the place of both."""
    place = ".".join(str(part) for part in first["loc"][1:])
    if first["type"] == "json_invalid":
        return InputError(f"the body is not valid JSON: {first['ctx']['error']} at character {place}")
    if first["type"] == "missing":
        return InputError(f"{place or 'the body'} is missing")
    if not place:
        hint = "send it with Content-Type: application/json"
        return InputError("the body must be a JSON object", _shown(first["input"]), hint=hint)
    if "UploadFile" in first["msg"]:
        return InputError(f"{place} must be a file with a name, as a form sends it", None, None, "curl -F file=@FILE")
    message = first["msg"]
    return InputError(f"{place}: {message[:1].lower()}{message[1:]}", _shown(first["input"]), nearest_choice(first))


def _shown(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
