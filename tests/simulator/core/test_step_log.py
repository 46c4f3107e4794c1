"""The log of steps: every way to read it gives the same rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.core.batch import Batch, BatchShape, Encoding, TowerWork
from simulator.core.step_log import COLUMNS, StepLog

VALUES = st.integers(0, 1000)


def logged(rows: list[tuple[int, int]], encoded: list[int]) -> StepLog:
    """A log with a row for each (decodes, prefill tokens), of which some encode items."""
    log = StepLog()
    for i, (decodes, tokens) in enumerate(rows):
        log.add(
            0.5 * i, 1 + decodes % 3, BatchShape(tokens, 0.5 * tokens, 1, decodes, 7 * decodes, 9, decodes), 0.5, 0, 1
        )
        if i in encoded:
            log.add_encoding(Encoding(TowerWork(0, i, i + 1, i + 2), TowerWork(0, 0, 2 * i, 1)))
    return log


@given(st.lists(st.tuples(VALUES, VALUES), max_size=12), st.lists(st.integers(0, 11)))
def test_every_column_is_that_of_the_table(rows: list[tuple[int, int]], encoded: list[int]) -> None:
    log = logged(rows, encoded)
    table = log.table()
    assert table.shape == (len(rows), len(COLUMNS))
    for i, name in enumerate(COLUMNS):
        np.testing.assert_array_equal(getattr(log, name), table[:, i])


@pytest.mark.parametrize("column", ["total_s", "vision_patches"])
def test_a_column_is_a_copy_that_lets_the_log_grow(column: str) -> None:
    log = logged([(3, 5), (2, 0)], [0])
    before = getattr(log, column)
    log.add(1.0, 1, BatchShape(1, 1.0, 1, 0, 0, 0, 1), 0.1, 0.0, 0.1)
    before[:] = -1.0
    assert len(log) == len(getattr(log, column)) == 3
    assert (getattr(log, column) >= 0).all()


ROWS = st.lists(st.tuples(VALUES, VALUES), max_size=7)


@given(st.lists(st.tuples(ROWS, st.lists(st.integers(0, 6)))), st.integers(1, 9))
def test_joined_logs_read_as_one(parts: list[tuple[list[tuple[int, int]], list[int]]], size: int) -> None:
    logs = [logged(rows, encoded) for rows, encoded in parts]
    joined = StepLog.merged(logs)
    table = np.concatenate([np.zeros((0, len(COLUMNS))), *(log.table() for log in logs)])
    assert len(joined) == len(table)
    np.testing.assert_array_equal(joined.table(), table)
    np.testing.assert_array_equal(StepLog.merged([joined, *logs]).table(), np.concatenate([table, table]))
    chunks = [chunk.table for chunk in joined.chunks(size)]
    assert [len(chunk) for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
    np.testing.assert_array_equal(np.concatenate([table[:0], *chunks]), table)
    for i, name in enumerate(COLUMNS):
        np.testing.assert_array_equal(joined.columns("steps", name)[1], table[:, i])
    np.testing.assert_array_equal(
        joined.between(0.5, 1.5).table(), np.concatenate([table[:0], *(log.between(0.5, 1.5).table() for log in logs)])
    )
    assert joined.total_since(2) == sum(table[2:, COLUMNS.index("total_s")])


def test_joined_logs_keep_the_shares_of_ranks_and_take_no_rows() -> None:
    def of_ranks(counts: list[tuple[int, int]]) -> StepLog:
        log = StepLog(2)
        for pair in counts:
            shape = Batch()
            shape.ranks = tuple(BatchShape(decodes=n, decode_context_sum=10 * n, decode_context_max=10) for n in pair)
            log.add(0.0, 1, shape, 1.0, 0.0, 1.0)
        return log

    logs = [of_ranks([(1, 2), (3, 4)]), of_ranks([]), of_ranks([(5, 6)])]
    joined = StepLog.merged(logs)
    assert joined.n_ranks == 2
    np.testing.assert_array_equal(joined.shares, np.concatenate([log.shares for log in logs]))
    assert [[rank.decodes for rank in joined.decoding(row) if rank] for row in range(3)] == [[1, 2], [3, 4], [5, 6]]
    assert [len(part) for part in joined.parts] == [3, 3]
    assert StepLog.merged([logs[0], StepLog()]).n_ranks == 0
    with pytest.raises(TypeError, match="single logs"):
        joined.add(0.0, 1, BatchShape(), 1.0, 0.0, 1.0)
