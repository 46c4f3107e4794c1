"""An answer for a network as files: its HTML page, and its figures as tables in CSV, Parquet and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from planner.networks.report.page import write_page
from planner.networks.report.tables import plan_rows
from planner.networks.schema import NetworkAnswer
from planner.networks.screen import show_network
from planner.report.write import write_table_files

Row = dict[str, Any]

#: Version of the form of the files with the report's tables.
SCHEMA_VERSION: Final = 1


def show_or_write(answer: NetworkAnswer, html: Path | None, folder: Path | None) -> None:
    """Write the page and the tables of an answer, or print its screen if neither is requested.

    Raises:
        InputError: Plotly is missing, or a file cannot be written.
    """
    if html is None and folder is None:
        show_network(answer)
    if html is not None:
        write_page(answer, html)
    if folder is not None:
        write_network_tables(answer, folder)


def write_network_tables(answer: NetworkAnswer, folder: Path) -> list[Path]:
    """Write the tables of an answer as files, see `planner.report.write.write_table_files`, and return the files.

    Raises:
        InputError: The files cannot be written.
    """
    return write_table_files(tables_of(answer), folder, SCHEMA_VERSION)


def tables_of(answer: NetworkAnswer) -> dict[str, list[Row]]:
    """Return the rows by table name, without empty tables."""
    found: dict[str, list[Row]] = {
        "plans": plan_rows(answer),
        "stages": [{"plan": i} | stage.document() for i, plan in enumerate(answer.plans) for stage in plan.stages],
        "curve": [
            {
                "plan": i,
                "requests_per_s": point.requests_per_s,
                "usd_per_unit": point.usd_per_unit,
                "wh_per_unit": point.wh_per_unit,
            }
            | {f"e2e_{stat}_s": value for stat, value in point.e2e_s.document().items()}
            for i, plan in enumerate(answer.plans)
            for point in plan.curve
        ],
        "hardware": [row.document() for row in answer.hardware],
    }
    return {name: rows for name, rows in found.items() if rows}
