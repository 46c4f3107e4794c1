"""Progress bars of searches on stderr, shown only if stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from catalogs.ui.words import rate
from planner.search.candidate_tester import Outcome
from planner.search.search import Progress

if TYPE_CHECKING:  # the search for fronts is not part of a plain plan
    from planner.search.pareto_search import FrontProgress


@contextmanager
def _progress_bar(title: str) -> Iterator[Callable[[int, int, str], None] | None]:
    """Yield a function of (points done, points in all, text) that shows them; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    text = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True))  # truncated first
    columns = (TextColumn(title), BarColumn(bar_width=20), MofNCompleteColumn(), text)
    with Bar(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, most, words: bar.update(task, completed=done, total=most, description=words)


@contextmanager
def search_progress(by: Callable[[], str] = str) -> Iterator[Progress | None]:
    """Yield a callback for `search`, or None if stderr is not a terminal; `by` describes the workers in words."""

    def words(best: Outcome | None) -> str:
        text = "" if best is None else f"best {rate(best.requests_per_s)}: {best.candidate.words}"
        return ", ".join(filter(None, (by(), text)))

    with _progress_bar("search") as update:
        yield None if update is None else lambda done, planned, best: update(done, planned, words(best))


@contextmanager
def front_progress() -> Iterator[FrontProgress | None]:
    """Yield a callback for `search_front`, or None if stderr is not a terminal."""
    with _progress_bar("front") as update:
        yield None if update is None else lambda done, most, n: update(done, most, f"{n} points on the front")


@contextmanager
def matrix_progress() -> Iterator[Callable[[int, int, str], None] | None]:
    """Yield a callback for `run_matrix`, or None if stderr is not a terminal."""
    with _progress_bar("matrix") as update:
        yield update


@contextmanager
def text_progress() -> Iterator[Callable[[str], None]]:
    """Yield a callback that shows what is being done on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update


@contextmanager
def candidate_progress() -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback for a search that states only how many candidates are done, or None without a terminal."""
    with _progress_bar("search") as update:
        yield None if update is None else lambda done, most: update(done, most, "")
