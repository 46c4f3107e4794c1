"""Versions of engines as numbers, so that they can be ordered and their distances compared."""

from __future__ import annotations

import re
from typing import Final

#: Minor releases that a major release counts as: more than any engine has, so that versions of another major release
#: are further away than all versions of the same one.
_MINORS: Final = 1000.0


def version_in_minors(version: str) -> float:
    """Return MAJOR.MINOR.PATCH in minor releases; NaN, which compares as not older, for any other text."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if not found:
        return float("nan")
    return float(found[1]) * _MINORS + float(found[2]) + float(found[3] or 0) / _MINORS
