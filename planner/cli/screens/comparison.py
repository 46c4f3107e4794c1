"""The screens of `plan compare`, `plan deploy` and `plan whatif`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rich.console import Console

from catalogs.ui.terminal import LABEL, labelled_rows, open_console, text_table
from catalogs.ui.words import dollars, grams, joules, percent, rate, seconds
from planner.deploy.package import Package
from planner.studies.comparison import Figure, PlanComparison
from planner.studies.whatif import WhatIf

_WORDS: Final = 26


def show_comparison(c: PlanComparison, names: tuple[str, str]) -> None:
    """Print the comparison of two answers; `names` are the files of A and B."""
    console = open_console()
    console.print(f"A: {names[0]}\nB: {names[1]}")
    tables(console, c, ("A", "B"))
    for side, label in (("A", "A is better at"), ("B", "B is better at")):
        better = c.better_at(side)  # type: ignore[arg-type]
        console.print(f"{label}: {', '.join(better) if better else 'no figure'}")
    for note in c.notes:
        console.print(f"Note: {note}")


def tables(console: Console, c: PlanComparison, heads: tuple[str, str]) -> None:
    """Print a table of the differences and a table of the figures of two plans."""
    if c.differs:
        console.print(text_table(("differs", *heads), [(w, _cut(a), _cut(b)) for w, a, b in c.differs], 1, ""))
    else:
        console.print("Request and plan are the same.")
    if c.figures:
        better = {"A": heads[0], "B": heads[1]}
        rows = [
            (f.name, figure_words(f, f.a), figure_words(f, f.b), _change(f), better.get(f.better, f.better))
            for f in c.figures
        ]
        console.print(text_table(("figure", *heads, "change", "better"), rows, 1, ""))


def figure_words(f: Figure, value: float | None) -> str:
    """Return a value of the figure with its unit."""
    if value is None:
        return "none"
    words = {"rate": rate, "seconds": seconds, "usd": dollars, "joules": joules, "grams": grams, "share": percent}
    return words[f.unit](value)


def _change(f: Figure) -> str:
    return "" if f.change is None else f"{100 * f.change:+.0f} %"


def _cut(text: str) -> str:
    return text if len(text) <= _WORDS else text[: _WORDS - 3] + "..."


def show_deployment(package: Package, folder: Path) -> None:
    """Print the files that were written, the steps to start the plan, and notes."""
    names = ", ".join(sorted(package.files))
    _print("Deployment", package.words)
    _print("Wrote", f"{folder}: {names}")
    for i, step in enumerate(("cd " + str(folder), *package.steps)):
        print(f"{'Start' if i == 0 else '':<{LABEL}}{step}")  # users copy the command, so it never breaks
    _print("Verify", "./verify.sh")
    for note in package.notes:
        _print("Note", note)


def _print(label: str, text: str) -> None:
    for row in labelled_rows(label, text):
        print(row)


def show_whatif(found: WhatIf) -> None:
    """Print the changes, the figures before and after, and every objective that is missed."""
    console = open_console()
    tables(console, found.comparison, ("planned", "changed"))
    for note in found.comparison.notes:
        console.print(f"Note: {note}")
    for i, line in enumerate(found.breaks):
        console.print(f"{'MISSED' if i == 0 else '      '}  {line}")
    if not found.breaks:
        console.print("Every objective is still met.")
