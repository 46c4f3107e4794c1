"""The log of an engine's steps: one row per simulated step or per run of decode steps simulated as one event.

For ranks that step together, the log holds the rows of the whole group and, with each row, the share of every rank.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray
from simulator.core.batch import BatchShape

COLUMNS = (
    "start_s",  # seconds, start of the (first) step
    "steps",  # steps in this row; > 1 only for decode-only runs
    "prefill_tokens",
    "prefill_pairs",
    "prefill_chunks",
    "decodes",  # the same in every step of the row
    "context_sum",  # of the first step; step j (0-based) has context_sum + j * decodes
    "context_max",  # of the first step; step j has context_max + j
    "logits",
    "first_s",  # duration of the first step; step j takes first_s + j * slope_s
    "slope_s",
    "total_s",  # duration of the row
    "passes",  # the same in every step of the row
    "behind_s",  # seconds by which the API server fell behind: its decodes waited this much longer than total_s
    "accepted",  # accepted drafts that were output, in addition to one token for each of `logits` and step
)

_packed = Struct(f"{len(COLUMNS)}d").pack  # takes less than half the time of array.extend with a tuple


class _Column:
    """A named column, read as a float64 array of shape (rows,)."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._index = COLUMNS.index(name)

    def __get__(self, log: StepLog, owner: type) -> FloatArray:
        return log.table()[:, self._index]


class StepLog:
    """An append-only log of 120 bytes per row, with columns as float64 arrays (counts are exact below 2**53)."""

    __slots__ = ("_values",)

    n_ranks: int = 0  # number of ranks that stepped together, in a RankStepLog
    start_s = _Column()
    steps = _Column()
    prefill_tokens = _Column()
    prefill_pairs = _Column()
    prefill_chunks = _Column()
    decodes = _Column()
    context_sum = _Column()
    context_max = _Column()
    logits = _Column()
    first_s = _Column()
    slope_s = _Column()
    total_s = _Column()
    passes = _Column()
    behind_s = _Column()
    accepted = _Column()

    def __init__(self) -> None:
        self._values = array("d")

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
        """Append one row; `shape` is the shape of its first step."""
        row = _packed(
            start_s,
            steps,
            shape.prefill_tokens,
            shape.prefill_pairs,
            shape.prefill_chunks,
            shape.decodes,
            shape.decode_context_sum,
            shape.decode_context_max,
            shape.logits,
            first_s,
            slope_s,
            total_s,
            shape.passes,
            behind_s,
            shape.accepted,
        )
        self._values.frombytes(row)

    def total_since(self, row: int) -> float:
        """Return the total seconds of the rows from `row` on."""
        return sum(self._values[row * len(COLUMNS) + COLUMNS.index("total_s") :: len(COLUMNS)])

    def __len__(self) -> int:
        return len(self._values) // len(COLUMNS)

    def table(self) -> FloatArray:
        """Return a copy of all rows. Shape (rows, 15), columns in the order of COLUMNS."""
        return np.array(self._values, dtype=np.float64).reshape(-1, len(COLUMNS))

    @property
    def emitted(self) -> FloatArray:
        """Tokens output by all steps of each row. Shape (rows,)."""
        return self.logits * self.steps + self.accepted

    @property
    def parts(self) -> tuple[StepLog, ...]:
        """One log for each rank that stepped independently."""
        return (self,)

    def like(self) -> StepLog:
        """Return an empty log of the same kind."""
        return StepLog()

    def between(self, first_s: float, last_s: float) -> StepLog:
        """Return the rows whose midpoint lies in [first_s, last_s) seconds."""
        middle_s = self.start_s + self.total_s / 2
        return self._kept((middle_s >= first_s) & (middle_s < last_s))

    def _kept(self, keep: npt.NDArray[np.bool_]) -> StepLog:
        found = self.like()
        found._values.frombytes(self.table()[keep].tobytes())
        return found

    def extend(self, log: StepLog) -> None:
        """Append the rows of a log of the same kind."""
        self._values.extend(log._values)

    @classmethod
    def merged(cls, logs: Iterable[StepLog]) -> StepLog:
        """Return the concatenated rows of several logs, such as those of several replicas."""
        logs = tuple(logs)
        kinds = {log.n_ranks: log for log in logs}
        merged = next(iter(kinds.values())).like() if len(kinds) == 1 else cls()
        for log in logs:
            merged.extend(log)
        return merged


#: The columns recorded for each rank; all other columns belong to the group.
OWN: Final = slice(COLUMNS.index("prefill_tokens"), COLUMNS.index("logits") + 1)

_N_OWN: Final = OWN.stop - OWN.start

_packed_ranks = Struct(f"{_N_OWN}d").pack

_NOTHING: Final = bytes(8 * _N_OWN)


class RankStepLog(StepLog):
    """The StepLog of a group of ranks, with 56 additional bytes per row and rank."""

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
        """Append one row and the share of each rank; `shape` is the shape of its first step."""
        super().add(start_s, steps, shape, first_s, slope_s, total_s, behind_s)
        self._shares.frombytes(b"".join([_NOTHING if rank is None else _row(rank) for rank in shape.ranks]))

    def like(self) -> StepLog:
        """Return an empty log for the same number of ranks."""
        return RankStepLog(self.n_ranks)

    def _kept(self, keep: npt.NDArray[np.bool_]) -> StepLog:
        found = super()._kept(keep)
        assert isinstance(found, RankStepLog)
        found._shares.frombytes(self.shares[keep].tobytes())
        return found

    def extend(self, log: StepLog) -> None:
        """Append the rows of a log of the same kind."""
        super().extend(log)
        if isinstance(log, RankStepLog):
            self._shares.extend(log._shares)

    @property
    def shares(self) -> FloatArray:
        """The share of each rank in the first step of each row. Shape (rows, ranks, 7), columns OWN."""
        return np.array(self._shares, dtype=np.float64).reshape(len(self), self.n_ranks, _N_OWN)

    def decoding(self, row: int) -> list[BatchShape | None]:
        """Return the decodes of each rank in a row (None: the rank had no decodes)."""
        first = row * self.n_ranks * _N_OWN
        shares = np.array(self._shares[first : first + self.n_ranks * _N_OWN]).reshape(self.n_ranks, _N_OWN)
        return [_decodes(int(n), int(sum_), int(most)) for n, sum_, most in shares[:, 3:6].tolist()]

    @property
    def parts(self) -> tuple[StepLog, ...]:
        """One log for each rank, with the steps in which the rank had work."""
        rows, shares = self.table(), self.shares
        return tuple(_log_of(with_share(rows, shares[:, rank])) for rank in range(self.n_ranks))


def with_share(rows: FloatArray, share: FloatArray) -> FloatArray:
    """Return the rows of the group with the counts replaced by the share of one rank. Shape (rows, columns)."""
    own = rows.copy()
    own[:, OWN] = share
    return own


def _decodes(n: int, context_sum: int, context_max: int) -> BatchShape | None:
    if not n:
        return None
    return BatchShape(decodes=n, decode_context_sum=context_sum, decode_context_max=context_max, logits=n)


def _row(shape: BatchShape) -> bytes:
    return _packed_ranks(
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
