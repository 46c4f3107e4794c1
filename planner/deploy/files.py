"""A folder of files that appears whole or not at all.

What a target writes: files by path, and what a reader does with them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

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


_WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class DeploymentFiles:
    """base_url: where clients on this machine reach the deployment once the steps are done.

    notes: what must be there first, and where the target does other than the plan assumes.
    """

    files: dict[str, str]
    steps: Sequence[str]
    base_url: str
    notes: list[str] = field(default_factory=list)
    token_prompts: bool = True  # the server takes prompts as token ids


def to_yaml(*documents: dict[str, Any]) -> str:
    """One file of one or more documents, keys in the order given."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=_WIDTH, explicit_start=False)
    return text


class _Dumper(yaml.SafeDumper):
    """Block strings as blocks; no anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _string)
