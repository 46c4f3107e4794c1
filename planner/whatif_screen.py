"""The planned deployment changed, on the terminal, 80 columns."""

from __future__ import annotations

from planner.comparison_screen import tables
from planner.terminal import console_80
from planner.whatif import WhatIf


def show(found: WhatIf) -> None:
    """Print it: changes, figures before and after, and what breaks."""
    console = console_80()
    tables(console, found.comparison, ("planned", "changed"))
    for note in found.comparison.notes:
        console.print(f"Note: {note}")
    for i, line in enumerate(found.breaks):
        console.print(f"{'BREAKS' if i == 0 else '      '}  {line}")
    if not found.breaks:
        console.print("Nothing breaks: every objective holds.")
