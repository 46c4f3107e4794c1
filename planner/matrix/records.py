"""The rows and measurements of a matrix on the disk while it runs, so that `--resume` repeats nothing that is there.

The file is that of a search (planner/search/checksummed_journal.py): one record per line, each with a checksum,
written at once. Every process that evaluates cells appends its own rows. A row counts for the same cell with the same
code and calibration only, so a matrix may change between two runs: new cells are evaluated, and the others are read.
Records of other kinds are those of `planner/matrix/measurement_records.py`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from calibration.accuracy.stated_error import stated_errors_digest
from planner.matrix.cells import Cell
from planner.matrix.row import MatrixRow
from planner.search.checksummed_journal import StudyFile
from planner.search.ray_workers import code_digest

#: Kind of a record with one row; Optuna's own records have smaller numbers.
ROW: Final = 100

#: Name of the file in the folder of `--csv`.
FILE_NAME: Final = "rows.log"


def cell_digest(cell: Cell) -> str:
    """Return what identifies the simulated row of a cell: its axes and settings, the code, and the calibration."""
    found = asdict(cell) | {"origin": "simulated", "code": code_digest(), "calibration": stated_errors_digest()}
    return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()[:24]


def notify(text: str) -> None:
    """Show a line of progress or a notice on stderr."""
    print(f"plan matrix: {text}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class RowRecords:
    """The rows and measurements in one file, which several processes extend."""

    path: Path

    def begin(self, keep: bool) -> None:
        """Create the file, and empty it unless its rows are kept.

        Raises:
            InputError: The file is damaged, belongs to something else, or cannot be written.
        """
        StudyFile(self.path, notify)  # refuses a file that is no record of rows
        if not keep:
            self.path.unlink()
        _opened.cache_clear()
        _opened(self.path)

    def rows(self) -> Mapping[str, MatrixRow]:
        """Return the rows of the file by the digest of their cell.

        Raises:
            InputError: The file is damaged or cannot be read.
        """
        found: dict[str, MatrixRow] = {}
        for record in self.of_kinds({ROW}):
            if (row := _row(record)) is not None:
                found[str(record["cell"])] = row
        return found

    def add(self, digest: str, row: MatrixRow) -> None:
        """Write a row to the disk.

        Raises:
            InputError: The file cannot be written.
        """
        self.append({"op_code": ROW, "cell": digest, "row": row.document()})

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record to the disk, whole or not at all.

        Args:
            record: JSON data with the number of its kind under `op_code`.

        Raises:
            InputError: The file cannot be written.
        """
        _opened(self.path).append_logs([dict(record)])

    def of_kinds(self, kinds: Collection[int]) -> list[Mapping[str, Any]]:
        """Return the records of some kinds, in the order in which they were written.

        Raises:
            InputError: The file is damaged or cannot be read.
        """
        return [record for record in _opened(self.path).read_logs(0) if record["op_code"] in kinds]


@lru_cache(maxsize=1)
def _opened(path: Path) -> StudyFile:
    """Return the file, which remembers the records that it has checked; a forked process continues from there."""
    return StudyFile(path, notify)


def _row(record: Mapping[str, Any]) -> MatrixRow | None:
    """Return the row of a record; None for one with a schema of another version of the product."""
    try:
        return MatrixRow.model_validate(record["row"])
    except (KeyError, ValidationError):
        return None
