"""Two plans side by side on the terminal."""

from __future__ import annotations

from typing import Final

from rich.console import Console

from catalogs.console import open_console
from planner.comparison import Figure, PlanComparison
from planner.terminal import grid
from planner.words import dollars, grams, joules, percent, rate, seconds

_WORDS: Final = 26


def show(c: PlanComparison, names: tuple[str, str]) -> None:
    """Print it; names: what A and B are called."""
    console = open_console()
    console.print(f"A: {names[0]}\nB: {names[1]}")
    tables(console, c, ("A", "B"))
    for side, label in (("A", "A is better at"), ("B", "B is better at")):
        better = c.better_at(side)  # type: ignore[arg-type]
        console.print(f"{label}: {', '.join(better) if better else 'nothing'}")
    for note in c.notes:
        console.print(f"Note: {note}")


def tables(console: Console, c: PlanComparison, heads: tuple[str, str]) -> None:
    """What differs, and the figures."""
    if c.differs:
        console.print(grid(("differs", *heads), [(w, _cut(a), _cut(b)) for w, a, b in c.differs], 1, ""))
    else:
        console.print("Nothing differs in what was asked or chosen.")
    if c.figures:
        better = {"A": heads[0], "B": heads[1]}
        rows = [
            (f.name, figure_words(f, f.a), figure_words(f, f.b), _change(f), better.get(f.better, f.better))
            for f in c.figures
        ]
        console.print(grid(("figure", *heads, "change", "better"), rows, 1, ""))


def figure_words(f: Figure, value: float | None) -> str:
    if value is None:
        return "none"
    words = {"rate": rate, "seconds": seconds, "usd": dollars, "joules": joules, "grams": grams, "share": percent}
    return words[f.unit](value)


def _change(f: Figure) -> str:
    return "" if f.change is None else f"{100 * f.change:+.0f} %"


def _cut(text: str) -> str:
    return text if len(text) <= _WORDS else text[: _WORDS - 3] + "..."
