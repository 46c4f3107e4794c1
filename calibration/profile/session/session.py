"""Rows of a profile on disk: one JSON line per measured shape, flushed to disk before the next shape starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from catalogs.errors import InputError
from catalogs.io.output_files import write_atomically

ROWS_NAME: Final = "rows.jsonl"

LOCK_NAME: Final = ".lock"

Row = dict[str, Any]


@dataclass(slots=True)
class Session:
    """A folder with rows.jsonl and manifest.json; `rows` holds the rows of the file in the order measured."""

    folder: Path
    rows: list[Row] = field(default_factory=list)
    _lock: BinaryIO | None = None  # open while the session is, so that no second process extends it

    @classmethod
    def open(cls, folder: Path, notify: Callable[[str], None]) -> Session:
        """Create the folder, or resume with the rows in it.

        Damaged lines and repeated shapes are dropped, and `notify` receives one line about them.

        Raises:
            InputError: If the folder cannot be read or written, or another process extends the session in it.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = _locked(folder)
            raw = _raw(folder)
        except OSError as error:
            raise InputError(f"cannot use the profile's folder ({error.strerror})", str(folder)) from None
        rows, good = _parse(raw, notify)
        if raw != good:
            write_atomically(folder / ROWS_NAME, [good.decode()])
        return cls(folder, rows, lock)

    @classmethod
    def read(cls, folder: Path, notify: Callable[[str], None] = lambda _text: None) -> Session:
        """Return the session in a folder to read, also while another process extends it; nothing is changed.

        Damaged lines and repeated shapes are left out, and `notify` receives one line about them.

        Raises:
            InputError: If the folder cannot be read.
        """
        try:
            return cls(folder, _parse(_raw(folder), notify)[0])
        except OSError as error:
            raise InputError(f"cannot read the profile's folder ({error.strerror})", str(folder)) from None

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


def _raw(folder: Path) -> bytes:
    path = folder / ROWS_NAME
    return path.read_bytes() if path.exists() else b""


def _locked(folder: Path) -> BinaryIO | None:
    """Return a file of the folder that this process holds locked until it ends; None where there are no such locks."""
    try:
        import fcntl
    except ModuleNotFoundError:  # not a POSIX system
        return None
    file = (folder / LOCK_NAME).open("ab")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by child processes
    except (BlockingIOError, PermissionError):  # either, by POSIX
        file.close()
        rule = "another process measures into this folder"
        raise InputError(rule, str(folder), hint="wait for it, or choose another --out") from None
    except OSError:  # a file system without such locks
        file.close()
        return None
    return file


def _parse(raw: bytes, notify: Callable[[str], None]) -> tuple[list[Row], bytes]:
    """Return the rows and the bytes of their lines; `notify` receives a line if others were dropped."""
    *lines, incomplete = raw.split(b"\n")  # a last line without a line break is incomplete
    lines = [line for line in lines if line.strip()]
    kept: dict[str, tuple[Row, bytes]] = {}
    for line in lines:
        if (row := _row(line)) is not None:
            kept.setdefault(row["key"], (row, line + b"\n"))
    dropped = len(lines) + bool(incomplete.strip()) - len(kept)
    if dropped:
        what = "line" if dropped == 1 else "lines"
        notify(f"{ROWS_NAME}: dropped {dropped} damaged or repeated {what}, kept {len(kept)} rows")
    return [row for row, _ in kept.values()], b"".join(line for _, line in kept.values())


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_whole = isinstance(row, dict) and {"key", "family", "role", "status", "elapsed_s"} <= row.keys()
    return row if is_whole else None
