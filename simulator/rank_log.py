"""What ranks that step together did: the rows of the whole group, and beside each what every rank held."""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.batch import BatchShape
from simulator.step_log import COLUMNS, FloatArray, StepLog

#: Columns that are each rank's own; all others are the group's.
OWN: Final = slice(COLUMNS.index("prefill_tokens"), COLUMNS.index("logits") + 1)
_N_OWN: Final = OWN.stop - OWN.start
_packed = Struct(f"{_N_OWN}d").pack
_NOTHING: Final = bytes(8 * _N_OWN)


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
        self._shares.frombytes(b"".join([_NOTHING if rank is None else _row(rank) for rank in shape.ranks]))

    def like(self) -> StepLog:
        return RankLog(self.n_ranks)

    def _kept(self, keep: npt.NDArray[np.bool_]) -> StepLog:
        found = super()._kept(keep)
        assert isinstance(found, RankLog)
        found._shares.frombytes(self.shares[keep].tobytes())
        return found

    def extend(self, log: StepLog) -> None:
        super().extend(log)
        if isinstance(log, RankLog):
            self._shares.extend(log._shares)

    @property
    def shares(self) -> FloatArray:
        """What each rank held in the first step of each row, shape (rows, ranks, 7), columns OWN."""
        return np.array(self._shares, dtype=np.float64).reshape(len(self), self.n_ranks, _N_OWN)

    def decoding(self, row: int) -> list[BatchShape | None]:
        """The decodes of each rank in that row."""
        first = row * self.n_ranks * _N_OWN
        shares = np.array(self._shares[first : first + self.n_ranks * _N_OWN]).reshape(self.n_ranks, _N_OWN)
        return [_decodes(int(n), int(sum_), int(most)) for n, sum_, most in shares[:, 3:6].tolist()]

    @property
    def parts(self) -> tuple[StepLog, ...]:
        """Of each rank the steps in which it had something to do."""
        rows, shares = self.table(), self.shares
        return tuple(_log_of(with_share(rows, shares[:, rank])) for rank in range(self.n_ranks))


def with_share(rows: FloatArray, share: FloatArray) -> FloatArray:
    """Rows of the group with what one rank held of them, shape (rows, columns)."""
    own = rows.copy()
    own[:, OWN] = share
    return own


def _decodes(n: int, context_sum: int, context_max: int) -> BatchShape | None:
    if not n:
        return None
    return BatchShape(decodes=n, decode_context_sum=context_sum, decode_context_max=context_max, logits=n)


def _row(shape: BatchShape) -> bytes:
    return _packed(
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
