"""Files a command writes: each appears whole or not at all.

Folders a command writes: each appears whole or not at all.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from catalogs.errors import InputError


def write_atomically(path: Path, parts: Iterable[str]) -> None:
    """Write beside the target and rename; straight into what is no ordinary file (/dev/stderr, a named pipe), which a
    rename would replace. Raises InputError where that cannot be done."""
    if _is_device(path) and not path.is_dir():
        _write_through(path, parts)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.writelines(parts)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> Path:
    """The folder, made with its parents where it is not there. Raises InputError where that cannot be done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make this folder ({error.strerror})", str(path)) from None
    return path


def _write_through(path: Path, parts: Iterable[str]) -> None:
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.writelines(parts)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def write_json(data: dict[str, Any], target: str) -> None:
    """To a file, or to stdout for "-"."""
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        write_atomically(Path(target), [text])


def finite(value: Any) -> Any:
    """Return the same structure with every number that is not finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list | tuple) else value


def check_targets(json_target: str | None, *files: Path | None) -> None:
    """Before long work: raises InputError for a file to be written that cannot be, or that is named twice. Only JSON
    goes to stdout, for "-"."""
    named = [str(t) for t in (None if json_target == "-" else json_target, *files) if t is not None]
    for i, target in enumerate(named):
        if target == "-":
            raise InputError("only --json writes to stdout", target, "a file name")
        path = Path(target).absolute()
        if target in ("", "."):  # an empty path option arrives as the current folder
            raise InputError("a file to write needs a name", target, "out.json")
        if path.is_dir():
            raise InputError("cannot write there: it is a folder", target, str(Path(target) / "out.json"))
        if not os.access(path.parent, os.W_OK):
            raise InputError("cannot write there: no such folder, or not allowed", target)
        if target in named[:i] and not _is_device(path):
            raise InputError("each file to write needs a name of its own", target)


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file()


@contextmanager
def atomic_folder(target: Path, replace: bool = False, keep: Sequence[str] = ()) -> Iterator[Path]:
    """A new folder to write into, which becomes `target` when the block ends well and vanishes when it does not.

    Where `target` exists its files of the same names are exchanged, or with `replace` the whole folder is, but for the
    folders in it that `keep` names. InputError where the disk refuses.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        yield part
        if replace and target.exists():
            for name in keep:
                if (target / name).is_dir():
                    shutil.copytree(target / name, part / name)
            _exchange(part, target)
        elif target.exists():
            for file in part.iterdir():
                os.replace(file, target / file.name)
        else:
            part.rename(target)
    except OSError as error:
        raise InputError(f"cannot write there ({error.strerror or type(error).__name__})", str(target)) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _exchange(part: Path, target: Path) -> None:
    """The old folder goes only once the new one is in its place."""
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    target.rename(old)
    try:
        part.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
