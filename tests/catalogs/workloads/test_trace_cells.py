"""Every cell of every trace format, emptied or replaced in turn: it is refused with its row, or a notice names it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from catalogs.errors import InputError
from catalogs.workloads.trace_formats import FORMATS
from catalogs.workloads.workload import load_workload

CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "corpus"
FILES = (
    *("azure.csv", "burstgpt.csv", "plain.csv", "vidur.csv", "vidur_lengths.csv", "lengths.csv", "mooncake.jsonl"),
    *("bailian.jsonl", "llmservingsim.jsonl"),
)
#: Columns of the publishers that no request follows from.
UNUSED = {"Model", "Total tokens", "Log Type", "type", "turn"}


def table(name: str) -> list[dict[str, Any]]:
    text = (CORPUS / name).read_text()
    return list(csv.DictReader(io.StringIO(text))) if name.endswith(".csv") else [*map(json.loads, text.splitlines())]


def written(rows: list[dict[str, Any]], path: Path) -> str:
    if path.suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def cells() -> Iterator[tuple[str, int, str]]:
    for name in FILES:
        rows = table(name)
        yield from ((name, i, column) for i in range(len(rows)) for column in rows[0] if column not in UNUSED)


def outcome(rows: list[dict[str, Any]], path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the line of a refusal, or the notices."""
    try:
        found = load_workload(written(rows, path))
        found.materialise()
    except InputError as error:
        return str(error), ()
    return "", found.notices


def test_the_files_cover_every_format() -> None:
    known = {load_workload(str(CORPUS / name)).source.partition(" trace")[0] for name in FILES}
    assert known == {kind.name for kind in FORMATS}


@pytest.mark.parametrize(("name", "row", "column"), cells())
def test_an_empty_cell_is_refused_or_noticed(name: str, row: int, column: str, tmp_path: Path) -> None:
    before = outcome(table(name), tmp_path / name)[1]
    for blank in ("", "  ") if name.endswith(".csv") else ("", "  ", None, "missing"):
        rows = table(name)
        rows[row][column] = blank
        if blank == "missing":
            del rows[row][column]
        line, notices = outcome(rows, tmp_path / name)
        about = [notice for notice in notices if notice not in before]
        assert line or about, blank
        assert column in line or any(column in notice for notice in about), blank
        if line and column != "hash_ids":  # without the ids of a row, the block size may fit no other row
            assert f"row {row + 1}" in line, blank


LABELS = {"session", "model", "adapter", "Session ID", "chat_id", "parent_chat_id"}


@pytest.mark.parametrize(("name", "row", "column"), [cell for cell in cells() if cell[2] not in LABELS])
def test_a_cell_of_another_type_is_refused(name: str, row: int, column: str, tmp_path: Path) -> None:
    for value in (True, [True], [[1]], {}, "x", "NaT", -1.5, 10**30, 1e300, float("nan"), float("inf")):
        if column in ("deadline_s", "timeout_s") and value in (10**30, 1e300, float("inf")):
            continue  # long or none, but valid
        if name == "burstgpt.csv" and value in (-1.5, 1e300, 10**30) and (row == 1 or column == "Timestamp"):
            continue  # tokens of a failed request, which is left out; a clock with any start
        rows = table(name)
        rows[row][column] = f'"{value}"' if name.endswith(".csv") else value
        line, notices = outcome(rows, tmp_path / name)
        assert line or (value != value and notices), value  # NaN stands for an empty cell


@pytest.mark.parametrize(
    "first", ["", "NaT", "now", "today", "2023-11", "5", "0001-01-01 00:00:00", "2023-02-30 00:00:00"]
)
def test_a_first_time_that_is_none_is_refused(first: str, tmp_path: Path) -> None:
    rows = table("azure.csv")
    rows[0]["TIMESTAMP"] = first
    line, _ = outcome(rows, tmp_path / "azure.csv")
    assert "TIMESTAMP of row 1 must be a date and time" in line


@pytest.mark.parametrize(
    ("column", "value"), [("TIMESTAMP", None), ("ContextTokens", None), ("GeneratedTokens", float("nan"))]
)
def test_nulls_of_parquet_are_refused(column: str, value: object, tmp_path: Path) -> None:
    rows = [{**row, "ContextTokens": 5.0, "GeneratedTokens": 7.0} for row in table("azure.csv")]
    rows[0][column] = None if column == "TIMESTAMP" else value
    line, _ = outcome(rows, tmp_path / "azure.parquet")
    assert f"{column} of row 1" in line


def test_labels_stay_with_their_requests_where_failed_ones_are_left_out() -> None:
    found = load_workload(str(CORPUS / "burstgpt.csv")).materialise()
    assert found.sessions is not None
    assert found.sessions.tolist() == [0, 0]  # sessions a, b (failed), a
    assert np.array_equal(found.input_tokens, [374, 396])


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("input_tokens,output_tokens,input_tokens\n1,2,3\n")
    with pytest.raises(InputError, match="two columns have the same name: got 'input_tokens'"):
        load_workload(str(path))
