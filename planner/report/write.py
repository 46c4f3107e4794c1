"""From an answer to its page and tables, with progress on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from catalogs.io.output_files import write_atomically
from catalogs.ui.html_page import need_plotly, render
from catalogs.ui.terminal import progress_bar
from planner.answer.schema import Answer
from planner.report.material import ReportData, gather
from planner.report.page import answer_page
from planner.report.tables import write_tables
from planner.search.pareto_search import FrontFile


def write_report(
    answer: Answer,
    html: Path | None,
    folder: Path | None,
    swings: bool = True,
    fronts: Sequence[FrontFile] = (),
) -> ReportData:
    """Simulate what the answer does not hold; write the page and the tables that were asked for.

    swings: sensitivity too, most of the time it takes. fronts: shown beside the plans. Raises InputError where plotly
    is missing, the answer cannot be rerun, or a file cannot be written.
    """
    if html is not None:
        need_plotly()
    with progress_bar("report") as tell:
        material = replace(gather(answer, tell, swings), fronts=tuple(fronts))
    if html is not None:
        write_atomically(html, [render(answer_page(material))])
    if folder is not None:
        write_tables(material, folder)
    return material
