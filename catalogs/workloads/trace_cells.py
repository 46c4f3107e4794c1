"""The cells of a trace: numbers, times and labels, each checked, with a notice where an empty cell has a meaning.

A required cell that is empty or of another type is refused with its row. An optional cell may be empty, and the notice
says how many are and what that means.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.workloads.limits import MOST_COUNT
from catalogs.workloads.service_classes import is_empty, number_or_nan

#: Latest arrival, in seconds (300 years): beyond it, double precision no longer resolves microseconds.
LATEST_ARRIVAL_S: Final = 1e10

#: Columns with the conversation of a request: of plain traces and of BurstGPT.
SESSION_COLUMNS: Final = ("session", "session_id", "Session ID")

#: What an empty cell of an optional column means.
_MEANING_OF_EMPTY: Final = {
    **dict.fromkeys((*SESSION_COLUMNS, "chat_id"), "each is a conversation of its own"),
    "parent_chat_id": "each starts a conversation",
    "adapter": "they use the base model",
    "priority": "they have priority 0",
    "deadline_s": "they have no deadline",
    "timeout_s": "they have no timeout",
}

#: A date and a time of day with optional fraction and zone, as in ISO 8601.
_DATE_AND_TIME: Final = re.compile(r"(\d{4})-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?")

#: Years whose nanoseconds fit 64 bits.
_YEARS: Final = range(1700, 2200)


def empty_cell_notices(columns: Mapping[str, Sequence[Any]], where: str) -> tuple[str, ...]:
    """Return one notice for each optional column with empty cells: their number, and what they mean."""
    found = []
    for name, meaning in _MEANING_OF_EMPTY.items():
        empty = sum(map(is_empty, columns.get(name, ())))
        if empty:
            found.append(f"{where}: {name} is empty in {empty:,} of {len(columns[name]):,} rows: {meaning}")
    return tuple(found)


def numbers(values: Sequence[Any], name: str, where: str) -> FloatArray:
    """Return the numbers of a column. Shape (n,).

    Raises:
        InputError: A cell is empty, not a number (true and false are none), or not finite.
    """
    kinds = set(map(type, values))
    try:
        plain = kinds <= {int, float} or kinds == {str}
        found = np.array(values if plain else [*map(number_or_nan, values)], dtype=np.float64)
    except (ValueError, OverflowError):
        found = np.array([*map(number_or_nan, values)], dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(found))
    if bad.size:
        value = values[bad[0]]
        raise InputError(
            f"{where}: {name} of row {bad[0] + 1} must be a number", "missing" if is_empty(value) else value
        )
    return found


def token_counts(tokens: FloatArray, name: str, where: str) -> IntArray:
    """Return numbers of tokens as integers. Shape (n,).

    Raises:
        InputError: A number is not whole, below one, or above MOST_COUNT.
    """
    bad = np.flatnonzero((tokens < 1) | (tokens != np.floor(tokens)) | (tokens > MOST_COUNT))
    if bad.size:
        value = float(tokens[bad[0]])
        rule = f"at most {MOST_COUNT:,}" if value > MOST_COUNT else "a whole number >= 1"
        raise InputError(f"{where}: {name} of row {bad[0] + 1} must be {rule}", value)
    return tokens.astype(np.int64)


def datetimes(values: Sequence[Any], name: str, where: str) -> FloatArray:
    """Return seconds after the first time. Shape (n,).

    Time zones are dropped, since a trace is written in one zone.

    Raises:
        InputError: A cell is empty or not a date with a time of day.
    """
    text = [str(v).strip().removesuffix("Z").removesuffix("+00:00") for v in values]
    bad = next((i for i, value in enumerate(text) if not _is_date_and_time(value)), None)
    if bad is not None:
        value = "missing" if is_empty(values[bad]) else values[bad]
        raise InputError(f"{where}: {name} of row {bad + 1} must be a date and time", value, "2024-05-31 12:00:00.5")
    try:
        stamps = np.array(text, dtype="datetime64[ns]")
    except ValueError:
        bad = next(i for i, value in enumerate(text) if not _exists(value))
        raise InputError(f"{where}: {name} of row {bad + 1} must be a date and time that exists", values[bad]) from None
    return np.asarray((stamps - stamps[0]).astype(np.int64) / 1e9)


def _is_date_and_time(text: str) -> bool:
    found = _DATE_AND_TIME.fullmatch(text)
    return found is not None and int(found[1]) in _YEARS


def _exists(text: str) -> bool:
    try:
        np.datetime64(text, "ns")
    except ValueError:
        return False
    return True


def arrivals(times: FloatArray, values: Sequence[Any], name: str, where: str) -> FloatArray:
    """Return arrival times in seconds after checking that they do not decrease and have a sensible size. Shape (n,).

    Args:
        times: The arrival times in seconds.
        values: The cells that they were read from, for messages.
        name: The column.
        where: The trace, for messages.

    Raises:
        InputError: A time is earlier than the one before it, or negative, or later than LATEST_ARRIVAL_S.
    """
    back = np.flatnonzero(np.diff(times) < 0)
    if back.size:
        row = int(back[0]) + 2
        rule = f"{where}: {name} must not decrease, but row {row} is earlier than row {row - 1}"
        raise InputError(rule, values[row - 1])
    if times[0] < 0:
        raise InputError(f"{where}: {name} of row 1 must not be negative", values[0])
    if times[-1] > LATEST_ARRIVAL_S:
        rule = f"{where}: {name} of row {len(times)} is over {LATEST_ARRIVAL_S:.0e} seconds after the start"
        raise InputError(rule, values[-1])
    return times


def numbered(values: Sequence[Any], name: str, where: str) -> tuple[IntArray, list[Hashable]]:
    """Return labels as numbers by first appearance (shape (n,)), and the labels; each empty cell has its own number.

    Raises:
        InputError: A label is not a text or a number.
    """
    known: dict[Hashable, int] = {}
    labels = [("row", i) if empty else v for i, (v, empty) in enumerate(_labels(values, name, where))]
    return np.array([known.setdefault(v, len(known)) for v in labels], dtype=np.int64), list(known)


def adapters(values: Sequence[Any], where: str) -> IntArray:
    """Return adapter names as numbers by first appearance; -1 where there is no name. Shape (n,).

    Raises:
        InputError: A name is not a text or a number.
    """
    known: dict[str, int] = {}
    names = ["" if empty else str(v) for v, empty in _labels(values, "adapter", where)]
    return np.array([known.setdefault(name, len(known)) if name else -1 for name in names], dtype=np.int64)


def conversations(ids: Sequence[Any], parents: Sequence[Any], where: str) -> IntArray:
    """Return the conversation of each request, where turns refer to the previous turn (Bailian; none: -1). Shape (n,).

    Raises:
        InputError: A label is not a text or a number.
    """
    root: dict[Hashable, Hashable] = {}
    own = [("row", i) if empty else v for i, (v, empty) in enumerate(_labels(ids, "chat_id", where))]
    before = [None if empty else v for v, empty in _labels(parents, "parent_chat_id", where)]
    for label, parent in zip(own, before, strict=True):
        root[label] = root.get(parent, label)
    return numbered([str(root[label]) for label in own], "chat_id", where)[0]


def _labels(values: Sequence[Any], name: str, where: str) -> list[tuple[Any, bool]]:
    """Return each label with whether it is empty."""
    for i, value in enumerate(values, 1):
        if not isinstance(value, str | int | float | None):
            raise InputError(f"{where}: {name} of row {i} must be a text or a number", value)
    return [(value, is_empty(value)) for value in values]
