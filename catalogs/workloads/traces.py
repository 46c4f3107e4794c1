"""Request traces: recorded arrivals, lengths, block ids, conversations, models and adapters in the public formats."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.workloads.block_hashes import BlockIds, chained_hashes
from catalogs.workloads.service_classes import COLUMNS as SERVICE_COLUMNS
from catalogs.workloads.service_classes import ServiceLevels, number_or_nan
from catalogs.workloads.trace_formats import (
    TraceFormat,
    count_tokens,
    is_text_dataset,
    recognise_clock,
    recognise_format,
)

Columns = dict[str, Sequence[Any]]

#: Block sizes tried, in this order, where a file with `hash_ids` states none; the first is Mooncake's.
USUAL_BLOCK_TOKENS: Final = (512, 16, 32, 64, 128, 256, 1024)


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as read; arrays have shape (n,), or are None where the file does not record them.

    block_hashes are as in RequestSet: full blocks only, with ids that identify the whole prefix. requested_models holds
    indices in `models`.
    """

    arrival_s: FloatArray | None
    input_tokens: IntArray
    output_tokens: IntArray
    block_hashes: tuple[BlockIds, ...] | None
    hash_block_tokens: int
    format: str
    notices: tuple[str, ...] = ()
    sessions: IntArray | None = None  # conversation of each request
    requested_models: IntArray | None = None
    models: tuple[str, ...] = ()
    adapters: IntArray | None = None  # LoRA adapters, numbered by first appearance; -1: none
    terms: ServiceLevels | None = None


def read_trace(path: Path, hash_block_tokens: int | None = None, tokenizer: str | None = None) -> Trace:
    """Read a trace (.gz or not), whose format is recognised by its columns.

    Args:
        path: The trace file.
        hash_block_tokens: Tokens per entry of `hash_ids`; None means that of the format, or the usual size that fits.
        tokenizer: For text datasets only (ShareGPT, Alpaca): a tokenizer.json or a transformers tokenizer.

    Raises:
        InputError: A row breaks a rule; the message names the first such row, counted from 1.
    """
    where = f"trace {path.name}"
    columns = _columns(_content(path, where), where)
    if is_text_dataset(columns):
        inputs, outputs, notices = count_tokens(columns, tokenizer, where)
        return Trace(None, inputs, outputs, None, 16, "text", notices)
    kind = recognise_format(columns, where)
    columns, sorted_notice = _by_arrival(columns, kind, where)
    known = {name: column for name, column in columns.items() if name != "model" or kind.names_models}
    trace = _trace(columns, kind, hash_block_tokens, where)
    trace = replace(trace, notices=(*trace.notices, *sorted_notice, *_unused(known, columns, kind, where)))
    labels = trace_labels(known, where)
    complete = len(trace.input_tokens) == len(next(iter(columns.values())))  # otherwise rows were left out
    return replace(trace, **labels, terms=ServiceLevels.of(columns, where)) if complete else trace


def _unused(known: Columns, columns: Columns, kind: TraceFormat, where: str) -> tuple[str, ...]:
    """Return a notice that names the columns which are not read, if there are any; `known` may be read."""
    session = next((name for name in SESSION_COLUMNS if name in known), None)
    chain = ("chat_id", "parent_chat_id")
    used = {*kind.columns, "hash_ids", "model", "adapter", *SERVICE_COLUMNS, session}
    used |= set(chain) if session is None and set(chain) <= set(columns) else set()
    unused = [name for name in columns if name not in used or name not in known]
    return (f"{where}: columns that are not used: {', '.join(unused)}",) if unused else ()


def trace_labels(columns: Mapping[str, Sequence[Any]], where: str) -> dict[str, Any]:
    """Return the conversations, models and adapters in the columns of a trace, as fields of `Trace`.

    Raises:
        InputError: A row has no model although the trace has models.
    """
    sessions = next((_numbered(columns[c])[0] for c in SESSION_COLUMNS if c in columns), None)
    if sessions is None and "chat_id" in columns and "parent_chat_id" in columns:
        sessions = _chains(columns["chat_id"], columns["parent_chat_id"])
    found = {"sessions": sessions, "adapters": _adapters(columns["adapter"]) if "adapter" in columns else None}
    if "model" not in columns:
        return found
    missing = next((i for i, name in enumerate(columns["model"], 1) if not name), None)
    if missing is not None:
        raise InputError(f"{where}: model of row {missing} is missing")
    wanted, names = _numbered([str(name) for name in columns["model"]])
    return found | {"requested_models": wanted, "models": tuple(map(str, names))}


def _content(path: Path, where: str) -> bytes:
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{where}: gzip data is cut short or damaged") from None
    except OSError as e:
        raise InputError(f"{where}: cannot be read ({e.strerror})") from None
    if not content.strip():
        raise InputError(f"{where} is empty")
    return content


def _columns(content: bytes, where: str) -> Columns:
    if content[:4] == b"PAR1":
        columns = _parquet_columns(content, where)
    else:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InputError(f"{where} is not UTF-8 text, gzip or parquet") from None
        columns = (_json_columns if text.lstrip().startswith(("{", "[")) else _csv_columns)(text, where)
    if not columns or not len(next(iter(columns.values()))):
        raise InputError(f"{where} holds no requests")
    return columns


def _parquet_columns(content: bytes, where: str) -> Columns:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError) as e:
        raise InputError(f"{where} is not readable parquet ({str(e).splitlines()[0]})") from None
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _csv_columns(text: str, where: str) -> Columns:
    try:
        header, *rows = [row for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error as e:
        raise InputError(f"{where} is not valid CSV ({e})") from None
    ragged = next((i for i, row in enumerate(rows, 1) if len(row) != len(header)), None)
    if ragged is not None:
        raise InputError(f"{where}: row {ragged} needs {len(header)} columns", ",".join(rows[ragged - 1]))
    return dict(zip([name.strip() for name in header], zip(*rows, strict=True), strict=False)) if rows else {}


def _json_columns(text: str, where: str) -> Columns:
    rows = _json_rows(text, where)
    for i, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise InputError(f"{where}: row {i} must be a JSON object", row)
    rows = [_flat(row) for row in rows]
    names = dict.fromkeys(name for row in rows[:100] for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a row in which `{"usage": {"prompt_tokens": 5}}` is the column `usage.prompt_tokens`."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def _json_rows(text: str, where: str) -> list[Any]:
    lines = [line for line in text.split("\n") if line.strip()]
    whole = text if text.lstrip().startswith("[") else f"[{','.join(lines)}]"
    try:
        rows: list[Any] = json.loads(whole)
        return rows
    except json.JSONDecodeError as e:
        if whole is text:
            raise InputError(f"{where}: line {e.lineno} is not valid JSON ({e.msg})") from None
    for i, line in enumerate(lines, 1):
        try:
            json.loads(line)
        except json.JSONDecodeError as e:
            raise InputError(f"{where}: row {i} is not valid JSON ({e.msg})", line[-60:]) from None
    raise InputError(f"{where} must hold one JSON object per line")


def _trace(columns: Columns, kind: TraceFormat, block_tokens: int | None, where: str) -> Trace:
    notices: list[str] = []
    lengths = [_numbers(columns, name, where) for name in (kind.input_tokens, kind.output_tokens)]
    arrivals, clock_notice = _arrivals(columns, kind, where)
    notices += [clock_notice] if clock_notice else []
    hashes = columns.get("hash_ids")
    if kind.drops_failed and (keep := lengths[1] != 0).sum() < len(keep):
        notices.append(f"{where}: left out {int((~keep).sum())} failed requests (0 output tokens)")
        lengths = [tokens[keep] for tokens in lengths]
        arrivals = arrivals[keep] if arrivals is not None else None
        hashes = None
    inputs, outputs = _whole(lengths[0], kind.input_tokens, where), _whole(lengths[1], kind.output_tokens, where)
    if not len(inputs):
        raise InputError(f"{where} holds no completed requests")
    if hashes is None or not any(hashes):
        return Trace(arrivals, inputs, outputs, None, 16, kind.name, tuple(notices))
    ids = _id_lists(hashes, where)
    counts = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    size = block_tokens or kind.hash_block_tokens or _usual_size(counts, inputs, outputs, where)
    if size not in (block_tokens, kind.hash_block_tokens, USUAL_BLOCK_TOKENS[0]):
        notices.append(f"{where}: hash_ids are assumed to be blocks of {size} tokens; hash_block_tokens sets this")
    full = _full_blocks(counts, inputs, outputs, size, where)
    ids = [row if len(row) <= k else row[:k] for row, k in zip(ids, full.tolist(), strict=True)]
    return Trace(arrivals, inputs, outputs, chained_hashes(ids), size, kind.name, tuple(notices))


def _numbers(columns: Columns, name: str, where: str) -> FloatArray:
    try:
        found = np.array(columns[name], dtype=np.float64)
    except (ValueError, TypeError):
        found = np.array([number_or_nan(v) for v in columns[name]])
    bad = np.flatnonzero(~np.isfinite(found))
    if bad.size:
        value = columns[name][bad[0]]
        raise InputError(f"{where}: {name} of row {bad[0] + 1} must be a number", "missing" if value is None else value)
    return found


def _whole(tokens: FloatArray, name: str, where: str) -> IntArray:
    bad = np.flatnonzero((tokens < 1) | (tokens != np.floor(tokens)) | (tokens > 2**53))
    if bad.size:
        raise InputError(f"{where}: {name} of row {bad[0] + 1} must be a whole number >= 1", float(tokens[bad[0]]))
    return tokens.astype(np.int64)


def _arrivals(columns: Columns, kind: TraceFormat, where: str) -> tuple[FloatArray | None, str]:
    """Return the arrival times in seconds, and a notice where their unit is a guess. Shape (n,)."""
    if kind.arrival is None:
        return None, ""
    times, notice = _times(columns, kind, kind.arrival, where)
    back = np.flatnonzero(np.diff(times) < 0)
    if back.size:
        row = int(back[0]) + 2
        rule = f"{where}: {kind.arrival} must not decrease, but row {row} is earlier than row {row - 1}"
        raise InputError(rule, columns[kind.arrival][row - 1])
    if times[0] < 0:
        raise InputError(f"{where}: {kind.arrival} of row 1 must not be negative", columns[kind.arrival][0])
    return times, notice


def _times(columns: Columns, kind: TraceFormat, name: str, where: str) -> tuple[FloatArray, str]:
    """Return the times in a column in seconds, in the order of the rows, and a notice as `_arrivals`. Shape (n,)."""
    unit: str | float
    if kind.clock == "recognised":
        unit, absolute, notice = recognise_clock(name, columns[name], where)
    else:
        unit, absolute, notice = {"s": 1.0, "ms": 1e-3}.get(kind.clock, "datetime"), kind.absolute, ""
    if isinstance(unit, str):
        times = _datetimes(columns[name], name, where)
    else:
        times = _numbers(columns, name, where)
        times = (times - times[0] if absolute else times) * unit  # first the difference, which is exact
    return times - times[0] if absolute else times, notice


def _by_arrival(columns: Columns, kind: TraceFormat, where: str) -> tuple[Columns, tuple[str, ...]]:
    """Return the rows of a log in the order of their arrival, and a notice where they were not.

    Logs are often written in the order in which requests end, or newest first. In a public trace another order is a
    fault of the file.
    """
    if kind.arrival is None or kind.clock != "recognised":
        return columns, ()
    times, _ = _times(columns, kind, kind.arrival, where)
    if not (np.diff(times) < 0).any():
        return columns, ()
    order = np.argsort(times, kind="stable").tolist()
    ordered = {name: [values[i] for i in order] for name, values in columns.items()}
    return ordered, (f"{where}: rows are sorted by {kind.arrival}",)


def _datetimes(values: Sequence[Any], name: str, where: str) -> FloatArray:
    """Return seconds after the first time. Shape (n,).

    Time zones are dropped, since a trace is written in one zone.
    """
    text = [str(v).strip().removesuffix("Z").removesuffix("+00:00") for v in values]
    try:
        stamps = np.array(text, dtype="datetime64[ns]")
    except ValueError:
        bad = next(i for i, value in enumerate(text) if not _is_datetime(value))
        raise InputError(f"{where}: {name} of row {bad + 1} must be a date and time", values[bad]) from None
    return np.asarray((stamps - stamps[0]).astype(np.int64) / 1e9)


def _is_datetime(value: str) -> bool:
    try:
        return not np.isnat(np.datetime64(value, "ns"))
    except ValueError:
        return False


def _id_lists(hashes: Sequence[Any], where: str) -> list[list[int]]:
    for i, row in enumerate(hashes, 1):
        if row and not (isinstance(row, list) and set(map(type, row)) == {int} and min(row) >= 0):
            raise InputError(f"{where}: hash_ids of row {i} must be a list of whole numbers >= 0", row)
    return [row or [] for row in hashes]


def _blocks(tokens: IntArray, size: int) -> IntArray:
    return -(-tokens // size)


def _usual_size(counts: IntArray, inputs: IntArray, outputs: IntArray, where: str) -> int:
    """Return the first usual block size for which every list covers its prompt and at most prompt and answer."""
    for size in USUAL_BLOCK_TOKENS:
        if np.all((counts == 0) | ((counts >= inputs // size) & (counts <= _blocks(inputs + outputs, size)))):
            return size
    raise InputError(f"{where}: hash_ids fit none of the usual block sizes; state hash_block_tokens in a workload file")


def _full_blocks(counts: IntArray, inputs: IntArray, outputs: IntArray, size: int, where: str) -> IntArray:
    """Return the number of full blocks whose contents the file can identify. Shape (n,).

    Mooncake and Bailian give the last, partial block of each prompt an id of its own. It is dropped, since engines
    share full blocks only. Where some list is longer than its prompt, ids continue into the answer and count up to its
    end.
    """
    beyond = np.flatnonzero(counts > _blocks(inputs + outputs, size))
    if beyond.size:
        row = int(beyond[0])
        rule = f"{where}: row {row + 1} has more hash_ids than blocks of {size} tokens in its {inputs[row]} + "
        raise InputError(rule + f"{outputs[row]} tokens; hash_block_tokens is too large", int(counts[row]))
    names_answers = bool(np.any(counts > _blocks(inputs, size)))
    return (inputs + outputs if names_answers else inputs) // size


#: Columns with the conversation of a request: of plain traces and of BurstGPT.
SESSION_COLUMNS: Final = ("session", "session_id", "Session ID")


def _numbered(values: Sequence[Any]) -> tuple[IntArray, list[Hashable]]:
    """Return values as numbers by first appearance, and the distinct values; each missing value gets its own number."""
    known: dict[Hashable, int] = {}
    named = ((v if v not in (None, "") else ("row", i)) for i, v in enumerate(values))
    return np.array([known.setdefault(v, len(known)) for v in named], dtype=np.int64), list(known)


def _adapters(values: Sequence[Any]) -> IntArray:
    """Return adapter names as numbers by first appearance; -1 where there is no name."""
    known: dict[str, int] = {}
    named = [str(v) if v not in (None, "") and v == v else "" for v in values]
    return np.array([known.setdefault(name, len(known)) if name else -1 for name in named], dtype=np.int64)


def _chains(ids: Sequence[Any], parents: Sequence[Any]) -> IntArray:
    """Return the conversation of each request, where turns refer to the previous turn (Bailian; none: -1)."""
    root: dict[Hashable, Hashable] = {}
    for own, parent in zip(ids, parents, strict=True):
        root[own] = root.get(parent, own)
    return _numbered([root[own] for own in ids])[0]
