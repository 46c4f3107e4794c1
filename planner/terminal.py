"""The console of the planner's screens."""

from __future__ import annotations

import sys

from rich.console import Console


def console_80() -> Console:
    """As wide as the terminal; 80 columns where stdout is none."""
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 80)
