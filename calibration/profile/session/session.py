"""Rows of a profile on disk: one JSON line per measured shape, flushed to disk before the next shape starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.io.output_files import write_atomically

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
        if dropped:
            lines = "line" if dropped == 1 else "lines"
            notify(f"{ROWS_NAME}: dropped {dropped} damaged or repeated {lines}, kept {len(rows)} rows")
        if raw != good:
            write_atomically(path, [good.decode()])
        return cls(folder, rows)

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
            with suppress(OSError):  # an incomplete line that cannot be removed now is dropped by the next start
                os.truncate(path, before)
            kept = f"cannot write a row ({error.strerror}); {len(self.rows)} rows are kept"
            raise InputError(kept, str(path)) from None
        self.rows.append(row)

    @property
    def spent_s(self) -> float:
        """Return the seconds that measuring all rows took."""
        return float(sum(r["elapsed_s"] for r in self.rows))


def _parse(raw: bytes) -> tuple[list[Row], int, bytes]:
    """Return the rows, the number of dropped lines, and the bytes of the kept lines."""
    *lines, incomplete = raw.split(b"\n")  # a last line without a line break is incomplete
    lines = [line for line in lines if line.strip()]
    kept: dict[str, tuple[Row, bytes]] = {}
    for line in lines:
        if (row := _row(line)) is not None:
            kept.setdefault(row["key"], (row, line + b"\n"))
    dropped = len(lines) + bool(incomplete.strip()) - len(kept)
    return [row for row, _ in kept.values()], dropped, b"".join(line for _, line in kept.values())


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_whole = isinstance(row, dict) and {"key", "family", "role", "status", "elapsed_s"} <= row.keys()
    return row if is_whole else None
