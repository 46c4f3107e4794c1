"""The error for invalid input, and the search for the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Invalid input: the broken rule, the offending value and the nearest valid choice, on one line.

    Every command prints this line on stderr and exits with status 2, without a traceback.
    """

    def __init__(self, rule: str, value: object = None, nearest: str | None = None) -> None:
        self.rule = rule
        self.value = value
        self.nearest = nearest
        line = rule if value is None else f"{rule}: got {value!r}"
        super().__init__(" ".join((line if not nearest else f"{line}; nearest valid choice: {nearest}").split()))


def nearest_name(name: str, valid: Iterable[str], cutoff: float = 0.4) -> str | None:
    """Return the valid name most similar to `name`, or None where none is similar."""
    by_folded = {v.lower(): v for v in valid}
    found = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=cutoff)
    return by_folded[found[0]] if found else None
