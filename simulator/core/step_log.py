"""What the engine did: one row per simulated step, or per run of decode steps that were simulated as one.

What ranks that step together did: the rows of the whole group, and beside each what every rank held.
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
    "behind_s",  # seconds its decodes waited longer than total_s: by so much the API server fell behind
    "accepted",  # drafts that came out, beside one token for each of `logits` and step
)

_packed = Struct(f"{len(COLUMNS)}d").pack  # less than half the time of array.extend with a tuple


class _Column:
    """A named column, read as a float64 array of shape (rows,)."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._index = COLUMNS.index(name)

    def __get__(self, log: StepLog, owner: type) -> FloatArray:
        return log.table()[:, self._index]


class StepLog:
    """Append-only, 120 bytes a row. Columns are float64 arrays (counts are exact below 2**53)."""

    __slots__ = ("_values",)

    n_ranks: int = 0  # that stepped together, where each has rows of its own (rank_log.py)
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
        """Append one row; `shape` is the first step's."""
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
        """Seconds of the rows from that one on."""
        return sum(self._values[row * len(COLUMNS) + COLUMNS.index("total_s") :: len(COLUMNS)])

    def __len__(self) -> int:
        return len(self._values) // len(COLUMNS)

    def table(self) -> FloatArray:
        """All rows, shape (rows, 15), columns in the order of COLUMNS. A copy: the log may grow on."""
        return np.array(self._values, dtype=np.float64).reshape(-1, len(COLUMNS))

    @property
    def emitted(self) -> FloatArray:
        """Tokens that came out of all steps of a row."""
        return self.logits * self.steps + self.accepted

    @property
    def parts(self) -> tuple[StepLog, ...]:
        """A log for each rank that stepped on its own."""
        return (self,)

    def like(self) -> StepLog:
        """An empty log for rows such as these."""
        return StepLog()

    def between(self, first_s: float, last_s: float) -> StepLog:
        """The rows whose middle lies there."""
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
        """The rows of several logs (replicas), one after the other."""
        logs = tuple(logs)
        kinds = {log.n_ranks: log for log in logs}
        merged = next(iter(kinds.values())).like() if len(kinds) == 1 else cls()
        for log in logs:
            merged.extend(log)
        return merged


#: Columns that are each rank's own; all others are the group's.
OWN: Final = slice(COLUMNS.index("prefill_tokens"), COLUMNS.index("logits") + 1)

_N_OWN: Final = OWN.stop - OWN.start

_packed_ranks = Struct(f"{_N_OWN}d").pack

_NOTHING: Final = bytes(8 * _N_OWN)


class RankStepLog(StepLog):
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
        return RankStepLog(self.n_ranks)

    def _kept(self, keep: npt.NDArray[np.bool_]) -> StepLog:
        found = super()._kept(keep)
        assert isinstance(found, RankStepLog)
        found._shares.frombytes(self.shares[keep].tobytes())
        return found

    def extend(self, log: StepLog) -> None:
        super().extend(log)
        if isinstance(log, RankStepLog):
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
