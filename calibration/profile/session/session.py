"""Rows of a profile on disk: one JSON line per measured shape, flushed to disk before the next shape starts."""

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
    """A folder with rows.jsonl and manifest.json; `rows` holds the rows of the file in the order measured."""

    folder: Path
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path, notify: Callable[[str], None]) -> Session:
        """Create the folder, or resume with the rows in it.

        Damaged lines and repeated shapes are dropped, and `notify` receives one line about them.

        Raises:
            InputError: If the folder cannot be read or written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / ROWS_NAME
            raw = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise InputError(f"cannot use the profile's folder ({error.strerror})", str(folder)) from None
        rows, dropped, good = _parse(raw)
        session = cls(folder, rows)
        if dropped:
            notify(
                f"{ROWS_NAME}: dropped {dropped} damaged or repeated line{'s' * (dropped > 1)}, kept {len(rows)} rows"
            )
        if raw != good:
            session._rewrite(good)
        return session

    def append(self, row: Row) -> None:
        """Write a row and flush it to disk.

        Raises:
            InputError: If the row cannot be written, for example on a full disk. Earlier rows are kept.
        """
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
        """Seconds that measuring all rows took."""
        return float(sum(r["elapsed_s"] for r in self.rows))

    def _rewrite(self, data: bytes) -> None:
        part = self.folder / f".{ROWS_NAME}.part"
        try:
            part.write_bytes(data)
            os.replace(part, self.folder / ROWS_NAME)
        except OSError as error:
            raise InputError(f"cannot repair the rows ({error.strerror})", str(self.folder)) from None

    def _cut(self, size: int) -> None:
        """Remove an incomplete line; where that fails, the next start drops it."""
        try:
            os.truncate(self.folder / ROWS_NAME, size)
        except OSError:
            return


def _parse(raw: bytes) -> tuple[list[Row], int, bytes]:
    """Return the rows, the number of dropped lines, and the bytes of the kept lines."""
    rows: list[Row] = []
    good: list[bytes] = []
    seen: set[str] = set()
    lines = raw.split(b"\n")
    dropped = 0
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        row = _row(line) if i < len(lines) - 1 else None  # A last line without a line break is incomplete.
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
