"""The log of an engine's steps: one row per simulated step or per run of decode steps simulated as one event.

For ranks that step together, the log holds the rows of the whole group and, with each row, the share of every rank.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from catalogs.arrays import FloatArray
from simulator.core.batch import BatchShape, Encoding


class _Column:
    """A named column, read as a float64 array of shape (rows,)."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, log: StepLog, owner: type) -> FloatArray:
        column: FloatArray = log.columns(self._name)[0]
        return column


class RowChunk(NamedTuple):
    """Consecutive rows of a log.

    Attributes:
        table: Shape (rows, 22), columns in the order of COLUMNS.
        shares: The share of each rank in the first step of each row. Shape (rows, ranks, 8), columns OWN.
    """

    table: FloatArray
    shares: FloatArray


class StepLog:
    """An append-only log of 128 bytes per row, with columns as float64 arrays (counts are exact below 2**53).

    The items that steps encode take another 56 bytes for each row that has any.

    The log of ranks that step together has 64 additional bytes per row and rank, for the share of each rank.
    """

    __slots__ = ("_encodings", "_shares", "_values", "n_ranks")

    start_s = _Column()  # seconds, start of the (first) step
    steps = _Column()  # steps in this row; > 1 only for decode-only runs
    prefill_tokens = _Column()
    prefill_pairs = _Column()
    prefill_chunks = _Column()
    decodes = _Column()  # the same in every step of the row
    context_sum = _Column()  # of the first step; step j (0-based) has context_sum + j * decodes
    context_max = _Column()  # of the first step; step j has context_max + j
    undrafted = _Column()  # decodes without drafts, where speculative decoding found none; rows with any have one step
    logits = _Column()
    first_s = _Column()  # duration of the first step; step j takes first_s + j * slope_s
    slope_s = _Column()
    total_s = _Column()  # duration of the row
    passes = _Column()  # the same in every step of the row
    behind_s = _Column()  # seconds that the decodes waited longer than total_s, because the API server fell behind
    accepted = _Column()  # accepted drafts that were output, in addition to one token for each of `logits` and step

    vision_units = _Column()  # images, tiles or videos that ranks can divide; rows with any have one step
    vision_patches = _Column()
    vision_pairs = _Column()  # sum over tiles of the square of their patches
    audio_units = _Column()  # the same of the audio tower
    audio_patches = _Column()
    audio_pairs = _Column()

    def __init__(self, n_ranks: int = 0) -> None:
        """Create an empty log; `n_ranks` is the number of ranks that step together, 0 if all do the same work."""
        self.n_ranks = n_ranks
        self._values = array("d")
        self._shares = array("d")
        self._encodings = array("d")  # (row, tiles, patches, pairs, ... of each tower) of the rows that encode items

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
        """Append one row, with the shares of ranks that step together; `shape` is the shape of its first step."""
        row = packed_row(
            start_s,
            steps,
            shape.prefill_tokens,
            shape.prefill_pairs,
            shape.prefill_chunks,
            shape.decodes,
            shape.decode_context_sum,
            shape.decode_context_max,
            shape.undrafted,
            shape.logits,
            first_s,
            slope_s,
            total_s,
            shape.passes,
            behind_s,
            shape.accepted,
        )
        self._values.frombytes(row)
        if self.n_ranks:
            self._shares.frombytes(packed_shares(shape.ranks))

    @property
    def add_packed(self) -> Callable[[bytes], None]:
        """Return the function that appends a row of `packed_row`."""
        return self._values.frombytes

    @property
    def add_packed_shares(self) -> Callable[[bytes], None]:
        """Return the function that appends the `packed_shares` of a row, which ranks that step together need."""
        return self._shares.frombytes

    def add_encoding(self, encoding: Encoding) -> None:
        """Note the items that the step of the last row encodes."""
        self._encodings.extend((len(self) - 1, *encoding.vision[1:], *encoding.audio[1:]))

    def total_since(self, row: int) -> float:
        """Return the total seconds of the rows from `row` on."""
        return sum(self._values[row * _N_STORED + COLUMNS.index("total_s") :: _N_STORED])

    def __len__(self) -> int:
        return len(self._values) // _N_STORED

    @property
    def _logs(self) -> tuple[StepLog, ...]:
        """Return the logs that hold the rows: itself."""
        return (self,)

    def columns(self, *names: str) -> FloatArray:
        """Return a copy of some columns of all rows. Shape (names, rows)."""
        indices = [COLUMNS.index(name) for name in names]
        if max(indices) >= _N_STORED:
            return np.ascontiguousarray(self.table()[:, indices].T)
        found = np.empty((len(indices), len(self)))
        first = 0
        for log in self._logs:
            last = first + len(log)
            found[:, first:last] = np.frombuffer(log._values).reshape(-1, _N_STORED)[:, indices].T
            first = last
        return found

    def table(self) -> FloatArray:
        """Return a copy of all rows. Shape (rows, 22), columns in the order of COLUMNS."""
        return next(self.chunks(max(1, len(self))), NO_ROWS).table

    def chunks(self, n: int) -> Iterator[RowChunk]:
        """Yield copies of `n` rows at a time, and of those that are left. A log without rows has no chunks."""
        pieces: list[tuple[StepLog, int, int]] = []
        held = 0
        for log in self._logs:
            first = 0
            while first < len(log):
                last = min(len(log), first + n - held)
                pieces.append((log, first, last))
                held, first = held + last - first, last
                if held == n:
                    yield self._gathered(pieces, held)
                    pieces, held = [], 0
        if pieces:
            yield self._gathered(pieces, held)

    def _gathered(self, pieces: list[tuple[StepLog, int, int]], n: int) -> RowChunk:
        """Return `n` rows from (log, first row, row after the last one)."""
        table, shares = np.zeros((n, len(COLUMNS))), np.empty((n, self.n_ranks, _N_OWN))
        at = 0
        for log, first, last in pieces:
            here = slice(at, at + last - first)
            table[here, :_N_STORED] = np.frombuffer(log._values).reshape(-1, _N_STORED)[first:last]
            if log._encodings:
                encodings = np.array(log._encodings, dtype=np.float64).reshape(-1, _N_ENCODING)
                rows = encodings[:, 0].astype(np.int64)
                some = (rows >= first) & (rows < last)
                table[at + rows[some] - first, _N_STORED:] = encodings[some, 1:]
            if self.n_ranks:
                shares[here] = np.frombuffer(log._shares).reshape(-1, self.n_ranks, _N_OWN)[first:last]
            at = here.stop
        return RowChunk(table, shares)

    @property
    def emitted(self) -> FloatArray:
        """Return the tokens output by all steps of each row. Shape (rows,)."""
        return self.logits * self.steps + self.accepted

    @property
    def shares(self) -> FloatArray:
        """Return the share of each rank in the first step of each row. Shape (rows, ranks, 8), columns OWN."""
        return next(self.chunks(max(1, len(self))), RowChunk(NO_ROWS.table, np.zeros((0, self.n_ranks, _N_OWN)))).shares

    def decoding(self, row: int) -> list[BatchShape | None]:
        """Return the decodes of each rank in a row (None: the rank had no decodes)."""
        log, row = self._place(row)
        first = row * self.n_ranks * _N_OWN
        shares = np.array(log._shares[first : first + self.n_ranks * _N_OWN]).reshape(self.n_ranks, _N_OWN)
        counts = shares[:, 3:6].astype(np.int64).tolist()
        return [BatchShape(0, 0.0, 0, n, context_sum, most, n) if n else None for n, context_sum, most in counts]

    def _place(self, row: int) -> tuple[StepLog, int]:
        """Return the log that holds a row, and its index there."""
        for log in self._logs:
            if row < len(log):
                break
            row -= len(log)
        return log, row

    @property
    def parts(self) -> tuple[StepLog, ...]:
        """Return one log for each rank that stepped independently, with the steps in which the rank had work."""
        if not self.n_ranks:
            return (self,)
        shares, no_shares = self.shares, np.zeros((0, 0, _N_OWN))
        ranks = (with_share(self.table(), shares[:, rank]) for rank in range(self.n_ranks))
        return tuple(StepLog._of(rows[rows[:, OWN].any(axis=1)], no_shares) for rows in ranks)

    @staticmethod
    def _of(table: FloatArray, shares: FloatArray) -> StepLog:
        log = StepLog(shares.shape[1])
        log._values.frombytes(table[:, :_N_STORED].tobytes())
        log._shares.frombytes(shares.tobytes())
        rows = np.flatnonzero(table[:, _N_STORED:].any(axis=1))
        log._encodings.frombytes(np.column_stack([rows, table[rows, _N_STORED:]]).astype(np.float64).tobytes())
        return log

    def between(self, first_s: float, last_s: float) -> StepLog:
        """Return the rows whose midpoint lies in [first_s, last_s) seconds."""
        middle_s = self.start_s + self.total_s / 2
        keep = (middle_s >= first_s) & (middle_s < last_s)
        return self._of(self.table()[keep], self.shares[keep])

    @staticmethod
    def merged(logs: Iterable[StepLog]) -> StepLog:
        """Return the concatenated rows of several logs, such as those of several replicas.

        The shares of ranks are kept if all logs have the same number of ranks.
        """
        logs = tuple(held for log in logs for held in log._logs)
        return logs[0] if len(logs) == 1 else _JoinedLogs(logs)


class _JoinedLogs(StepLog):
    """Several logs that are read as one; their rows are copied only where they are read."""

    __slots__ = ("_held",)

    def __init__(self, logs: tuple[StepLog, ...]) -> None:
        kinds = {log.n_ranks for log in logs}
        super().__init__(kinds.pop() if len(kinds) == 1 else 0)
        self._held = logs

    def add(self, *_: object) -> None:
        """Refuse a row: it belongs into one of the logs."""
        raise TypeError("rows are added to single logs")

    def total_since(self, row: int) -> float:
        """Return the total seconds of the rows from `row` on."""
        return float(sum(self.total_s[row:].tolist()))

    @property
    def _logs(self) -> tuple[StepLog, ...]:
        return self._held

    def __len__(self) -> int:
        return sum(map(len, self._held))


COLUMNS: Final = tuple(name for name, value in vars(StepLog).items() if isinstance(value, _Column))

#: The columns that every row has; those behind them are kept only for the rows that encode items.
_N_STORED: Final = COLUMNS.index("vision_units")

#: The numbers of a row that encodes items: its index and the columns behind those that every row has.
_N_ENCODING: Final = 1 + len(COLUMNS) - _N_STORED

#: Packs the values of one row in the order of the columns that every row has.
packed_row = Struct(f"{_N_STORED}d").pack  # takes less than half the time of array.extend with a tuple

#: The columns recorded for each rank; all other columns belong to the group.
OWN: Final = slice(COLUMNS.index("prefill_tokens"), COLUMNS.index("logits") + 1)

_N_OWN: Final = OWN.stop - OWN.start

#: The rows of a log that has none.
NO_ROWS: Final = RowChunk(np.zeros((0, len(COLUMNS))), np.zeros((0, 0, _N_OWN)))

_packed_share = Struct(f"{_N_OWN}d").pack

#: The packed share of a rank that did nothing in a step.
_NOTHING: Final = bytes(8 * _N_OWN)


def with_share(rows: FloatArray, share: FloatArray) -> FloatArray:
    """Return the rows of the group with the counts replaced by the share of one rank. Shape (rows, columns)."""
    own = rows.copy()
    own[:, OWN] = share
    return own


def packed_shares(ranks: Sequence[BatchShape | None]) -> bytes:
    """Return the shares of ranks that step together, packed for one row (None: a rank that runs a dummy batch)."""
    return b"".join(
        [
            _NOTHING
            if shape is None
            else _packed_share(
                shape.prefill_tokens,
                shape.prefill_pairs,
                shape.prefill_chunks,
                shape.decodes,
                shape.decode_context_sum,
                shape.decode_context_max,
                shape.undrafted,
                shape.logits,
            )
            for shape in ranks
        ]
    )
