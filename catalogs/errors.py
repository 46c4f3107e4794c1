"""The one error a user can cause: an input that breaks a rule."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: the rule that was broken, the offending value and the nearest valid choice, on one line.

    Every command turns it into that line on stderr and exit status 2, never a traceback.
    """

    def __init__(self, rule: str, value: object = None, nearest: str | None = None) -> None:
        self.rule = rule
        self.value = value
        self.nearest = nearest
        line = rule if value is None else f"{rule}: got {value!r}"
        super().__init__(" ".join((line if not nearest else f"{line}; nearest valid choice: {nearest}").split()))


def nearest_name(name: str, valid: Iterable[str], cutoff: float = 0.4) -> str | None:
    """The valid name closest to `name`, or None where nothing is similar."""
    by_folded = {v.lower(): v for v in valid}
    found = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=cutoff)
    return by_folded[found[0]] if found else None
