"""Progress of long work on stderr: a bar on a terminal, and elsewhere plain lines at intervals, as for a log.

Work that takes less than an interval shows nothing where stderr is not a terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Final

from catalogs.errors import printable
from catalogs.ui.crash_report import show_on_stderr

ProgressCallback = Callable[[str], None]  # called with a description of the next simulation

CountCallback = Callable[[int, int, str], None]  # called with (parts done, parts in all, description)

#: Seconds between two plain lines. A judgement: often enough to show that the work goes on, and 240 lines in an hour.
LINE_EVERY_S: Final = 15.0


class PlainLines:
    """Prints a line on stderr at every interval, also while one part of the work takes long.

    Work inside of other work replaces its lines.
    """

    _shown: Final[list[PlainLines]] = []

    def __init__(self, title: str) -> None:
        self.title, self.text = title, ""
        self._begun_s, self._ended = time.monotonic(), Event()
        self._thread = Thread(target=self._print, name=f"progress of {title}", daemon=True)

    def __enter__(self) -> PlainLines:
        """Begin to print; where there is no memory for another thread, the work goes on without lines."""
        self._shown.append(self)
        with suppress(RuntimeError):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the lines; none follows."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._shown.remove(self)

    def _print(self) -> None:
        while not self._ended.wait(LINE_EVERY_S):
            if self._shown[-1] is self:
                what = ": ".join(filter(None, (self.title, self.text)))
                show_on_stderr(printable(f"{what} ({_elapsed(time.monotonic() - self._begun_s)})"))


def _elapsed(value_s: float) -> str:
    """Return a time since the beginning in whole seconds: "45 s" or "1 min 15 s"."""
    minutes, rest_s = divmod(round(value_s), 60)
    return f"{minutes} min {rest_s} s" if minutes else f"{rest_s} s"


@contextmanager
def progress_bar(name: str) -> Iterator[ProgressCallback]:
    """Show how many simulations have begun and which one runs.

    Yields the function that counts one more and sets its text.
    """
    if not sys.stderr.isatty():
        with PlainLines(name) as lines:
            n = 0

            def count(text: str) -> None:
                nonlocal n
                n += 1
                lines.text = f"{n} simulated, {text}"

            yield count
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    words = (TextColumn("{task.completed:.0f} simulated"), TextColumn("{task.description}"))
    columns = (TextColumn(name), BarColumn(bar_width=20), TimeElapsedColumn(), *words)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda text: bar.update(task, description=text, advance=1)


@contextmanager
def counted_progress(name: str) -> Iterator[CountCallback]:
    """Show how much of a known number of parts is done; yields the function that sets both and the text."""
    if not sys.stderr.isatty():
        with PlainLines(name) as lines:

            def set_text(done: int, most: int, text: str) -> None:
                lines.text = ", ".join(filter(None, (f"{done} of {most}", text)))

            yield set_text
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    words = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True))  # truncated first
    columns = (TextColumn(name), BarColumn(bar_width=20), MofNCompleteColumn(), words)
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, most, text: bar.update(task, completed=done, total=most, description=text)


@contextmanager
def status_line(text: str) -> Iterator[ProgressCallback]:
    """Show what is being done, without a count; yields the function that replaces the text."""
    if not sys.stderr.isatty():
        with PlainLines(text) as lines:

            def set_title(words: str) -> None:
                lines.title = words

            yield set_title
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update
