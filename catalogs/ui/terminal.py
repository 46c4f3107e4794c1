"""How results are set on a terminal: lines with a label beside them, and tables.

The console of every screen: as wide as the terminal, and of one width wherever stdout is none.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


Line = tuple[str, str]  # (label, text); an empty label continues the line above

#: Columns of a label, and of a screen at least.
LABEL: Final = 10

LEAST_WIDTH: Final = 60


#: Columns of a screen in a pipe or a file.
PIPED: Final = 100


def labelled_rows(label: str, text: str, width: int = PIPED) -> Iterator[str]:
    """Rows of at most `width` columns (a longer word stands alone): the label once, the text wrapped beside it."""
    wrapped = textwrap.wrap(text, width - LABEL, break_long_words=False, break_on_hyphens=False) or [""]
    for i, part in enumerate(wrapped):
        yield f"{label if i == 0 else '':<{LABEL}}{part}".rstrip()


def show_lines(lines: Iterable[Line], bold: Collection[str] = ()) -> None:
    """Print them, as wide as the terminal; bold: labels whose lines are set so."""
    console = open_console()
    for label, text in lines:
        for row in labelled_rows(label, text, max(console.width, LEAST_WIDTH)):
            console.print(row, style="bold" if label in bold else "")


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int, title: str) -> Table:
    """A table whose first `words` columns are set left."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i < words else "right")
    for row in rows:
        table.add_row(*row)
    return table


#: Of a list there: one line for an entry where that is possible, for grep.
PIPED_LIST: Final = 200


def open_console(piped: int = PIPED) -> Console:
    """For plain text and tables; nothing in what is printed is markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else piped)
