"""From an answer to its page and tables, with progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from catalogs.files import write_whole
from catalogs.html_page import need_plotly, render
from planner.answer_file import AnswerFile
from planner.front_file import FrontFile
from planner.report.material import Material, Tell, gather
from planner.report.page import answer_page
from planner.report.tables import write_tables


def write_report(
    answer: AnswerFile,
    html: Path | None,
    folder: Path | None,
    swings: bool = True,
    fronts: Sequence[FrontFile] = (),
) -> Material:
    """Simulate what the answer does not hold; write the page and the tables that were asked for.

    swings: sensitivity too, most of the time it takes. fronts: shown beside the plans. Raises InputError where plotly
    is missing, the answer cannot be rerun, or a file cannot be written.
    """
    if html is not None:
        need_plotly()
    with telling("report") as tell:
        material = replace(gather(answer, tell, swings), fronts=tuple(fronts))
    if html is not None:
        write_whole(html, [render(answer_page(material))])
    if folder is not None:
        write_tables(material, folder)
    return material


@contextmanager
def telling(name: str) -> Iterator[Tell]:
    """A bar that says what is simulated now, on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    words = (TextColumn("{task.completed:.0f} simulated"), TextColumn("{task.description}"))
    columns = (TextColumn(name), BarColumn(bar_width=20), TimeElapsedColumn(), *words)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda text: bar.update(task, description=text, advance=1)
