"""The planned deployment changed, on the terminal."""

from __future__ import annotations

from catalogs.console import open_console
from planner.comparison_screen import tables
from planner.whatif import WhatIf


def show(found: WhatIf) -> None:
    """Print it: changes, figures before and after, and what breaks."""
    console = open_console()
    tables(console, found.comparison, ("planned", "changed"))
    for note in found.comparison.notes:
        console.print(f"Note: {note}")
    for i, line in enumerate(found.breaks):
        console.print(f"{'BREAKS' if i == 0 else '      '}  {line}")
    if not found.breaks:
        console.print("Nothing breaks: every objective holds.")
