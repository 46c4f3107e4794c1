"""The error for invalid input, and the search for the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Invalid input, on one line: the broken rule, the offending value, and the nearest valid choice or a hint.

    Every command prints this line on stderr and exits with status 2, without a traceback.
    """

    def __init__(self, rule: str, value: object = None, nearest: str | None = None, hint: str | None = None) -> None:
        self.rule = rule
        self.value = value
        self.nearest = nearest
        self.hint = hint
        line = rule if value is None else f"{rule}: got {value!r}"
        line += f"; nearest valid choice: {nearest}" if nearest else ""
        line += f"; hint: {hint}" if hint else ""
        super().__init__(printable(" ".join(line.split())))


def printable(line: str) -> str:
    """Return a line with a question mark for each character that a terminal would act on or cannot show."""
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)


def nearest_name(name: str, valid: Iterable[str], cutoff: float = 0.4) -> str | None:
    """Return the valid name most similar to `name`, or None where none is similar."""
    by_folded = {v.lower(): v for v in valid}
    found = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=cutoff)
    return by_folded[found[0]] if found else None
