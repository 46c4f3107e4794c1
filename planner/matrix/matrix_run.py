"""A whole matrix: its cells evaluated in worker processes, recorded, and gathered into one table."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.ui.installation import DISTRIBUTION, own_version
from planner.matrix.cell_workers import CellPool
from planner.matrix.cells import Cell, cells_of
from planner.matrix.comparison import MatrixComparison, compare, compare_rows, joined, measured_row, predict
from planner.matrix.evaluation import evaluate
from planner.matrix.live import LiveSettings, is_live, measure
from planner.matrix.matrix_file import MatrixFile
from planner.matrix.published_rows import MeasuredPoint
from planner.matrix.records import RowRecords, cell_digest, notify
from planner.matrix.row import SCHEMA_VERSION, MatrixRow

#: Fewest cells that each process takes at a time.
CELLS_PER_TURN: Final = 4

#: Turns in which a large matrix is evaluated: enough to show progress, few enough to start processes rarely.
TURNS: Final = 12

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class MatrixResult:
    """The rows of a matrix in the order of its cells, and those of measurements.

    Attributes:
        matrix: The matrix; None if only measurements are compared with their predictions.
        rows: The rows. A cell that is both simulated and measured has two, one after the other.
        comparison: Measured values with their predictions; None without measurements.
        notices: Every notice of the rows once, the most frequent first.
    """

    matrix: MatrixFile | None
    rows: Sequence[MatrixRow]
    comparison: MatrixComparison | None = None
    notices: Sequence[str] = field(default_factory=tuple)

    @property
    def n_ok(self) -> int:
        """Return the number of rows of cells with figures, without those of measurements that were read."""
        return sum(row.verdict == "ok" and row.is_cell for row in self.rows)

    def document(self) -> dict[str, Any]:
        """Return the matrix as JSON data, the same for the same matrix, code and calibration."""
        return {
            "schema_version": SCHEMA_VERSION,
            "matrix": None if self.matrix is None else self.matrix.model_dump(mode="json"),
            "versions": {DISTRIBUTION: own_version(), "python": platform.python_version()},
            "notices": list(self.notices),
            "comparison": None if self.comparison is None else self.comparison.document(),
            "rows": [row.document() for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class MatrixRun:
    """How the cells of a matrix are evaluated.

    Attributes:
        pool: Evaluates cells.
        records: Where finished rows are kept; None for nowhere.
        resume: Whether rows of an earlier run count.
        progress: Is called with the cells that are done, their number, and the next cell.
    """

    pool: CellPool
    records: RowRecords | None = None
    resume: bool = False
    progress: Progress | None = None

    def rows(self, cells: Sequence[Cell]) -> list[MatrixRow]:
        """Return the simulated row of each cell, in order.

        Raises:
            InputError: The records cannot be read or written.
        """
        if self.records is not None:
            self.records.begin(self.resume)
        kept = self.records.rows() if self.records else {}
        known = {i: row for i, cell in enumerate(cells) if (row := kept.get(cell_digest(cell))) is not None}
        left = [i for i in range(len(cells)) if i not in known]
        elsewhere = self.records is not None and not self.pool.shares_disk
        work = evaluate if self.records is None or elsewhere else partial(evaluate_and_record, self.records)
        each = max(CELLS_PER_TURN * self.pool.n_workers, -(-len(left) // TURNS))
        for first in range(0, len(left), each):
            turn = left[first : first + each]
            if self.progress:
                self.progress(len(known), len(cells), cells[turn[0]].name)
            found = self.pool.map(work, [cells[i] for i in turn])
            known |= dict(zip(turn, found, strict=True))
            if self.records is not None and elsewhere:
                for i in turn:
                    self.records.add(cell_digest(cells[i]), known[i])
        return [known[i] for i in range(len(cells))]

    def measured(self, cells: Sequence[Cell], settings: LiveSettings) -> list[tuple[Cell, MatrixRow, MatrixRow]]:
        """Return each cell with its simulated and its measured row; measurements of an earlier run count.

        Raises:
            InputError: The records cannot be read or written.
        """
        found: list[tuple[Cell, MatrixRow, MatrixRow]] = []
        for rows in measure(cells, settings, notify, self.records):
            found.append(rows)
            if self.progress:
                self.progress(len(found), len(cells), rows[0].name)
        return found

    def predictions(self, points: Sequence[MeasuredPoint]) -> list[MatrixRow]:
        """Return the predicted row of each measured point, in order."""
        if self.progress and points:
            self.progress(0, len(points), "predictions of measured rows")
        return self.pool.map(predict, points) if points else []


def evaluate_and_record(records: RowRecords, cell: Cell) -> MatrixRow:
    """Return the row of a cell, which is on the disk by then."""
    row = evaluate(cell)
    records.add(cell_digest(cell), row)
    return row


def run_matrix(
    matrix: MatrixFile | None,
    cells: Sequence[Cell],
    points: Sequence[MeasuredPoint],
    run: MatrixRun,
    live: LiveSettings | None = None,
) -> MatrixResult:
    """Return the rows of cells of a matrix, and of measurements with their predictions.

    Args:
        matrix: The matrix; None for measured points alone.
        cells: Its cells.
        points: Measured rows of files.
        run: How cells are evaluated.
        live: How cells are measured on this machine; None simulates all of them.

    Raises:
        InputError: The records cannot be read or written.
    """
    here = [cell for cell in cells if live is not None and is_live(cell)]
    others = [cell for cell in cells if live is None or not is_live(cell)]
    simulated = dict(zip(others, run.rows(others), strict=True))
    pairs = {} if live is None else {cell: pair for cell, *pair in run.measured(here, live)}
    rows = [row for cell in cells for row in (pairs[cell] if cell in pairs else [simulated[cell]])]
    predicted = run.predictions(points)
    for point, row in zip(points, predicted, strict=True):
        rows += [row, measured_row(point)]
    found = compare(points, predicted) if points else None
    if pairs:
        found = joined(found, compare_rows([(first, second) for first, second in pairs.values()]))
    return MatrixResult(matrix, rows, found, common_notices(rows))


def chosen_cells(matrix: MatrixFile, only: str | None) -> list[Cell]:
    """Return the cells of a matrix whose name contains a text.

    Raises:
        InputError: No cell does.
    """
    cells = cells_of(matrix)
    found = [cell for cell in cells if only is None or only.lower() in cell.name.lower()]
    if not found:
        raise InputError("no cell of the matrix has this in its name", only, cells[0].name)
    return found


def common_notices(rows: Sequence[MatrixRow]) -> list[str]:
    """Return every notice of the rows once, the most frequent first."""
    counts = Counter(notice for row in rows for notice in row.notices)
    return sorted(counts, key=lambda notice: (-counts[notice], notice))
