"""The requests of another run, simulated or measured, that `simulate --compare` sets a run against."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Final

import numpy as np

from calibration.complexity.records import LatencyRecords
from calibration.importers.load_clients.results import measured_runs
from catalogs.errors import InputError
from catalogs.io.input_files import MOST_DATA_BYTES, read_text

#: The columns of `simulate --requests-out` that a comparison needs.
COLUMNS: Final = ("input_tokens", "output_tokens", "e2e_s", "ttft_s")


def other_records(path: Path) -> LatencyRecords:
    """Return the completed requests of a CSV file of `simulate --requests-out`, or of a load client's result.

    The repeated runs of one client's result are taken together.

    Raises:
        InputError: The file cannot be read, is neither, or holds no completed request.
    """
    found = _of_csv(path) if path.suffix == ".csv" else _of_client(path)
    if not found.n:
        raise InputError("the run to compare with has no completed request", str(path))
    return found


def _of_client(path: Path) -> LatencyRecords:
    return LatencyRecords.pooled([LatencyRecords.measured(run) for run in measured_runs(path)])


def _of_csv(path: Path) -> LatencyRecords:
    rows = csv.DictReader(io.StringIO(read_text(path, "requests cannot be read", MOST_DATA_BYTES)))
    missing = next((name for name in COLUMNS if name not in (rows.fieldnames or ())), None)
    if missing is not None:
        rule = "a CSV file of requests has the columns of simulate --requests-out"
        raise InputError(rule, f"{path}: no column {missing}", ", ".join(COLUMNS))
    kept = [row for row in rows if row["e2e_s"]]
    try:
        inputs, outputs, e2e_s, ttft_s = (np.array([float(row[name] or "nan") for row in kept]) for name in COLUMNS)
    except (TypeError, ValueError):
        raise InputError("the cells of a CSV file of requests are numbers", str(path), ", ".join(COLUMNS)) from None
    return LatencyRecords(inputs, outputs, e2e_s, ttft_s)
