"""Rows on disk as they are measured: one JSON line each, flushed to the device before the next shape starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from catalogs.errors import InputError

ROWS_NAME: Final = "rows.jsonl"

Row = dict[str, Any]


@dataclass(slots=True)
class Session:
    """A folder with rows.jsonl and manifest.json. `rows` are what the file holds, in the order measured."""

    folder: Path
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path, say: Callable[[str], None]) -> Session:
        """Create the folder or go on with the rows in it. Lines that are not whole rows are dropped, with one line to
        `say`; so is a shape measured twice. Raises InputError where the folder cannot be written or read."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / ROWS_NAME
            raw = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise InputError(f"cannot use the profile's folder ({error.strerror})", str(folder)) from None
        rows, dropped, good = _parse(raw)
        session = cls(folder, rows)
        if dropped:
            say(f"{ROWS_NAME}: dropped {dropped} damaged or repeated line{'s' * (dropped > 1)}, kept {len(rows)} rows")
        if raw != good:
            session._rewrite(good)
        return session

    def append(self, row: Row) -> None:
        """Write a row for good. Raises InputError where the disk is full; what was measured before is kept."""
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        path = self.folder / ROWS_NAME
        before = path.stat().st_size if path.exists() else 0
        try:
            with path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self._cut(before)
            kept = f"cannot write a row ({error.strerror}); {len(self.rows)} rows are kept"
            raise InputError(kept, str(path)) from None
        self.rows.append(row)

    @property
    def spent_s(self) -> float:
        """Measuring time of all rows."""
        return float(sum(r["elapsed_s"] for r in self.rows))

    def _rewrite(self, data: bytes) -> None:
        part = self.folder / f".{ROWS_NAME}.part"
        try:
            part.write_bytes(data)
            os.replace(part, self.folder / ROWS_NAME)
        except OSError as error:
            raise InputError(f"cannot repair the rows ({error.strerror})", str(self.folder)) from None

    def _cut(self, size: int) -> None:
        """Take back half a line, where the disk lets us; otherwise the next start drops it."""
        try:
            os.truncate(self.folder / ROWS_NAME, size)
        except OSError:
            return


def _parse(raw: bytes) -> tuple[list[Row], int, bytes]:
    """(rows, lines dropped, the bytes of the good lines)."""
    rows: list[Row] = []
    good: list[bytes] = []
    seen: set[str] = set()
    lines = raw.split(b"\n")
    dropped = 0
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        row = _row(line) if i < len(lines) - 1 else None  # a last line without its end was cut short
        if row is None or row["key"] in seen:
            dropped += 1
            continue
        seen.add(row["key"])
        rows.append(row)
        good.append(line + b"\n")
    return rows, dropped, b"".join(good)


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(row, dict) and {"key", "family", "role", "status", "elapsed_s"} <= row.keys()
    return row if whole else None
