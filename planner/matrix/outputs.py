"""The files of a matrix: one row a cell as CSV, and a deployment file for every cell."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from catalogs.io.output_files import make_folder, write_atomically
from planner.matrix.row import MatrixRow
from planner.matrix.study import MatrixResult

#: Statistics of a latency in a row, in the order of the columns.
STATS: Final = ("mean", "p50", "p90", "p95", "p99")

LATENCIES: Final = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")

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
_BLOCKS: Final = ("metrics", "complexity", "memory", "cost", "calibration", "stated_error", "versions")

#: Keys of these blocks that are lists or texts of several lines, which a cell of a table does not hold.
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


def write_folder(result: MatrixResult, folder: Path) -> None:
    """Write `rows.csv`, and `deployments/NNN.json` of every cell that was simulated, into a folder.

    Raises:
        InputError: A file cannot be written.
    """
    make_folder(folder / "deployments")
    write_atomically(folder / "rows.csv", [table_text(result)])
    for number, row in enumerate(result.rows, 1):
        if row.deployment is not None:
            text = json.dumps(row.deployment, indent=1) + "\n"
            write_atomically(folder / "deployments" / f"{number:04d}.json", [text])
