"""The files of a deployment, and a folder that is written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from catalogs.errors import InputError
from catalogs.io.output_files import atomic_folder
from catalogs.io.yaml_loader import StrictDumper

#: File that marks a deployment folder; only such a folder is ever replaced.
MARK: Final = "prediction.json"


def check_folder(path: Path, force: bool) -> None:
    """Check the destination before long work.

    Raises:
        InputError: The folder cannot be written or is not empty.
    """
    where = str(path)
    if where in ("", "."):
        raise InputError("--out must be a separate folder", where, "deployment")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise InputError("--out must be a folder", where, f"{where}.d")
    if path.is_dir() and any(path.iterdir()):
        if not (path / MARK).is_file():
            raise InputError("this folder contains other files", where, f"{where}/deployment")
        if not force:
            raise InputError("this folder already contains a deployment", where, hint="replace it with --force")
    parent = path.absolute().parent
    if not os.access(parent, os.W_OK):
        raise InputError("cannot write: no such folder, or the folder is not writable", where)


def write_folder(path: Path, files: Mapping[str, str], force: bool = False) -> None:
    """Write files into a temporary folder and rename it; files with the suffix .sh become executable.

    Raises:
        InputError: The folder cannot be written, see `check_folder`.
    """
    check_folder(path, force)
    with atomic_folder(path.absolute(), replace=True) as part:
        for name, text in files.items():
            target = part / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            target.chmod(0o755 if name.endswith(".sh") else 0o644)


#: Width of a line of YAML, in characters.
_WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class DeploymentFiles:
    """The files of a target by path, with the steps to start them.

    `notes` lists requirements, and differences between the target and the assumptions of the plan. `base_url` is the
    address for clients on this machine after the steps. `token_prompts` tells whether the server takes prompts as token
    ids.
    """

    files: dict[str, str]
    steps: Sequence[str]
    notes: Sequence[str] = ()
    base_url: str = "http://localhost:8000"
    token_prompts: bool = True


def bash_script(lines: Iterable[str], comment: str = "") -> str:
    """Return a script that runs in its own folder and stops at the first error."""
    title = [f"# {comment}"] if comment else []
    return "\n".join(["#!/usr/bin/env bash", *title, "set -euo pipefail", 'cd "$(dirname "$0")"', *lines, ""])


def to_yaml(*documents: dict[str, Any]) -> str:
    """Return one YAML text of one or more documents; keys keep their order."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=_WIDTH, explicit_start=False)
    return text


class _Dumper(StrictDumper):
    """Writes multi-line strings as blocks, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _string)
