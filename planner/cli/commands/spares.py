"""The command `plan spares`: the spare replicas that a plan needs because replicas fail."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options import Alternative, JsonTo, LanguageModelAnswerPath, language_model_answer, write_result


def spares(
    answer: LanguageModelAnswerPath,
    mtbf: Annotated[str, typer.Option(metavar="TIME", help="Mean time between failures of one replica: 30d.")],
    restart: Annotated[
        str, typer.Option(metavar="TIME", help="Time from a failure until the replica serves again: 10min.")
    ],
    window: Annotated[str, typer.Option(metavar="TIME", help="Time over which the objectives are judged.")] = "1d",
    held: Annotated[float, typer.Option(metavar="SHARE", help="Share of windows that must meet the objectives.")] = 0.9,
    alternative: Alternative = 0,
    json_file: JsonTo = None,
) -> None:
    """Find the fewest spare replicas that meet the objectives despite failures; exit status 1 if no number does.

    plan spares ANSWER.json --mtbf 30d --restart 10min
    """
    from catalogs.ui.progress import progress_bar
    from catalogs.ui.words import parse_duration
    from planner.cli.screens.studies import show_spares
    from planner.studies.spares import SpareObjective, spares

    terms = SpareObjective(parse_duration(mtbf), parse_duration(restart), parse_duration(window), held)
    with progress_bar("spares") as progress:
        found = spares(language_model_answer(answer), terms, alternative, progress)
    write_result(found.document(), json_file, lambda: show_spares(found))
    raise typer.Exit(1 if found.spares is None else 0)
