"""The screen of `plan explain`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from catalogs.ui.terminal import LABEL, open_console, text_table
from catalogs.ui.words import dollars
from planner.studies.capacity_growth import GOAL, Growth, GrowthStep
from planner.studies.explain import Explanation, cheapest_words, extra_words


def show(e: Explanation) -> None:
    """Print an explanation."""
    console = open_console()
    for i, line in enumerate(e.why):
        console.print(_beside("Why" if i == 0 else "", line))
    if e.alternatives:
        console.print(text_table(("alternative", "why not"), e.alternatives, 2, "Alternatives"))
    console.print(_beside("Bottleneck", e.binds))
    if e.uses:
        rows = [(u.resource, u.of, f"{100 * u.share:.0f} %", "bottleneck" if u.binds else "") for u in e.uses]
        console.print(text_table(("resource", "share of", "used", ""), rows, 2, ""))
    if e.growth is not None:
        _growth(console, e.growth)


def _growth(console: Console, g: Growth) -> None:
    title = f"{GOAL - 1:.0%} more capacity ({g.goal_per_s:.3g} requests/s), simulated"
    rows = [_row(c) for c in g.changes]
    console.print(text_table(("change", "meets objectives", "cost per hour", "difference"), rows, 1, title))
    best = g.cheapest
    if best is None:
        console.print(_beside("Cheapest", "no change that was tried reaches it"))
        return
    console.print(_beside("Cheapest", cheapest_words(best)))


def _beside(label: str, text: str) -> Table:
    """Return a grid of a label and its text."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=LABEL - 1)
    table.add_column()
    table.add_row(label, text)
    return table


def _row(c: GrowthStep) -> tuple[str, str, str, str]:
    words = c.words + (f" ({c.note})" if c.note else "")
    return words, "yes" if c.holds else "no", dollars(c.usd_per_hour), extra_words(c)
