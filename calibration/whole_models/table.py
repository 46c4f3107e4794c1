"""Rows of whole models as the tables rows.csv and rows.parquet, written and read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pandas as pd

from calibration.profile.session.session import ROWS_NAME, Row, Session
from calibration.profile.session.tables import write_errors
from catalogs.errors import InputError
from catalogs.io.output_files import atomic_file

CSV_NAME: Final = "rows.csv"

PARQUET_NAME: Final = "rows.parquet"

LIST_COLUMNS: Final = ("samples_s",)  # columns that are kept in rows.jsonl only

MEASURED: Final = (
    *("prefill_s", "decode_s_per_token", "total_s", "wall_s", "device_s", "device_busy_s", "cpu_s", "ci_fraction"),
    *(
        "peak_memory_bytes",
        "memory_growth_bytes",
        "nvml_peak_bytes",
        "nvml_growth_bytes",
        "flops",
        "flops_per_s",
        "bandwidth_bytes_per_s",
    ),
    *("energy_j", "watts", "others_share"),
)


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return one row per point, with NaN for what was not measured.

    `status` is "ok", "skipped", "oom" or "error", and `reason` explains it.
    """
    table = pd.DataFrame([{k: v for k, v in r.items() if k not in LIST_COLUMNS} for r in rows])
    for column in MEASURED:
        table[column] = pd.to_numeric(table[column], errors="coerce") if column in table else float("nan")
    table["contended"] = table["contended"].eq(True) if "contended" in table else False
    table["reason"] = table["reason"].fillna("") if "reason" in table else ""
    return table


def check_whole_models(rows: Sequence[Row], folder: Path) -> None:
    """Check that a folder holds rows of whole models.

    Raises:
        InputError: If it holds other rows, for example an operator profile.
    """
    if any("model" not in r or "workload" not in r for r in rows):
        raise InputError("the folder holds another kind of profile", str(folder), hint="choose another --out")


def write(rows: Sequence[Row], folder: Path) -> Path:
    """Write rows.csv and rows.parquet, each atomically, and return the path of the parquet file.

    Raises:
        InputError: If a file cannot be written.
    """
    table = frame(rows)
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name in (CSV_NAME, PARQUET_NAME):
        with atomic_file(folder / name) as part, write_errors(folder):
            table.to_csv(part, index=False) if name == CSV_NAME else table.to_parquet(part, index=False)
    return folder / PARQUET_NAME


def read_rows(folder: Path) -> pd.DataFrame:
    """Return the rows in a session's folder: those of rows.jsonl and the skipped ones that rows.parquet lists.

    One of the two files is enough: a killed session has no parquet file yet.

    Raises:
        InputError: If there is neither file, or it cannot be read.
    """
    lines, table = folder / ROWS_NAME, folder / PARQUET_NAME
    if not lines.is_file() and not table.is_file():
        raise InputError("no rows of whole models in this folder", str(folder), hint=f"give one with {PARQUET_NAME}")
    try:
        listed = pd.read_parquet(table) if table.is_file() else None
    except (OSError, ValueError) as error:
        raise InputError(f"the rows cannot be read ({str(error).splitlines()[0]})", str(table)) from None
    found = listed if listed is not None else pd.DataFrame()
    measured = frame(Session.read(folder).rows) if lines.is_file() else pd.DataFrame()
    if len(measured):
        rest = found[~found["key"].isin(measured["key"])] if len(found) else found
        found = pd.concat([measured, rest], ignore_index=True) if len(rest) else measured
    if not {"key", "status", "model", "batch"} <= set(found.columns):
        raise InputError("these are not rows of whole models", str(folder))
    return found
