"""Reading `{kind: {its keys}}`: one of several named kinds, each a strict model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel

from catalogs.errors import InputError, nearest_name
from catalogs.load import check

M = TypeVar("M", bound=BaseModel)


def known_keys(model: type[M], data: object, where: str) -> M:
    """`data` as a `model`. An unknown key is reported before a missing one: a misspelt key causes both."""
    if not isinstance(data, Mapping):
        raise InputError(f"{where} must hold the keys {', '.join(model.model_fields)}", data)
    for key in data:
        if key not in model.model_fields:
            nearest = nearest_name(str(key), model.model_fields) or ", ".join(model.model_fields)
            raise InputError(f"{where}: unknown key", key, nearest)
    return check(model, dict(data), where)


def chosen(kinds: Mapping[str, type[M]], data: object, where: str) -> M:
    """The one kind that `data` names: `name`, `{name: null}` or `{name: {its keys}}`; InputError otherwise.

    A kind with a single required key may be written short: `{constant: 512}` for `{constant: {tokens: 512}}`,
    `{quantiles: {0: 1, 1: 9}}` for `{quantiles: {table: {0: 1, 1: 9}}}`.
    """
    pair = (data, None) if isinstance(data, str) else None
    if isinstance(data, Mapping) and len(data) == 1:
        pair = next(iter(data.items()))
    if pair is None:
        raise InputError(f"{where} must name exactly one of {', '.join(kinds)}", data)
    name, keys = pair
    if name not in kinds:
        raise InputError(f"{where}: unknown kind", name, nearest_name(str(name), kinds) or ", ".join(kinds))
    model = kinds[str(name)]
    required = [key for key, field in model.model_fields.items() if field.is_required()]
    if keys is not None and len(required) == 1 and (not isinstance(keys, Mapping) or _is_table(keys)):
        keys = {required[0]: keys}
    return known_keys(model, {} if keys is None else keys, f"{where}.{name}")


def _is_table(keys: Mapping[object, object]) -> bool:
    """Keys that are numbers (JSON writes them as strings) are a table's entries, not names of fields."""
    return bool(keys) and all(isinstance(k, int | float) or str(k)[:1] in "0123456789." for k in keys)
