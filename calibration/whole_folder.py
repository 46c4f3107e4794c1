"""Folders a command writes: each appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from catalogs.errors import InputError


@contextmanager
def whole_folder(target: Path, replace: bool = False, keep: Sequence[str] = ()) -> Iterator[Path]:
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
