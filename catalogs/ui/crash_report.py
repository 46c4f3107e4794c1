"""The file that keeps the traceback of an internal error, so that the terminal shows one line only.

Every command imports this module, so modules that only a report needs are imported when one is written.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Reports kept in the folder; older ones are removed.
KEPT_REPORTS: Final = 20

#: Longest command line and longest message in a report, in characters.
LONGEST_TEXT: Final = 10_000


def write_crash_report(name: str, arguments: list[str], error: BaseException) -> Path | None:
    """Write the traceback of `error` to a new file, and return its path; None where no folder is writable.

    The file is in the user's state folder (`platformdirs.user_state_dir`), or else in the temporary folder.

    Args:
        name: The command, which begins the name of the file.
        arguments: The command line after the command.
        error: The exception that reached the entry point.
    """
    text = _report(name, arguments, error)
    for folder in _folders():
        with suppress(OSError, ValueError, RuntimeError):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            _remove_old(folder)
            return path
    return None


def summary(error: BaseException) -> str:
    """Return the type and the message of an error on one line of at most 200 characters."""
    try:
        message = " ".join(str(error)[:LONGEST_TEXT].split())
    except Exception:  # an exception of a library may fail to describe itself
        message = ""
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if len(text) <= 200 else f"{text[:199]}…"


def _folders() -> Iterator[Path]:
    with suppress(ImportError, RuntimeError):
        import platformdirs

        yield Path(platformdirs.user_state_dir("llm-capacity-planner", appauthor=False)) / "crashes"
    import tempfile

    yield Path(tempfile.gettempdir())


def _report(name: str, arguments: list[str], error: BaseException) -> str:
    from importlib import metadata

    try:
        version = metadata.version("llm-capacity-planner")
    except metadata.PackageNotFoundError:
        version = "unknown"
    command = shlex.join([name, *arguments])[:LONGEST_TEXT]
    where = f"llm-capacity-planner {version}, Python {platform.python_version()}, {platform.platform()}"
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:  # an exception of a library may fail to describe itself
        lines = "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
    return f"{command}\n{where}\nworking folder {_working_folder()}\n\n{lines}"


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "unknown (removed)"


def _remove_old(folder: Path) -> None:
    """Keep the newest reports of our own folder only."""
    if folder.name != "crashes":
        return
    reports = sorted(folder.glob("*.txt"), key=lambda file: file.stat().st_mtime)
    for file in reports[:-KEPT_REPORTS]:
        file.unlink(missing_ok=True)


def show_on_stderr(line: str) -> None:
    """Print one line on stderr; do nothing where stderr is closed or full."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
