"""An answer for a network as files: its HTML page, and its figures as tables in CSV, Parquet and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from catalogs.io.output_files import atomic_file, finite, make_folder, write_atomically, write_json
from planner.networks.report.page import write_page
from planner.networks.report.tables import plan_rows
from planner.networks.schema import NetworkAnswer
from planner.networks.screen import show_network
from planner.report.write import csv_text

Row = dict[str, Any]

SCHEMA_VERSION: Final = 1


def show_or_write(answer: NetworkAnswer, html: Path | None, folder: Path | None) -> None:
    """Write the page and the tables of an answer, or print its screen where neither is asked for.

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
    """Write NAME.csv and NAME.parquet for every table, and all tables into report.json, and return the files.

    Raises:
        InputError: The files cannot be written.
    """
    import pandas as pd

    make_folder(folder)
    tables, written = tables_of(answer), [folder / "report.json"]
    write_json({"schema_version": SCHEMA_VERSION, **finite(tables)}, str(written[0]))
    for name, rows in tables.items():
        written += [folder / f"{name}.csv", folder / f"{name}.parquet"]
        write_atomically(written[-2], [csv_text(rows)])
        with atomic_file(written[-1]) as part:
            pd.DataFrame(rows).to_parquet(part, index=False)
    return written


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
