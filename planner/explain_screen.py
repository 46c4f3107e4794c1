"""An explanation on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from catalogs.console import open_console
from planner.explain import Explanation
from planner.growth import GOAL, Change, Growth
from planner.terminal import grid
from planner.words import dollars


def show(e: Explanation) -> None:
    """Print it."""
    console = open_console()
    for i, line in enumerate(e.why):
        console.print(_beside("Why" if i == 0 else "", line))
    if e.alternatives:
        console.print(grid(("not", "because"), e.alternatives, 2, "Why not"))
    console.print(_beside("Binds", e.binds))
    if e.uses:
        rows = [(u.resource, u.of, f"{100 * u.share:.0f} %", "binds" if u.binds else "") for u in e.uses]
        console.print(grid(("resource", "share of", "used", ""), rows, 2, ""))
    if e.growth is not None:
        _growth(console, e.growth)


def _growth(console: Console, g: Growth) -> None:
    title = f"{GOAL - 1:.0%} more capacity ({g.goal_per_s:.3g} requests/s), simulated"
    rows = [_row(c) for c in g.changes]
    console.print(grid(("change", "holds", "then, per hour", "more"), rows, 1, title))
    best = g.cheapest
    if best is None:
        console.print(_beside("Cheapest", "nothing tried buys it"))
        return
    console.print(_beside("Cheapest", cheapest_words(best)))


def cheapest_words(change: Change) -> str:
    """The change, what it costs more (or saves), and what to mind."""
    extra = change.extra_usd_per_hour
    if extra is None:
        more = "at a price that is not known"
    elif extra == 0:
        more = "at no more money"
    else:
        more = f"for ${extra:,.2f} more per hour" if extra > 0 else f"which saves ${-extra:,.2f} per hour"
    return f"{change.words}, {more}" + (f" ({change.note})" if change.note else "")


def _beside(label: str, text: str) -> Table:
    """A label, and lines set beside it."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=9)
    table.add_column()
    table.add_row(label, text)
    return table


def _row(c: Change) -> tuple[str, str, str, str]:
    words = c.words + (f" ({c.note})" if c.note else "")
    return words, "yes" if c.holds else "no", dollars(c.usd_per_hour), extra_words(c)


def extra_words(c: Change) -> str:
    if c.extra_usd_per_hour is None:
        return "unknown"
    return f"${c.extra_usd_per_hour:,.2f}" if c.extra_usd_per_hour >= 0 else f"-${-c.extra_usd_per_hour:,.2f}"
