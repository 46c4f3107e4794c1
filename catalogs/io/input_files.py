"""Reading of files that users name: every failure is one line, and no file is read beyond a limit.

`Path.is_file` raises for a name of more than 255 bytes; `is_file`, `is_folder` and `exists` do not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from catalogs.errors import InputError, nearest_name

#: Largest size of a document (a configuration, an answer), in bytes; those that are written have less than a tenth.
MOST_DOCUMENT_BYTES: Final = 32 * 2**20

#: Largest size of a file with one entry per request (a trace, the result of a load test), in bytes.
MOST_DATA_BYTES: Final = 512 * 2**20

#: How similar the whole name of a file of another kind must be.
_SIMILAR: Final = 0.75

#: Entries of a folder that are compared with the name of a file that does not exist.
MOST_ENTRIES: Final = 10_000

#: Most similar files whose content is checked. A judgement: reading each may take a moment, and less similar ones are
#: hardly meant.
_MOST_TRIED: Final = 5

#: Levels of nesting that a document may have.
MOST_LEVELS: Final = 100

#: Digits that an integer may have; 64-bit integers have up to 20.
MOST_DIGITS: Final = 30


def is_file(path: Path | str) -> bool:
    """Return whether a path leads to a file (or a pipe); False for a name that no file can have."""
    return os.path.exists(path) and not os.path.isdir(path)


def is_folder(path: Path | str) -> bool:
    """Return whether a path leads to a folder; False for a name that no folder can have."""
    return os.path.isdir(path)


def exists(path: Path | str) -> bool:
    """Return whether a path leads to anything; False for a name that nothing can have."""
    return os.path.exists(path)


def user_path(text: str) -> Path:
    """Return the path that a text means, where `~` is the home folder and an unknown user's `~name` is itself."""
    return Path(os.path.expanduser(text))


def nearest_file(path: Path, fits: Callable[[Path], bool] = lambda _: True) -> str | None:
    """Return the file in the same folder whose name is most similar; None if `path` exists or none is similar.

    Files of the same kind take precedence. Only for paths that the user of this machine has typed, because an error
    would show a distant user a name.

    Args:
        path: The path that leads to no file.
        fits: Returns whether a file is what the user can have meant; it is called for the most similar ones, in order.
    """
    if exists(path):
        return None
    try:
        with os.scandir(path.parent) as entries:
            files = [Path(entry.name) for entry in islice(entries, MOST_ENTRIES) if entry.is_file()]
    except (OSError, ValueError):
        return None
    for _ in range(_MOST_TRIED):
        by_stem = {file.stem: file.name for file in files if file.suffix.lower() == path.suffix.lower()}
        found = by_stem.get(nearest_name(path.stem, by_stem) or "") or nearest_name(
            path.name, [file.name for file in files], _SIMILAR
        )
        if found is None:
            return None
        if fits(nearest := path.with_name(found)):
            return str(nearest)
        files.remove(Path(found))
    return None


def read_limited(path: Path, what: str, most_bytes: int = MOST_DOCUMENT_BYTES) -> bytes:
    """Return the content of a file of at most `most_bytes`.

    Args:
        path: The file; a pipe or a device is read as well.
        what: The words before the reason in errors, for example "cannot read plan.json".
        most_bytes: The limit, so that a device or a damaged file does not fill the memory.

    Raises:
        InputError: The file cannot be read or is larger.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise InputError(f"{what} ({error.strerror or type(error).__name__})", str(path)) from None
    except ValueError:  # a null character in the name
        raise InputError(f"{what} (no file can have this name)", str(path)) from None
    if len(content) > most_bytes:
        raise InputError(f"{what} (it is larger than {most_bytes / 2**20:.0f} MiB)", str(path))
    return content


def read_text(path: Path, what: str, most_bytes: int = MOST_DOCUMENT_BYTES) -> str:
    """Return the content of a UTF-8 text file of at most `most_bytes`, without a byte order mark.

    Raises:
        InputError: The file cannot be read, is larger, or is not UTF-8 text.
    """
    try:
        return read_limited(path, what, most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{what} (it is not UTF-8 text)", str(path)) from None
