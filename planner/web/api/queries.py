"""The query of a request: every key must be one that the address knows, as every key of a JSON body must be.

A misspelled key would otherwise be ignored, and the default of the key that was meant would be used in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, get_origin

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from catalogs.errors import InputError, nearest_name


async def _question_query(request: Request) -> list[tuple[str, str]]:
    """Return the query as pairs of keys and values; `from_query` checks the keys."""
    return request.query_params.multi_items()


#: Parameter of handlers whose query is a question.
QuestionQuery = Annotated[list[tuple[str, str]], Depends(_question_query)]


def _known_keys(route: APIRoute) -> dict[str, bool] | None:
    """Return whether each key that a route knows may be set more than once; None if its query is a question."""
    parts = list(_parts(route.dependant))
    if any(part.call is _question_query for part in parts):
        return None
    parameters = [parameter for part in parts for parameter in part.query_params]
    return {parameter.alias: get_origin(parameter.field_info.annotation) is list for parameter in parameters}


def _parts(dependant: Dependant) -> Iterator[Dependant]:
    """Yield a handler and everything that it depends on."""
    yield dependant
    for inner in dependant.dependencies:
        yield from _parts(inner)


async def refuse_unknown_keys(request: Request) -> None:
    """Refuse a query with a key that the address does not know, or with two values of a key that takes one.

    Raises:
        InputError: The query has such a key.
    """
    route = request.scope.get("route")
    known = _known_keys(route) if isinstance(route, APIRoute) else None
    if known is None:
        return
    for name in request.query_params:
        if name not in known:
            near = nearest_name(name, known) or ", ".join(known) or None
            raise InputError("this address has no such key in its query", name, near, None if known else "leave it out")
        if not known[name] and len(request.query_params.getlist(name)) > 1:
            raise InputError("a key is set twice", name, "one value")
