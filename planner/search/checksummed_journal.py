"""The file of a study: the records of Optuna's journal storage, one JSON object per line, each with a checksum.

A checksum covers its own record and all records before it, so that a changed, missing, repeated or foreign record is
found. One process writes at a time. A record counts once its line is complete: what a killed process or a full disk
left of a record is removed before the next one is written, and nothing is ever joined to it. Optuna's own journal files
have no checksums; they are continued with checksums.
"""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, Final

from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileOpenLock

from catalogs.errors import InputError
from catalogs.ui.interrupts import interrupts_held

try:
    import fcntl
except ModuleNotFoundError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

#: How the first record of every study begins; a file that begins otherwise is never changed.
_HEAD: Final = b'{"op_code":'

_SEAL: Final = re.compile(rb',"crc32":"([0-9a-f]{8})"}$')

#: Seconds to wait for another process that writes a record, which takes milliseconds.
LOCK_WAIT_S: Final = 30.0

_LOCK_PAUSE_S: Final = 0.005

Record = dict[str, Any]


class StudyStorage(JournalStorage):
    """Optuna's storage in a file. Ctrl-C never leaves its copy in memory behind the file."""

    def _sync_with_backend(self) -> None:
        with interrupts_held():
            super()._sync_with_backend()


class StudyFile(BaseJournalBackend):
    """The records of one file, which many processes may extend.

    Args:
        path: The file, which is created if it is missing.
        notify: Receives one line if an incomplete record was removed.

    Raises:
        InputError: The file is damaged, is not the file of a study, or cannot be used.
    """

    def __init__(self, path: Path, notify: Callable[[str], None]) -> None:
        self._path = path
        self._notify = notify
        self._ends = [0]  # the offset behind each record that was checked, in bytes
        self._checksum = 0
        self._is_sealed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():
                raise InputError("the study file is not a regular file", str(path), hint="give another --study file")
            open(path, "ab").close()
            with self._locked() as file:
                self._check_new(file)
        except OSError as error:
            raise self._unusable(error) from None

    def read_logs(self, log_number_from: int) -> list[Record]:
        """Return the complete records from this number on.

        Raises:
            InputError: The file is damaged or cannot be read.
        """
        try:
            with open(self._path, "rb", buffering=0) as file:
                return self._read(file, log_number_from)[0]
        except OSError as error:
            raise self._unusable(error) from None

    def append_logs(self, logs: list[Record]) -> None:
        """Write records to the disk, all of them or none.

        Raises:
            InputError: The file is damaged or cannot be written, for example on a full disk.
        """
        try:
            with self._locked() as file:
                self._check_new(file)
                end, checksum, lines = self._ends[-1], self._checksum, []
                for log in logs:
                    body = json.dumps(log, separators=(",", ":")).encode()
                    checksum = zlib.crc32(body, checksum)
                    lines.append(body[:-1] + b',"crc32":"%08x"}\n' % checksum)
                file.seek(end)
                try:
                    _write(file, b"".join(lines))
                except OSError:
                    file.truncate(end)  # where this fails too, the next writer removes what is there
                    raise
                self._check_new(file)
        except OSError as error:
            rule = f"the study file cannot be written ({error.strerror}); it keeps the results so far"
            raise InputError(rule, str(self._path)) from None

    def _check_new(self, file: FileIO) -> None:
        """Check the records that other processes have written, and remove an incomplete last one.

        No other process may write meanwhile.
        """
        _, rest = self._read(file, len(self._ends) - 1)
        if not rest:
            return
        if len(self._ends) == 1 and rest[: len(_HEAD)] != _HEAD[: len(rest)]:
            raise self._foreign()
        file.truncate(self._ends[-1])
        self._notify(f"{self._path}: removed an incomplete record at the end; the results before it are kept")

    @interrupts_held()
    def _read(self, file: FileIO, first: int) -> tuple[list[Record], bytes]:
        """Return the records from number `first` on, and the bytes behind the last complete one."""
        if os.fstat(file.fileno()).st_size < self._ends[-1]:
            raise InputError("the study file was replaced or cut while a search used it", str(self._path))
        file.seek(self._ends[first])
        *lines, rest = file.readall().split(b"\n")
        found: list[Record] = []
        for number, line in enumerate(lines, start=first):
            record = self._old(line) if number + 1 < len(self._ends) else self._new(line)
            if record is None:
                raise self._foreign() if number == 0 and not line.startswith(_HEAD) else self._damaged(number)
            found.append(record)
        return found, rest

    def _new(self, line: bytes) -> Record | None:
        """Return the next record, which then counts as checked; None if it is damaged."""
        seal = _SEAL.search(line)
        body = line if seal is None else line[: seal.start()] + b"}"
        checksum = zlib.crc32(body, self._checksum)
        if self._is_sealed if seal is None else int(seal[1], 16) != checksum:
            return None
        record = _parsed(body)
        if record is not None:
            self._ends.append(self._ends[-1] + len(line) + 1)
            self._checksum, self._is_sealed = checksum, seal is not None
        return record

    def _old(self, line: bytes) -> Record | None:
        """Return a record that was checked when it was first read; None if it has been damaged since."""
        seal = _SEAL.search(line)
        return _parsed(line if seal is None else line[: seal.start()] + b"}")

    @contextmanager
    def _locked(self) -> Iterator[FileIO]:
        """Open the file for the only process that writes it meanwhile. The lock of a killed process ends with it."""
        with open(self._path, "r+b", buffering=0) as file:
            if (release := self._lock(file)) is None:
                rule = f"another process has locked the study file for {LOCK_WAIT_S:.0f} s"
                raise InputError(rule, str(self._path), hint="end or continue that process")
            try:
                yield file
            finally:
                release()

    def _lock(self, file: FileIO) -> Callable[[], object] | None:
        until = time.monotonic() + LOCK_WAIT_S
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lambda: fcntl.flock(file, fcntl.LOCK_UN)  # also for copies of the file in forked processes
            except BlockingIOError:
                if time.monotonic() > until:
                    return None
                time.sleep(_LOCK_PAUSE_S)
            except OSError:  # a file system without such locks
                break
        lock = JournalFileOpenLock(str(self._path.absolute()))
        lock.acquire()
        return lock.release

    def _unusable(self, error: OSError) -> InputError:
        return InputError(f"the study file cannot be used ({error.strerror})", str(self._path))

    def _foreign(self) -> InputError:
        return InputError("the study file is not a journal of earlier searches", str(self._path))

    def _damaged(self, number: int) -> InputError:
        rule = f"the study file is damaged at line {number + 1}; no result of it was used"
        good = f"head -n {number} {self._path} > repaired.log keeps the results before that line"
        return InputError(rule, str(self._path), hint=good if number else "give a new --study file")


def _parsed(body: bytes) -> Record | None:
    try:
        record = json.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("op_code"), int) else None


def _write(file: FileIO, data: bytes) -> None:
    """Write all bytes to the disk; a full disk may take a part of them before it fails."""
    while data:
        data = data[file.write(data) or 0 :]
    os.fsync(file.fileno())
