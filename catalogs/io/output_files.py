"""Atomic output: files and folders that appear complete or not at all, and JSON blocks as pydantic models."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from catalogs.errors import DEVICE_ERRORS, InputError, OutputError


def write_atomically(path: Path, parts: Iterable[str]) -> None:
    """Write a text file that appears complete or not at all; device files and named pipes are written directly.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        is_direct = _is_device(path) and not path.is_dir()
        with (
            nullcontext(path) if is_direct else atomic_file(path) as target,
            open(target, "w", encoding="utf-8", newline="") as file,
        ):
            file.writelines(parts)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable(path, error) from None


def _random_name() -> str:
    """Return a name that no other process chooses; the module `secrets` would load OpenSSL at the start of commands."""
    return os.urandom(8).hex()


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write, which becomes `path` when the block succeeds and is removed when it fails.

    The content is on the disk before it replaces an earlier file, whose permissions it takes, and a link stays a link.
    Several processes may write the same file: it is that of the last one.

    Raises:
        InputError: The file cannot be written.
    """
    real = path.resolve() if path.is_symlink() else path
    part = real.with_name(f".{real.name[:40]}.{_random_name()}.part")
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        if real.exists():
            shutil.copymode(real, part)
        os.replace(part, real)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        part.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> InputError:
    """Return the error to raise: an OutputError if the device is at fault, otherwise that of an unsuitable path."""
    kind = OutputError if error.errno in DEVICE_ERRORS else InputError
    return kind(f"cannot write {path}: {error.strerror or error}")


def make_folder(path: Path) -> Path:
    """Create a folder and its parents where they are missing, and return its path.

    Raises:
        InputError: The folder cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create this folder ({error.strerror})", str(path)) from None
    return path


def write_json(data: dict[str, Any], target: str) -> None:
    """Write a JSON document to the file `target`, or to stdout for "-"."""
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        write_atomically(Path(target), [text])


def csv_text(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table as CSV; fields that are None or not a number are empty.

    Args:
        names: The names of the columns.
        rows: The values of each row, in the order of the columns. Numbers have as many digits as they need.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([None if value != value else value for value in row] for row in rows)
    return text.getvalue()


def finite(value: Any) -> Any:
    """Return the same structure with every number that is not finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list | tuple) else value


#: Formats of files by their endings.
_FORMATS: Final = {
    ".json": "JSON",
    ".html": "an HTML page",
    ".htm": "an HTML page",
    ".yaml": "YAML",
    ".yml": "YAML",
    ".csv": "CSV",
    ".parquet": "Parquet",
}


def check_targets(json_target: str | None, *files: Path | None, html: Path | None = None) -> None:
    """Check, before long work, that every output file can be written and is named once; "-" is stdout, for JSON only.

    Args:
        json_target: File of JSON, or "-".
        files: Files of other formats.
        html: File of an HTML page.

    Raises:
        InputError: A file cannot be written or is named twice, has the ending of another format, or "-" stands for a
            file other than JSON.
    """
    _check_ending(json_target, ".json")
    _check_ending(None if html is None else str(html), ".html")
    to_json = None if json_target == "-" else json_target
    examples = (to_json, "out.json"), (html, "page.html"), *((file, None) for file in files)
    named = [(str(target), example) for target, example in examples if target is not None]
    for i, (target, example) in enumerate(named):
        if target == "-":
            raise InputError("only --json writes to stdout", target, hint="give a file name")
        path = Path(target).absolute()
        if target in ("", "."):  # typer passes an empty path option as the current folder
            raise InputError("an output file needs a name", target, example, None if example else "give a file name")
        if path.is_dir():
            inside = None if example is None else str(Path(target) / example)
            hint = None if example else "give the name of a file in it"
            raise InputError("cannot write there: it is a folder", target, inside, hint)
        if not path.parent.is_dir():
            raise InputError("cannot write there: the folder does not exist", target, path.name)
        check_writable(path)
        if path.exists() and not os.access(path, os.W_OK):
            raise InputError("cannot write there: the file is read-only", target)
        if target in [earlier for earlier, _ in named[:i]] and not _is_device(path):
            raise InputError("each output file needs a different name", target)


def check_writable(path: Path) -> None:
    """Check that a file can be written at a path, or that a folder and its parents can be made there.

    To find out, an empty file is made beside it and removed again, because permissions alone do not tell, for example
    below /proc. Devices are not tested.

    Raises:
        InputError: It cannot, or the device is at fault; the nearest choice is the same name in the current folder.
    """
    if _is_device(path) and not path.is_dir():  # of a link such as /dev/fd/63, whose target has no path
        return
    try:
        real = path.resolve()
        folder = real if real.is_dir() else next(parent for parent in real.parents if parent.exists())
        probe = folder / f".{_random_name()}.part"
        probe.touch(exist_ok=False)
        probe.unlink()
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to each other
        number = getattr(error, "errno", None)
        if isinstance(error, OSError) and number in DEVICE_ERRORS:
            raise _unwritable(path, error) from None
        reasons = {errno.ENOTDIR: "a part of the path is a file", None: "its links lead in a circle"}
        why = reasons.get(number, "the folder is not writable")
        raise InputError(f"cannot write there: {why}", str(path), path.name or "out") from None


def _check_ending(target: str | None, ending: str) -> None:
    """Refuse a file whose name has the ending of another format; a name without an ending, or any other, is allowed.

    Raises:
        InputError: It has; the nearest choice has the same name with the ending of its format.
    """
    if target is None:
        return
    name = Path(target)
    given, wanted = _FORMATS.get(name.suffix.lower()), _FORMATS[ending]
    if given is not None and given != wanted:
        rule = f"{wanted} is written to a file that ends in {ending}, and this name is that of {given}"
        raise InputError(rule, target, str(name.with_suffix(ending)))


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file()


@contextmanager
def atomic_folder(target: Path, replace: bool = False, keep: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a new folder that becomes `target` when the block succeeds and is removed when it fails.

    Where `target` exists, its files with the same names are replaced. With `replace` the whole folder is replaced,
    except for the subfolders named in `keep`.

    Raises:
        InputError: The folder cannot be written.
    """
    part = target.with_name(f".{target.name[:40]}.{_random_name()}.part")
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
        raise _unwritable(target, error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _exchange(part: Path, target: Path) -> None:
    """Replace `target` by `part`; the old folder is removed only after the new one is in place."""
    old = target.with_name(f".{target.name[:40]}.{_random_name()}.old")
    try:
        target.rename(old)
        part.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
