"""Options that several commands take, each in one place: its name, its help and under which heading it stands.

Where a command's result goes: JSON to a file or stdout, and to the screen unless stdout is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

#: The heading under which `--help` shows where a result goes.
OUTPUT: Final = "Output"

# ---- an answer, and what is written

AnswerPath = Annotated[Path, typer.Argument(metavar="ANSWER.json", help="What plan --json wrote.")]

Alternative = Annotated[int, typer.Option(metavar="N", help="Of alternative N of the answer instead.")]

JsonTo = Annotated[str | None, typer.Option("--json", metavar="FILE", help="JSON to FILE, or - for stdout.")]


STDOUT = "-"


def put(document: dict[str, Any], json_to: str | None, show: Callable[[], None]) -> None:
    """json_to: a file, STDOUT (and then nothing else is printed there) or None. Raises InputError where it cannot be
    written."""
    from catalogs.io.output_files import write_json

    if json_to is not None:
        write_json(document, json_to)
    if json_to != STDOUT:
        show()
