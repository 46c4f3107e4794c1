"""The parts of YAML documents: mappings, lists and whole numbers under a key, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from catalogs.errors import InputError


def mapping_under(owner: Mapping[Any, Any], key: Any) -> dict[Any, Any]:
    """Return the mapping under a key; {} where it is missing or empty.

    Raises:
        InputError: The value is something else.
    """
    found = owner.get(key)
    if not found:
        return {}
    if not isinstance(found, dict):
        raise InputError(f"{key} of a manifest is a mapping", str(found), f"{key}: {{...}}")
    return found


def list_under(owner: Mapping[Any, Any], key: str) -> list[Any]:
    """Return the list under a key; [] where it is missing or empty.

    Raises:
        InputError: The value is something else.
    """
    found = owner.get(key)
    if not found:
        return []
    if not isinstance(found, list):
        raise InputError(f"{key} of a manifest is a list", str(found), f"{key}: [...]")
    return found


def mappings_under(owner: Mapping[Any, Any], key: str) -> list[dict[Any, Any]]:
    """Return the list of mappings under a key; [] where it is missing or empty.

    Raises:
        InputError: The value, or one of its entries, is something else.
    """
    found = list_under(owner, key)
    wrong = next((entry for entry in found if not isinstance(entry, dict)), None)
    if wrong is not None:
        raise InputError(f"each entry of {key} in a manifest is a mapping", str(wrong), f"{key}: [{{...}}]")
    return found


def count_under(owner: Mapping[Any, Any], key: Any) -> int:
    """Return the whole number under a key; 1 where it is missing.

    Raises:
        InputError: The value is something else.
    """
    found = owner.get(key)
    if found is None:
        return 1
    if isinstance(found, bool) or not str(found).isdecimal():
        raise InputError(f"{key} of a manifest is a whole number", str(found), "1")
    return int(found)
