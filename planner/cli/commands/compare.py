"""The command `plan compare`: two answers side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import JsonTo, write_result


def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="Answer written by plan --json.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Second answer.")],
    json_file: JsonTo = None,
) -> None:
    """Compare two answers: differences, costs, and advantages of each."""
    from planner.cli.screens.studies import show_comparison
    from planner.networks.answer_file import read_any_answer
    from planner.networks.studies.comparison import compare_any

    found = compare_any(read_any_answer(first), read_any_answer(second))
    names = str(first), str(second)
    write_result({"a": names[0], "b": names[1], **found.document()}, json_file, lambda: show_comparison(found, names))
