"""Terminal output: labelled lines, tables and the console.

The console is as wide as the terminal, and has a fixed width where stdout is not a terminal.
"""

from __future__ import annotations

import io
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Final, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


Line = tuple[str, str]  # (label, text); an empty label continues the line above

#: Width of a label, in columns.
LABEL: Final = 12

#: Minimum width of a screen, in columns.
LEAST_WIDTH: Final = 60


#: Width of a screen in a pipe or a file, in columns.
PIPED: Final = 100


def labelled_rows(label: str, text: str, width: int = PIPED) -> Iterator[str]:
    """Yield rows of at most `width` columns: the label once, and the text wrapped to its right.

    A word that is longer than a row is not broken.
    """
    wrapped = textwrap.wrap(text, width - LABEL, break_long_words=False, break_on_hyphens=False) or [""]
    for i, part in enumerate(wrapped):
        yield f"{'' if i else label:<{LABEL}}{part}".rstrip()


def show_lines(lines: Iterable[Line], bold: Collection[str] = ()) -> None:
    """Print labelled lines to the width of the terminal; lines whose label is in `bold` are bold."""
    console = open_console()
    for label, text in lines:
        for row in labelled_rows(label, text, max(console.width, LEAST_WIDTH)):
            console.print(row, style="bold" if label in bold else "")


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int, title: str) -> Table:
    """Return a table whose first `words` columns are aligned left."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i < words else "right")
    for row in rows:
        table.add_row(*row)
    return table


#: Width of a list in a pipe or a file; wide enough for most entries to take one line, for grep.
PIPED_LIST: Final = 200


class TrimmedLines(io.TextIOBase):
    """A text stream that passes lines on without trailing spaces, which tables are padded with."""

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._begun = ""  # a line that has not ended yet

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding of the target, from which tables choose their characters."""
        return self._target.encoding or "utf-8"

    def write(self, text: str) -> int:
        """Write the lines that end in `text`, and keep the rest."""
        *lines, self._begun = (self._begun + text).split("\n")
        self._target.write("".join(f"{line.rstrip(' ')}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        """Pass on what was written."""
        self._target.flush()


def open_console(piped: int = PIPED) -> Console:
    """Return a console for plain text and tables, without markup.

    `piped` is its width where stdout is not a terminal; lines then end without spaces.
    """
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False, markup=False)
    return Console(highlight=False, markup=False, width=piped, file=cast(IO[str], TrimmedLines(sys.stdout)))
