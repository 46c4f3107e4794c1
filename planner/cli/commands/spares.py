"""`plan spares`: how many replicas more than needed hold the objectives although replicas fail."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options import Alternative, AnswerPath, JsonTo, put


def spares(
    answer: AnswerPath,
    mtbf: Annotated[str, typer.Option(metavar="TIME", help="Between the failures of one replica, on average: 30d.")],
    restart: Annotated[str, typer.Option(metavar="TIME", help="From a failure until it serves again: 10min.")],
    window: Annotated[str, typer.Option(metavar="TIME", help="Time over which the objectives must hold.")] = "1d",
    held: Annotated[float, typer.Option(metavar="SHARE", help="Share of such windows in which they must.")] = 0.9,
    alternative: Alternative = 0,
    json_file: JsonTo = None,
) -> None:
    """The fewest spare replicas with which the objectives hold although replicas fail; exit status 1 where none do.

    plan spares ANSWER.json --mtbf 30d --restart 10min
    """
    from catalogs.io.output_files import check_targets
    from catalogs.ui.terminal import progress_bar
    from catalogs.ui.words import parse_duration
    from planner.cli.screens.spares import show
    from planner.sections.full_answer import read_answer
    from planner.studies.spares import SpareObjective, spares

    check_targets(json_file)
    terms = SpareObjective(parse_duration(mtbf), parse_duration(restart), parse_duration(window), held)
    with progress_bar("spares") as tell:
        found = spares(read_answer(answer), terms, alternative, tell)
    put(found.document(), json_file, lambda: show(found))
    raise typer.Exit(1 if found.spares is None else 0)
