"""The workers of a matrix give the same rows, wherever they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from catalogs.errors import InputError
from planner.matrix.cell_workers import LocalPool, cell_pool
from planner.matrix.cells import cells_of
from planner.matrix.matrix_file import MatrixFile
from planner.matrix.matrix_run import MatrixRun
from planner.matrix.records import RowRecords

CELLS = cells_of(
    MatrixFile(
        models=["llama3.1-8b"],
        engines=["vllm", "pytorch"],
        hardware=["h100x1"],
        workloads=["alpaca"],
        batches=[1, 2],
        requests=8,
        max_model_len=512,
    )
)


def test_processes_give_the_rows_of_one_process(tmp_path: Path) -> None:
    alone = MatrixRun(LocalPool(1)).rows(CELLS)
    records = RowRecords(tmp_path / "rows.log")
    assert MatrixRun(LocalPool(2), records).rows(CELLS) == alone
    assert len(records.rows()) == len(CELLS)


def test_one_kind_of_workers_is_chosen() -> None:
    with pytest.raises(InputError, match="exclude each other"), cell_pool(2, "ray://local"):
        pass
    with cell_pool(3, None) as pool:
        assert (pool.n_workers, pool.shares_disk) == (3, True)


@pytest.mark.slow
def test_a_cluster_gives_the_rows_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (pip install '.[ray]')")
    records = RowRecords(tmp_path / "rows.log")
    with cell_pool(None, "ray://local") as pool:
        found = MatrixRun(pool, records).rows(CELLS)
    assert found == MatrixRun(LocalPool(1)).rows(CELLS)
    assert len(records.rows()) == len(CELLS)


def test_a_row_of_another_seed_does_not_count(tmp_path: Path) -> None:
    records = RowRecords(tmp_path / "rows.log")
    MatrixRun(LocalPool(1), records).rows(CELLS)
    other = [replace(cell, seed=1) for cell in CELLS]
    found = MatrixRun(LocalPool(1), records, resume=True).rows(other)
    assert [row.seed for row in found] == [1] * len(CELLS)
