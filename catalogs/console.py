"""The console of every screen: as wide as the terminal, and of one width wherever stdout is none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

#: Columns of a screen in a pipe or a file.
PIPED: Final = 100
#: Of a list there: one line for an entry where that is possible, for grep.
PIPED_LIST: Final = 200


def open_console(piped: int = PIPED) -> Console:
    """For plain text and tables; nothing in what is printed is markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else piped)
