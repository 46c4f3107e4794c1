"""What ranks that step together did: the rows of the whole group, and beside each what every rank held."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

from simulator.batch import BatchShape
from simulator.step_log import COLUMNS, FloatArray, StepLog

#: Columns that are each rank's own; all others are the group's.
OWN: Final = slice(COLUMNS.index("prefill_tokens"), COLUMNS.index("logits") + 1)
_NOTHING: Final = (0.0,) * (OWN.stop - OWN.start)


class RankLog(StepLog):
    """A StepLog of the group; 56 bytes a row and rank more."""

    __slots__ = ("_shares", "n_ranks")

    def __init__(self, n_ranks: int) -> None:
        super().__init__()
        self.n_ranks = n_ranks
        self._shares = array("d")

    def add(
        self,
        start_s: float,
        steps: int,
        shape: BatchShape,
        first_s: float,
        slope_s: float,
        total_s: float,
        behind_s: float = 0.0,
    ) -> None:
        super().add(start_s, steps, shape, first_s, slope_s, total_s, behind_s)
        for rank in shape.ranks:
            self._shares.extend(_NOTHING if rank is None else _row(rank))

    def like(self) -> StepLog:
        return RankLog(self.n_ranks)

    def extend(self, log: StepLog) -> None:
        super().extend(log)
        if isinstance(log, RankLog):
            self._shares.extend(log._shares)

    def rank_table(self, rank: int) -> FloatArray:
        """The rows of the group with what that rank held, shape (rows, 14)."""
        rows = self.table()
        rows[:, OWN] = np.array(self._shares).reshape(len(rows), self.n_ranks, len(_NOTHING))[:, rank]
        return rows

    @property
    def parts(self) -> tuple[StepLog, ...]:
        """Of each rank the steps in which it had something to do."""
        return tuple(_log_of(self.rank_table(rank)) for rank in range(self.n_ranks))


def _row(shape: BatchShape) -> tuple[float, ...]:
    return (
        shape.prefill_tokens,
        shape.prefill_pairs,
        shape.prefill_chunks,
        shape.decodes,
        shape.decode_context_sum,
        shape.decode_context_max,
        shape.logits,
    )


def _log_of(table: FloatArray) -> StepLog:
    log = StepLog()
    log._values.frombytes(table[table[:, OWN].any(axis=1)].tobytes())
    return log
