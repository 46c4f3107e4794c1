"""`plan compare`: two answers side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="What plan --json wrote.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Another answer.")],
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="JSON to FILE, or - for stdout.")
    ] = None,
) -> None:
    """What differs between two answers, what it costs, and which is better at what."""
    from catalogs.files import check_targets, write_json
    from planner.answer_comparison import compare_answers
    from planner.answer_file import read_answer
    from planner.comparison_screen import show

    check_targets(json_file)
    found = compare_answers(read_answer(first), read_answer(second))
    if json_file is not None:
        write_json({"a": str(first), "b": str(second), **found.document()}, json_file)
    if json_file != "-":
        show(found, (str(first), str(second)))
