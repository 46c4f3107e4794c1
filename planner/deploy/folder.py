"""A folder of files that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from catalogs.errors import InputError

#: Names a folder written here: only such a folder is ever replaced.
MARK: Final = "prediction.json"


def check_folder(path: Path, force: bool) -> None:
    """Before long work. Raises InputError where the folder cannot be written, or holds something."""
    where = str(path)
    if where in ("", "."):
        raise InputError("the files need a folder of their own", where, "deployment")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise InputError("the files are written into a folder, and this is none", where, f"{where}.d")
    if path.is_dir() and any(path.iterdir()):
        if not (path / MARK).is_file():
            raise InputError("this folder holds other files", where, f"{where}/deployment")
        if not force:
            raise InputError("this folder holds a deployment already", where, "--force to replace it")
    parent = path.absolute().parent
    if not os.access(parent, os.W_OK):
        raise InputError("cannot write there: no such folder, or not allowed", where)


def write_folder(path: Path, files: Mapping[str, str], force: bool = False) -> None:
    """Written beside it and renamed. Names that end in .sh can be run. Raises InputError as check_folder does."""
    check_folder(path, force)
    whole = path.absolute()
    fresh = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    old = whole.with_name(f".{whole.name}.{os.getpid()}.old")
    try:
        for name, text in files.items():
            target = fresh / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            target.chmod(0o755 if name.endswith(".sh") else 0o644)
        if whole.exists():
            os.replace(whole, old)
        os.replace(fresh, whole)
    except OSError as error:
        if old.exists() and not whole.exists():
            os.replace(old, whole)
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
