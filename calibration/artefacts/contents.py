"""The contents of an artefact: its files, its manifest, and its tables with their JSON Schemas.

manifest.json            the command, the program, the machine, the inputs, the tables
checksums.sha256         SHA-256 of every other file, in the format of sha256sum
inputs/                  every file that the command read
rows/NAME.jsonl          a table, one JSON object per line
rows/NAME.schema.json    the JSON Schema of its rows
results/                 the documents that the command wrote
logs/                    what programs printed
summary.txt              the statistics of the requests in the order of an MLPerf summary
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

#: Version of the form of the manifest.
SCHEMA_VERSION: Final = 1

MANIFEST: Final = "manifest.json"

CHECKSUMS: Final = "checksums.sha256"

INPUTS: Final = "inputs"

ROWS: Final = "rows"

RESULTS: Final = "results"

LOGS: Final = "logs"

SUMMARY: Final = "summary.txt"

#: Whether the rows of an artefact were simulated, measured, or some of each.
Kind = Literal["simulated", "measured", "mixed"]

REQUESTS: Final = "requests"


class RecordedFile(BaseModel, extra="forbid", frozen=True):
    """A file of an artefact: its path below the folder, its digest, its size, and the path that the user gave."""

    path: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)
    original: str = ""


class RecordedTable(BaseModel, extra="forbid", frozen=True):
    """A table of an artefact and the number of its rows."""

    name: str
    n_rows: int = Field(ge=0)


class Manifest(BaseModel, extra="forbid", frozen=True):
    """What was run, on what, and from which inputs."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Kind
    command: list[str] = Field(min_length=1)
    created_at: str
    program: dict[str, Any]
    seeds: dict[str, int]
    environment: dict[str, Any]
    inputs: list[RecordedFile]
    tables: list[RecordedTable]
    wrapped: bool = False  # whether `calibrate artefact record` ran the command, which knows no artefacts itself
    notes: list[str] = []


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the JSON types of its values, and its meaning."""

    types: tuple[str, ...]
    meaning: str
    values: tuple[str, ...] = ()


_SECONDS: Final = ("number", "null")

#: The parts of an end-to-end time, under the names of `calibration.complexity.records.PARTS`.
_PARTS: Final = ("client_network", "tokenise", "encode", "queue", "prefill", "transfer", "decode", "detokenise")

#: The columns of the table `requests`, one row per request.
REQUEST_COLUMNS: Final[Mapping[str, Column]] = {
    "source": Column(("string",), "whether the row was simulated or measured", ("simulated", "measured")),
    "trial": Column(("string",), "name of the run that the request belongs to"),
    "request_id": Column(("integer",), "position of the request in its run"),
    "arrival_s": Column(_SECONDS, "when the client sent the request, from the start of the run"),
    "input_tokens": Column(("number", "null"), "tokens of the prompt"),
    "output_tokens": Column(("number", "null"), "generated tokens"),
    "cached_tokens": Column(("integer", "null"), "tokens of the prompt that a prefix cache held"),
    "ttft_s": Column(_SECONDS, "from sending the request to its first token"),
    "tpot_s": Column(_SECONDS, "(last token - first token) / (output tokens - 1)"),
    "e2e_s": Column(_SECONDS, "from sending the request to its last token"),
    "queue_s": Column(_SECONDS, "from the router to the first step of the engine"),
    "preemptions": Column(("integer", "null"), "times the engine interrupted the request"),
    "replica": Column(("integer", "null"), "number of the replica that served the request"),
    "status": Column(("string",), "completed, or why not"),
    **{f"part_{name}_s": Column(_SECONDS, f"the part of e2e_s that is {name.replace('_', ' ')}") for name in _PARTS},
}


def schema_of(title: str, columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return the JSON Schema of the rows of a table; every column is required, and there are no others."""
    properties = {
        name: {
            "type": list(column.types) if len(column.types) > 1 else column.types[0],
            "description": column.meaning,
            **({"enum": list(column.values)} if column.values else {}),
        }
        for name, column in columns.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "type": "object",
        "properties": properties,
        "required": list(columns),
        "additionalProperties": False,
    }


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def row_fault(row: object, schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a row under a schema of the form of `schema_of`; None if nothing is."""
    if not isinstance(row, dict):
        return "a row is not an object"
    properties = schema.get("properties", {})
    if missing := [name for name in schema.get("required", ()) if name not in row]:
        return f"{missing[0]} is missing"
    for name, value in row.items():
        if name not in properties:
            if schema.get("additionalProperties", True) is False:
                return f"{name} is not in the schema"
            continue
        allowed = properties[name].get("type", list(_TYPES))
        allowed = [allowed] if isinstance(allowed, str) else allowed
        plain = not isinstance(value, bool) or "boolean" in allowed
        if not plain or not any(isinstance(value, _TYPES[kind]) for kind in allowed):
            return f"{name} is not {' or '.join(allowed)}"
        if "enum" in properties[name] and value not in properties[name]["enum"]:
            return f"{name} is not one of {', '.join(map(str, properties[name]['enum']))}"
    return None


def json_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield rows as lines of JSON without NaN.

    Raises:
        ValueError: A value is not finite.
    """
    for row in rows:
        yield json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n"


def read_rows(folder: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table of an artefact that was checked."""
    with (folder / ROWS / f"{table}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def request_rows(columns: Mapping[str, Sequence[Any]], source: str, trial: str) -> Iterator[dict[str, Any]]:
    """Yield rows of the table `requests` from columns of equal lengths; a column that is not given is None.

    Args:
        columns: Values by the names of REQUEST_COLUMNS; NaN becomes None.
        source: "simulated" or "measured".
        trial: Name of the run.
    """
    n = len(next(iter(columns.values()), ()))
    for i in range(n):
        row = {name: _plain(columns[name][i]) if name in columns else None for name in REQUEST_COLUMNS}
        yield row | {
            "source": source,
            "trial": trial,
            "request_id": row["request_id"] if row["request_id"] is not None else i,
            "status": row["status"] or "completed",
        }


def _plain(value: Any) -> Any:
    """Return a value of numpy or Python as a value of JSON."""
    found = value.item() if hasattr(value, "item") else value
    return None if isinstance(found, float) and found != found else found
