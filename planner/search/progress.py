"""Progress bars of searches on stderr, shown only if stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from planner.search.objectives import Outcome
from planner.search.pareto_search import FrontTell
from planner.search.search import Progress


@contextmanager
def search_progress(by: Callable[[], str] = str) -> Iterator[Progress | None]:
    """Yield a callback for `search`, or None if stderr is not a terminal; `by` describes the workers in words."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    console = Console(stderr=True)
    said = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True))  # truncated first
    columns = (TextColumn("search"), BarColumn(bar_width=20), MofNCompleteColumn(), said)
    with Bar(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task("", total=None)

        def update(done: int, planned: int, best: Outcome | None) -> None:
            text = "" if best is None else f"best {best.requests_per_s:.3g} requests/s: {best.candidate.words}"
            bar.update(task, completed=done, total=planned, description=", ".join(filter(None, (by(), text))))

        yield update


@contextmanager
def front_progress() -> Iterator[FrontTell | None]:
    """Yield a callback for `search_front`, or None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("front"), BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def update(done: int, most: int, n_front: int) -> None:
            bar.update(task, completed=done, total=most, description=f"{n_front} points on the front")

        yield update
