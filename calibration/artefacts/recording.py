"""Writes an artefact: a folder that appears complete with its checksums, or not at all."""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from calibration.artefacts import contents
from calibration.artefacts.contents import CHECKSUMS, INPUTS, LOGS, MANIFEST, RESULTS, ROWS, SUMMARY, Kind, Manifest
from calibration.artefacts.environment import environment, program
from calibration.artefacts.request_summary import summary_text
from catalogs.errors import InputError
from catalogs.io.output_files import atomic_folder, write_atomically

#: Largest input that is copied into an artefact.
MOST_INPUT_BYTES: Final = 2**30

#: Endings of the files of a folder that are copied where an input is a folder, for example of a model.
_SMALL: Final = (".json", ".yaml", ".yml", ".jinja", ".txt", ".model")


@dataclass(slots=True)
class ArtefactRecording:
    """An artefact that is being written.

    Attributes:
        folder: The folder in which it is written; it gets its final name at the end.
        kind: Whether its rows are simulated or measured.
        command: The words of the command that made it, with the paths of its inputs below the folder.
        seeds: The seeds of the run by name.
        notes: Sentences for readers, for example on what limits a replay.
        wrapped: Whether the command knows no artefacts itself.
    """

    folder: Path
    kind: Kind
    command: list[str] = field(default_factory=list)
    seeds: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    wrapped: bool = False
    _inputs: list[contents.RecordedFile] = field(default_factory=list)
    _tables: list[contents.RecordedTable] = field(default_factory=list)

    def add_input(self, path: Path, name: str | None = None, original: str | None = None) -> str:
        """Copy a file, or the small files of a folder, and return its path below the artefact.

        Args:
            path: The file or folder.
            name: Its name below `inputs/`; None for its own.
            original: The path that the user gave; None for `path`.

        Raises:
            InputError: It cannot be read, is too large, or another input has its name.
        """
        target = self.folder / INPUTS / (name or path.name)
        relative = str(target.relative_to(self.folder))
        if target.exists():
            raise InputError("two inputs of an artefact have the same name", str(path))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                for file in sorted(f for f in path.iterdir() if f.is_file() and f.suffix in _SMALL):
                    self.add_input(file, f"{name or path.name}/{file.name}", str(path / file.name))
                return relative
            if path.stat().st_size > MOST_INPUT_BYTES:
                raise InputError("an input of an artefact is at most 1 GiB", str(path))
            shutil.copyfile(path, target)
        except OSError as error:
            raise InputError(f"an input cannot be copied ({error.strerror or error})", str(path)) from None
        self._inputs.append(recorded_file(self.folder, target, original or str(path)))
        return relative

    def add_input_text(self, name: str, text: str, original: str) -> str:
        """Write an input that the command read in another form, and return its path below the artefact."""
        target = self.folder / INPUTS / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        self._inputs.append(recorded_file(self.folder, target, original))
        return str(target.relative_to(self.folder))

    def add_table(self, name: str, schema: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
        """Write a table with its JSON Schema.

        Raises:
            InputError: A row does not have the form of the schema.
        """
        folder = self.folder / ROWS
        folder.mkdir(exist_ok=True)
        n = 0
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for row in rows:
                if fault := contents.row_fault(row, schema):
                    raise InputError(f"a row of the table {name} does not have its schema: {fault}", n)
                file.writelines(contents.json_lines([row]))
                n += 1
        (folder / f"{name}.schema.json").write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")
        self._tables.append(contents.RecordedTable(name=name, n_rows=n))

    def add_requests(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the table of requests."""
        self.add_table(contents.REQUESTS, contents.schema_of("A request", contents.REQUEST_COLUMNS), rows)

    def add_result(self, name: str, text: str) -> None:
        """Write a document that the command made."""
        self._write(RESULTS, name, text)

    def add_log(self, name: str, text: str) -> None:
        """Write what a program printed."""
        self._write(LOGS, name, text)

    def _write(self, folder: str, name: str, text: str) -> None:
        (self.folder / folder).mkdir(exist_ok=True)
        (self.folder / folder / name).write_text(text, encoding="utf-8")

    def finish(self) -> None:
        """Write the summary, the manifest and the checksums."""
        if any(table.name == contents.REQUESTS for table in self._tables):
            rows = contents.read_rows(self.folder, contents.REQUESTS)
            (self.folder / SUMMARY).write_text(summary_text(rows, self.command), encoding="utf-8")
        manifest = Manifest(
            kind=self.kind,
            command=self.command,
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            program=program(),
            seeds=self.seeds,
            environment=environment(),
            inputs=sorted(self._inputs, key=lambda file: file.path),
            tables=self._tables,
            wrapped=self.wrapped,
            notes=self.notes,
        )
        text = json.dumps(manifest.model_dump(), indent=1, ensure_ascii=False) + "\n"
        (self.folder / MANIFEST).write_text(text, encoding="utf-8")
        write_atomically(self.folder / CHECKSUMS, [checksums_text(self.folder)])


@contextmanager
def recording(target: Path, kind: Kind, command: Sequence[str] = ()) -> Iterator[ArtefactRecording]:
    """Yield an artefact to fill; it becomes the folder `target` if the block succeeds.

    Args:
        target: The folder, which must not exist or be empty.
        kind: Whether the rows are simulated or measured.
        command: The words of the command; they can be set until the end of the block.

    Raises:
        InputError: The folder exists and is not empty, or cannot be written.
    """
    target = target.absolute()
    check_new_folder(target)
    with atomic_folder(target, replace=target.is_dir()) as part:
        found = ArtefactRecording(part.absolute(), kind, list(command))
        yield found
        found.finish()


def check_new_folder(target: Path | None) -> None:
    """Check that an artefact can be written to a folder; None is no folder.

    Raises:
        InputError: It is a file, or a folder that is not empty.
    """
    if target is not None and (target.is_file() or (target.is_dir() and any(target.iterdir()))):
        raise InputError("an artefact is written into a new folder", str(target))


def recorded_file(folder: Path, path: Path, original: str = "") -> contents.RecordedFile:
    """Return the record of a file below an artefact's folder."""
    relative = str(path.relative_to(folder))
    return contents.RecordedFile(
        path=relative, sha256=file_digest(path), size_bytes=path.stat().st_size, original=original
    )


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums_text(folder: Path) -> str:
    """Return the SHA-256 of every file of a folder but the checksums themselves, sorted by path."""
    files = sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file() and not f.is_symlink())
    return "".join(f"{file_digest(folder / name)}  {name}\n" for name in files if name != CHECKSUMS)
