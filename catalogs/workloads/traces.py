"""Request traces: recorded arrivals, lengths, block ids, conversations, models and adapters in the public formats."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.io.input_files import MOST_DATA_BYTES, read_limited
from catalogs.io.json_files import dotted, load_json
from catalogs.ui.words import counted
from catalogs.workloads.block_hashes import chained_hashes
from catalogs.workloads.media import RequestMedia
from catalogs.workloads.request_set import BlockHashes
from catalogs.workloads.service_classes import COLUMNS as SERVICE_COLUMNS
from catalogs.workloads.service_classes import ServiceLevels, is_empty
from catalogs.workloads.sessions.recorded import RecordedSessions, is_session, recorded_sessions, session_files
from catalogs.workloads.sessions.texts import BLOCK_TOKENS
from catalogs.workloads.trace_cells import (
    SESSION_COLUMNS,
    adapters,
    arrivals,
    conversations,
    datetimes,
    empty_cell_notices,
    numbered,
    numbers,
    token_counts,
)
from catalogs.workloads.trace_formats import (
    TraceFormat,
    count_tokens,
    is_text_dataset,
    recognise_clock,
    recognise_format,
)
from catalogs.workloads.trace_media import MEDIA_COLUMNS, trace_media

Columns = dict[str, Sequence[Any]]

#: Largest ratio of a trace to its gzip data; measured traces have ratios of 3 to 20.
MOST_EXPANSION: Final = 200

#: Recorded sessions of agents are recognised by a key in the first bytes of their file.
MOST_HEADER_BYTES: Final = 4096

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
    block_hashes: BlockHashes
    hash_block_tokens: int
    format: str
    notices: tuple[str, ...] = ()
    sessions: IntArray | None = None  # conversation of each request
    requested_models: IntArray | None = None
    models: tuple[str, ...] = ()
    adapters: IntArray | None = None  # LoRA adapters, numbered by first appearance; -1: none
    terms: ServiceLevels | None = None
    media: RequestMedia | None = None  # input_tokens does not include their tokens
    recorded: RecordedSessions | None = None  # sessions whose requests wait for each other


def read_trace(path: Path, hash_block_tokens: int | None = None, tokenizer: str | None = None) -> Trace:
    """Read a trace (.gz or not), whose format is recognised by its columns.

    Args:
        path: The trace file.
        hash_block_tokens: Tokens per entry of `hash_ids`; None means that of the format, or the usual size that fits.
        tokenizer: For text datasets only (ShareGPT, Alpaca): a tokenizer.json or a transformers tokenizer.

    Raises:
        InputError: A row breaks a rule; the message names the first such row, counted from 1.
    """
    where = f"trace {path.name or path}"
    if path.is_dir():
        return _session_trace(
            [each for file in session_files(path) for each in _sessions(_content(file, where), where)], where
        )
    content = _content(path, where)
    if content.lstrip()[:1] == b"{" and b'"hash_id_scope"' in content[:MOST_HEADER_BYTES]:
        return _session_trace(_sessions(content, where), where)
    columns = _columns(content, where)
    if is_text_dataset(columns):
        inputs, outputs, notices = count_tokens(columns, tokenizer, where)
        return Trace(None, inputs, outputs, None, 16, "text", notices)
    kind = recognise_format(columns, where)
    columns, sorted_notice = _by_arrival(columns, kind, where)
    known = {name: column for name, column in columns.items() if name != "model" or kind.names_models}
    trace = _trace(columns, kind, hash_block_tokens, where)
    media = trace_media(columns, where)
    if media is not None and trace.block_hashes is not None:
        rule = (
            f"{where}: images, videos and audio are not simulated with hash_ids, which count one model's tokens of them"
        )
        raise InputError(rule, ", ".join(n for n in MEDIA_COLUMNS if n in columns), hint="leave out one of the columns")
    labels = trace_labels(known, where) | {"terms": ServiceLevels.of(columns, where), "media": media}
    if kind.drops_failed:  # the labels of the requests that are left
        keep = numbers(columns[kind.output_tokens], kind.output_tokens, where) != 0
        labels = {name: label if name == "models" or label is None else label[keep] for name, label in labels.items()}
    notices = (*trace.notices, *sorted_notice, *_unused(known, columns, kind, where))
    return replace(trace, **labels, notices=(*notices, *empty_cell_notices(columns, where)))


def _sessions(content: bytes, where: str) -> list[Any]:
    """Return the recorded sessions of a file: one JSON object, or one on each line."""
    text = content.decode("utf-8", "replace").strip()
    try:
        return [load_json(text)]
    except json.JSONDecodeError:
        return _json_rows(text, where)


def _session_trace(sessions: list[Any], where: str) -> Trace:
    """Return the trace of recorded sessions of agents."""
    wrong = next((i for i, session in enumerate(sessions, 1) if not is_session(session)), None)
    if wrong is not None:
        raise InputError(f"{where}: session {wrong} must be an object with the keys requests and hash_id_scope")
    found = recorded_sessions(sessions, where)
    drawn = found.sessions
    return Trace(
        arrival_s=None,
        input_tokens=drawn.inputs,
        output_tokens=drawn.outputs,
        block_hashes=drawn.texts,
        hash_block_tokens=BLOCK_TOKENS,
        format="Weka",
        sessions=drawn.session,
        recorded=found,
    )


def _unused(known: Columns, columns: Columns, kind: TraceFormat, where: str) -> tuple[str, ...]:
    """Return a notice that names the columns which are not read, if there are any; `known` may be read."""
    session = next((name for name in SESSION_COLUMNS if name in known), None)
    chain = ("chat_id", "parent_chat_id")
    used = {*kind.columns, *MEDIA_COLUMNS, "hash_ids", "model", "adapter", *SERVICE_COLUMNS, session}
    used |= set(chain) if session is None and set(chain) <= set(columns) else set()
    unused = [name for name in columns if name not in used or name not in known]
    return (f"{where}: columns that are not used: {', '.join(unused)}",) if unused else ()


def trace_labels(columns: Mapping[str, Sequence[Any]], where: str) -> dict[str, Any]:
    """Return the conversations, models and adapters in the columns of a trace, as fields of `Trace`.

    Raises:
        InputError: A row has no model although the trace has models, or a label is not a text or a number.
    """
    sessions = next((numbered(columns[c], c, where)[0] for c in SESSION_COLUMNS if c in columns), None)
    if sessions is None and "chat_id" in columns and "parent_chat_id" in columns:
        sessions = conversations(columns["chat_id"], columns["parent_chat_id"], where)
    found = {"sessions": sessions, "adapters": adapters(columns["adapter"], where) if "adapter" in columns else None}
    if "model" not in columns:
        return found
    missing = next((i for i, name in enumerate(columns["model"], 1) if is_empty(name)), None)
    if missing is not None:
        raise InputError(f"{where}: model of row {missing} is missing")
    wrong = next((i for i, name in enumerate(columns["model"], 1) if not isinstance(name, str | int)), None)
    if wrong is not None:
        raise InputError(f"{where}: model of row {wrong} must be a name", columns["model"][wrong - 1])
    wanted, names = numbered([str(name) for name in columns["model"]], "model", where)
    return found | {"requested_models": wanted, "models": tuple(map(str, names))}


def _content(path: Path, where: str) -> bytes:
    raw = read_limited(path, f"{where}: cannot be read", MOST_DATA_BYTES)
    content = _unzipped(raw, where) if raw[:2] == b"\x1f\x8b" else raw
    if not content.strip():
        raise InputError(f"{where} is empty")
    return content


def _unzipped(raw: bytes, where: str) -> bytes:
    """Return the content of gzip data; data that expands like no trace is refused before it fills the memory."""
    most = min(MOST_DATA_BYTES, max(MOST_EXPANSION * len(raw), 2**20))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            content = file.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{where}: gzip data is cut short or damaged") from None
    if len(content) > most:
        raise InputError(f"{where}: gzip data expands to over {most / 2**20:.0f} MiB, which no trace of its size does")
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
    except (pa.ArrowException, OSError, ValueError) as e:
        raise InputError(f"{where} is not readable parquet ({[*str(e).splitlines(), type(e).__name__][0]})") from None
    if len(set(table.column_names)) < len(table.column_names):
        raise InputError(f"{where}: two columns have the same name")
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _csv_columns(text: str, where: str) -> Columns:
    try:
        lines = [row for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error as e:
        raise InputError(f"{where} is not valid CSV ({e})") from None
    header, rows = (lines[0], lines[1:]) if lines else ([], [])
    names = [name.strip() for name in header]
    other = next((mark for mark in (";", "\t") if len(names) == 1 and mark in names[0]), None)
    if other is not None:  # tables of spreadsheets, in which a comma may be the decimal point
        raise InputError(f"{where}: columns are separated by commas", names[0], names[0].replace(other, ","))
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise InputError(f"{where}: two columns have the same name", twice)
    ragged = next((i for i, row in enumerate(rows, 1) if len(row) != len(header)), None)
    if ragged is not None:
        raise InputError(
            f"{where}: row {ragged} needs {counted(len(header), 'column')}",
            ",".join(rows[ragged - 1]),
        )
    return dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}


def _json_columns(text: str, where: str) -> Columns:
    rows = _json_rows(text, where)
    for i, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise InputError(f"{where}: row {i} must be a JSON object", row)
    rows = [dotted(row) for row in rows]
    names = dict.fromkeys(chain.from_iterable(rows))
    return {name: [row.get(name) for row in rows] for name in names}


def _json_rows(text: str, where: str) -> list[Any]:
    lines = [line for line in text.split("\n") if line.strip()]
    whole = text if text.lstrip().startswith("[") else f"[{','.join(lines)}]"
    try:
        rows: list[Any] = load_json(whole)
        return rows
    except json.JSONDecodeError as e:
        if whole is text:
            raise InputError(f"{where}: line {e.lineno} is not valid JSON ({e.msg})") from None
    for i, line in enumerate(lines, 1):
        try:
            load_json(line)
        except json.JSONDecodeError as e:
            raise InputError(f"{where}: row {i} is not valid JSON ({e.msg})", line[-60:]) from None
    raise InputError(f"{where} must hold one JSON object per line")


def _trace(columns: Columns, kind: TraceFormat, block_tokens: int | None, where: str) -> Trace:
    notices: list[str] = []
    lengths = [numbers(columns[name], name, where) for name in (kind.input_tokens, kind.output_tokens)]
    arrivals, clock_notice = _arrivals(columns, kind, where)
    notices += [clock_notice] if clock_notice else []
    hashes = columns.get("hash_ids")
    if kind.drops_failed and (keep := lengths[1] != 0).sum() < len(keep):
        notices.append(f"{where}: left out {int((~keep).sum())} failed requests (0 output tokens)")
        lengths = [tokens[keep] for tokens in lengths]
        arrivals = arrivals[keep] if arrivals is not None else None
        hashes = None
    if not len(lengths[0]):
        raise InputError(f"{where} holds no completed requests")
    inputs = token_counts(lengths[0], kind.input_tokens, where)
    outputs = token_counts(lengths[1], kind.output_tokens, where)
    if hashes is None or all(map(is_empty, hashes)):
        return Trace(arrivals, inputs, outputs, None, 16, kind.name, tuple(notices))
    ids = _id_lists(hashes, where)
    without = sum(map(is_empty, hashes))
    if without:
        notices.append(f"{where}: hash_ids are missing in {without:,} of {len(ids):,} rows: these share no prefix")
    counts = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    size = block_tokens or kind.hash_block_tokens or _usual_size(counts, inputs, outputs, where)
    if size not in (block_tokens, kind.hash_block_tokens, USUAL_BLOCK_TOKENS[0]):
        notices.append(f"{where}: hash_ids are assumed to be blocks of {size} tokens; hash_block_tokens sets this")
    full = _full_blocks(counts, inputs, outputs, size, where)
    ids = [row if len(row) <= k else row[:k] for row, k in zip(ids, full.tolist(), strict=True)]
    return Trace(arrivals, inputs, outputs, chained_hashes(ids), size, kind.name, tuple(notices))


def _arrivals(columns: Columns, kind: TraceFormat, where: str) -> tuple[FloatArray | None, str]:
    """Return the arrival times in seconds, and a notice where their unit is a guess. Shape (n,)."""
    if kind.arrival is None:
        return None, ""
    times, notice = _times(columns, kind, kind.arrival, where)
    return arrivals(times, columns[kind.arrival], kind.arrival, where), notice


def _times(columns: Columns, kind: TraceFormat, name: str, where: str) -> tuple[FloatArray, str]:
    """Return the times in a column in seconds, in the order of the rows, and a notice as `_arrivals`. Shape (n,)."""
    unit: str | float
    if kind.clock == "recognised":
        unit, absolute, notice = recognise_clock(name, columns[name], where)
    else:
        unit, absolute, notice = {"s": 1.0, "ms": 1e-3}.get(kind.clock, "datetime"), kind.absolute, ""
    if isinstance(unit, str):
        times = datetimes(columns[name], name, where)
    else:
        times = numbers(columns[name], name, where)
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
    ordered: Columns = {name: [values[i] for i in order] for name, values in columns.items()}
    return ordered, (f"{where}: rows are sorted by {kind.arrival}",)


def _id_lists(hashes: Sequence[Any], where: str) -> list[list[int]]:
    for i, row in enumerate(hashes, 1):
        whole = isinstance(row, list) and set(map(type, row)) <= {int}
        valid = whole and (not row or 0 <= min(row) <= max(row) < 2**64)
        if not valid and not is_empty(row):
            raise InputError(f"{where}: hash_ids of row {i} must be a list of whole numbers from 0 to 2^64", row)
    return [row if isinstance(row, list) else [] for row in hashes]


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
