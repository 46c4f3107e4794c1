"""Intervals on screens: each must state its level."""

from __future__ import annotations

import re


def unlabelled_intervals(screen: str) -> list[str]:
    """Return the intervals in parentheses on a screen that have no level before them."""
    found: list[str] = re.findall(r"\(([^()]*\d[^()]*? (?:to \d|or more)[^()]*)\)", re.sub(r"\s+", " ", screen))
    return [text for text in found if not re.search(r"\d % interval: ", text)]
