"""The check of an artefact: no file is changed, missing or added, and every row follows its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from calibration.artefacts.contents import CHECKSUMS, MANIFEST, ROWS, Manifest, row_fault
from calibration.artefacts.recording import checksums_text, file_digest
from catalogs.errors import InputError
from catalogs.io.input_files import is_file


def artefact_faults(folder: Path) -> list[str]:
    """Return what is wrong with an artefact, one sentence each; [] if it is whole and unchanged.

    Raises:
        InputError: There is no such folder, or it is no artefact.
    """
    if not (folder / CHECKSUMS).is_file():
        raise InputError(f"an artefact is a folder with {CHECKSUMS}", str(folder))
    found = list(_changed(folder))
    return found or list(_incomplete(folder))


def artefact_id(folder: Path) -> str:
    """Return the digest of an artefact, which covers every byte of it."""
    return file_digest(folder / CHECKSUMS)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of an artefact.

    Raises:
        InputError: There is none, or it is not valid.
    """
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except OSError:
        raise InputError(f"an artefact is a folder with {MANIFEST}", str(folder)) from None
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise InputError(f"the manifest is not valid ({where}: {fault['msg']})", str(folder / MANIFEST)) from None


def _changed(folder: Path) -> Iterator[str]:
    """Yield the files that were changed, removed or added, and the faults of the checksums themselves."""
    text = (folder / CHECKSUMS).read_bytes()
    stated: dict[str, str] = {}
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        digest, gap, name = line.partition("  ")
        if not gap or len(digest) != 64 or not _stays_inside(folder, name):
            yield f"line {number} of {CHECKSUMS} is not a checksum"
            continue
        stated[name] = digest
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            yield f"{name} is not a plain file"
        elif path.is_dir():
            if not any(path.iterdir()):
                yield f"{name} is an empty folder, which was not part of the artefact"
        elif name not in stated and name != CHECKSUMS:
            yield f"{name} was added"
    for name, digest in stated.items():
        path = folder / name
        if not is_file(path) or path.is_symlink():
            yield f"{name} is missing"
        elif file_digest(path) != digest:
            yield f"{name} was changed"
    if text != checksums_text(folder).encode():
        yield f"{CHECKSUMS} is not that of these files"


def _stays_inside(folder: Path, name: str) -> bool:
    try:
        return bool(name) and (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):  # no file can have such a name
        return False


def _incomplete(folder: Path) -> Iterator[str]:
    """Yield what the manifest states and the folder lacks, and rows without the form of their schema."""
    try:
        manifest = read_manifest(folder)
    except InputError as error:
        yield str(error)
        return
    for file in manifest.inputs:
        path = folder / file.path
        if not _stays_inside(folder, file.path) or not path.is_file():
            yield f"the input {file.path} is missing"
        elif file_digest(path) != file.sha256:
            yield f"the input {file.path} is not the one of the manifest"
    for table in manifest.tables:
        path, schema_path = folder / ROWS / f"{table.name}.jsonl", folder / ROWS / f"{table.name}.schema.json"
        if not path.is_file() or not schema_path.is_file():
            yield f"the table {table.name} or its schema is missing"
            continue
        yield from _row_faults(table.name, table.n_rows, path, json.loads(schema_path.read_text(encoding="utf-8")))


def _row_faults(name: str, n_rows: int, path: Path, schema: dict[str, Any]) -> Iterator[str]:
    n = 0
    with path.open(encoding="utf-8") as lines:
        for n, line in enumerate(lines, 1):
            try:
                fault = row_fault(json.loads(line), schema)
            except ValueError:
                fault = "it is not JSON"
            if fault:
                yield f"row {n} of {name}: {fault}"
                return
    if n != n_rows:
        yield f"{name} has {n} rows, and the manifest states {n_rows}"
