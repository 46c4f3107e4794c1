"""The command `plan report`: an answer as an HTML page, as tables, or on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import AnswerPath


def report(
    answer: AnswerPath,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page that opens offline.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="DIR", help="Write every table as CSV, Parquet and JSON.")] = None,
    sensitivity: Annotated[
        bool, typer.Option(help="Simulate which inputs change the answer (half a minute); --no-sensitivity skips it.")
    ] = True,
    front: Annotated[
        list[Path] | None,
        typer.Option(metavar="FRONT.json", help="Front written by plan front --json, to include; repeatable."),
    ] = None,
) -> None:
    """Show the answer as an HTML page, as tables, or on the screen.

    Figures that are not in the answer (energy against latency, operators, sensitivity) are simulated with its seed.
    """
    from catalogs.errors import InputError
    from catalogs.io.output_files import check_targets
    from catalogs.ui.outputs import refuse_inputs_in_folder
    from planner.cli.screens.report import show
    from planner.networks.answer_file import read_network_answer
    from planner.report.pareto_page import read_front
    from planner.report.write import names_of_files, write_report
    from planner.sections.full_answer import read_answer

    check_targets(None, html=html)
    if csv is not None and csv.exists() and not csv.is_dir():
        raise InputError("--csv must be a folder", str(csv), f"{csv}.d")
    if csv is not None:
        refuse_inputs_in_folder("--csv", csv, names_of_files(len(front or [])), [answer, *(front or [])])
    of_network = read_network_answer(answer)
    if of_network is not None:
        if front:
            raise InputError("a front is for language models only, and this answer is for a network", str(front[0]))
        from planner.networks.report.files import show_or_write

        show_or_write(of_network, html, csv)
        _mention_parquet(csv)
        return
    read = read_answer(answer)
    fronts = [read_front(path, read) for path in front or []]
    material = write_report(read, html, csv, sensitivity, fronts)
    _mention_parquet(csv)
    if html is None and csv is None:
        show(material)


def _mention_parquet(csv: Path | None) -> None:
    """Say that the tables were written without Parquet files, if that is so."""
    from planner.report.write import parquet_is_installed

    if csv is not None and not parquet_is_installed():
        typer.echo("the tables were written without Parquet files; for these: pip install '.[data]'", err=True)
