"""Where a command's result goes: JSON to a file or stdout, and to the screen unless stdout is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STDOUT = "-"


def put(document: dict[str, Any], json_to: str | None, show: Callable[[], None]) -> None:
    """json_to: a file, STDOUT (and then nothing else is printed there) or None. Raises InputError where it cannot be
    written."""
    from catalogs.files import write_json

    if json_to is not None:
        write_json(document, json_to)
    if json_to != STDOUT:
        show()
