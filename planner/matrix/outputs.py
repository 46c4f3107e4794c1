"""The files of a matrix: one row a cell as CSV, and a deployment file for every cell."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from calibration.artefacts.request_summary import METRICS, summary_lines
from catalogs.errors import InputError
from catalogs.io.output_files import make_folder, write_atomically
from planner.matrix.matrix_run import MatrixResult
from planner.matrix.records import FILE_NAME
from planner.matrix.row import MatrixRow
from planner.problem.slo import STATS

LATENCIES: Final = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")

#: The table in the folder of `--csv`.
TABLE_NAME: Final = "rows.csv"

#: The summary of every cell with figures, in the form of MLPerf Inference's.
SUMMARY_NAME: Final = "summary.txt"

#: The folder of deployments in the folder of `--csv`.
DEPLOYMENTS: Final = "deployments"

#: Columns that identify a cell and say what became of it.
IDENTITY: Final = (
    "cell",
    "origin",
    "model",
    "engine",
    "hardware",
    "workload",
    "batch",
    "precision",
    "layout",
    "load",
    "requests",
    "seed",
    "verdict",
    "rule",
    "nearest",
    "used",
    "n_accelerators",
    "resolved_layout",
    "weight_dtype",
    "kv_dtype",
    "requests_per_s",
)

#: Blocks of a row that become columns such as `cost.usd_per_hour`.
_BLOCKS: Final = ("metrics", "noise", "complexity", "memory", "cost", "calibration", "stated_error", "versions")

#: Most characters of a text in the table; longer ones are in the JSON document only.
_LONGEST_TEXT: Final = 200


def columns_of(row: MatrixRow) -> dict[str, Any]:
    """Return the cells of a row's line in the table, by column."""
    data = row.document()
    found: dict[str, Any] = {name: data.get(name) for name in IDENTITY}
    for block in _BLOCKS:
        if isinstance(data.get(block), dict):
            found |= _flat(data[block], block)
    return found | {"command": row.command}


def _flat(block: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the values of nested mappings by their dotted keys; lists of mappings are left to the JSON document."""
    found: dict[str, Any] = {}
    for key, value in block.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{name}.{key}")
        elif isinstance(value, list):
            if all(isinstance(item, int | float) for item in value):
                found |= {f"{name}.{key}.{i}": item for i, item in enumerate(value)}
        elif not isinstance(value, str) or len(value) <= _LONGEST_TEXT:
            found[f"{name}.{key}"] = value
    return found


def table_text(result: MatrixResult) -> str:
    """Return the table as CSV; every row has every column, empty where it has no value."""
    lines = [columns_of(row) for row in result.rows]
    names = list(dict.fromkeys(name for line in lines for name in line if name != "command"))
    file = io.StringIO()
    writer = csv.DictWriter(file, [*names, "command"], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: repr(v) if isinstance(v, float) else v for k, v in line.items()} for line in lines)
    return file.getvalue()


def summary_text(result: MatrixResult) -> str:
    """Return the summaries of the cells with figures, in order."""
    blocks = (
        summary_lines(f"{row.cell} ({row.origin})", _summary_statistics(row), row.command)
        for row in result.rows
        if row.verdict == "ok" and row.is_cell
    )
    return "\n".join(line for block in blocks for line in block) + "\n"


def _summary_statistics(row: MatrixRow) -> dict[str, float]:
    """Return the statistics of a row under the names of a summary."""
    metrics = row.metrics or {}
    found = {
        "requests": float(row.requests),
        "completed": float(metrics["n_completed"]),
        "completed_per_s": float(metrics["requests_per_s"]),
        "output_tokens_per_s": float(metrics["output_tokens_per_s"]),
    }
    names = [(metric, stat) for metric in METRICS for stat in STATS]
    values = {f"{metric}_{stat}_s": row.statistic(f"{metric}_s", stat) for metric, stat in names}
    return found | {name: value for name, value in values.items() if value is not None}


def check_folder(folder: Path) -> None:
    """Check, before long work, that a folder holds no rows of an earlier run.

    Raises:
        InputError: It holds rows.
    """
    if any((folder / name).exists() for name in (TABLE_NAME, FILE_NAME, DEPLOYMENTS)):
        hint = "go on with --resume, or give another folder to start again"
        raise InputError("this folder already contains the rows of a matrix", str(folder), hint=hint)


def write_folder(result: MatrixResult, folder: Path) -> None:
    """Write `rows.csv`, `summary.txt`, and `deployments/NNNN.json` of every simulated cell into a folder.

    Deployments of an earlier run that was resumed are removed where this one has no such cell.

    Raises:
        InputError: A file cannot be written.
    """
    deployments, is_first = make_folder(folder / DEPLOYMENTS), not (folder / TABLE_NAME).exists()
    write_atomically(folder / TABLE_NAME, [table_text(result)])
    write_atomically(folder / SUMMARY_NAME, [summary_text(result)])
    texts = {f"{i:04d}.json": row.deployment for i, row in enumerate(result.rows, 1) if row.deployment is not None}
    for name, deployment in texts.items():
        write_atomically(deployments / name, [json.dumps(deployment, indent=1) + "\n"])
    for path in deployments.glob("[0-9][0-9][0-9][0-9]*.json"):
        if path.name not in texts and not is_first:
            path.unlink()
