"""`plan explain`: why this plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def explain(
    answer: Annotated[Path, typer.Argument(metavar="ANSWER.json", help="What plan --json wrote.")],
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="JSON to FILE, or - for stdout.")
    ] = None,
) -> None:
    """Why this plan and not another, what binds it, and the cheapest change that buys 20 % more capacity.

    Every change is simulated at the higher rate.
    """
    from catalogs.files import check_targets, write_json
    from planner import explain as explaining
    from planner.answer_file import read_answer
    from planner.explain_screen import show
    from planner.report.write import telling

    check_targets(json_file)
    read = read_answer(answer)
    with telling("explain") as tell:
        found = explaining.explain(read, tell)
    if json_file is not None:
        write_json(explaining.document(found), json_file)
    if json_file != "-":
        show(found)
