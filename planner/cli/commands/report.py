"""`plan report`: an answer as a page, as tables, on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import AnswerPath


def report(
    answer: AnswerPath,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="One page that opens offline.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="DIR", help="Every table as CSV, parquet and JSON.")] = None,
    sensitivity: Annotated[
        bool, typer.Option(help="Simulate what moves the answer (half a minute); --no-sensitivity leaves it out.")
    ] = True,
    front: Annotated[
        list[Path] | None, typer.Option(metavar="FRONT.json", help="What plan front --json wrote, to show too; repeat.")
    ] = None,
) -> None:
    """The answer as a page people decide with; without --html and --csv on the screen.

    What the answer does not hold (energy against latency, operators, sensitivity) is simulated again with its seed.
    """
    from catalogs.errors import InputError
    from catalogs.io.output_files import check_targets
    from planner.cli.screens.report import show
    from planner.report.pareto_file import read_front
    from planner.report.write import write_report
    from planner.sections.full_answer import read_answer

    check_targets(None, html)
    if csv is not None and csv.exists() and not csv.is_dir():
        raise InputError("tables are written into a folder", str(csv), f"{csv}.d")
    read = read_answer(answer)
    fronts = [read_front(path, read) for path in front or []]
    material = write_report(read, html, csv, sensitivity, fronts)
    if html is None and csv is None:
        show(material)
