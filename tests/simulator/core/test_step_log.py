"""The log of steps: every way to read it gives the same rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.core.batch import BatchShape, Encoding, TowerWork
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
