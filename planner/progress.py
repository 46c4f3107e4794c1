"""The search's progress on stderr: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from planner.assess import Outcome
from planner.search import Progress


@contextmanager
def search_progress() -> Iterator[Progress | None]:
    """A callback for `search`, or None where stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    console = Console(stderr=True)
    said = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True))  # cut before the others are
    columns = (TextColumn("search"), BarColumn(bar_width=20), MofNCompleteColumn(), said)
    with Bar(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task("", total=None)

        def update(done: int, planned: int, best: Outcome | None) -> None:
            text = "" if best is None else f"best {best.requests_per_s:.3g} requests/s: {best.candidate.words}"
            bar.update(task, completed=done, total=planned, description=text)

        yield update
