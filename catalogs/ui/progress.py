"""Progress on stderr, of searches and of what is simulated once there is an answer: a bar on a terminal, nothing
elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[str], None]  # what is simulated next


@contextmanager
def telling(name: str) -> Iterator[Tell]:
    """A bar that says what is simulated now, on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    words = (TextColumn("{task.completed:.0f} simulated"), TextColumn("{task.description}"))
    columns = (TextColumn(name), BarColumn(bar_width=20), TimeElapsedColumn(), *words)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda text: bar.update(task, description=text, advance=1)


@contextmanager
def said_meanwhile(text: str) -> Iterator[None]:
    """What takes a while and has no bar, on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
