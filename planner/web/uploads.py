"""Uploaded files: stored by the hash of their content, named by it in questions, and never found by a path.

A question names a file as `upload:SHA256`. The server writes the file under its original name into a folder of its own
before a command reads it, so that answers and error messages show that name alone.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from catalogs.errors import InputError
from catalogs.units import MIB
from planner.web.store.uploads import StoredUpload, UploadStore

PREFIX: Final = "upload:"

_REFERENCE: Final = re.compile(rf"{PREFIX}([0-9a-f]{{64}})")

_HUGGING_FACE_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

#: Ends of file names; a text that has one names a file.
_ENDS: Final = re.compile(
    r"\.(json|jsonl|ya?ml|csv|tsv|txt|parquet|gz|zst|npz|npy|gguf|safetensors|db|sqlite3?|html?|log|py|toml|ini)$", re.I
)

#: Most characters of a file's name that are kept.
_LONGEST_NAME: Final = 80

#: Bytes at the beginning of a file from which its kind is guessed.
_HEAD_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class LocalFile:
    """An uploaded file as written on this machine.

    Attributes:
        reference: The text that names the file in a question.
        name: The original name of the file, without folders and unusual characters.
        path: Where the file is.
    """

    reference: str
    name: str
    path: Path


class Uploads:
    """The uploaded files of all users, written into a folder as they are needed."""

    def __init__(self, store: UploadStore, folder: Path, most_bytes: int, most_bytes_together: int) -> None:
        self.store = store
        self.folder = folder
        self.most_bytes = most_bytes
        self.most_bytes_together = most_bytes_together

    def receive(self, file: IO[bytes], name: str | None, owner: str) -> StoredUpload:
        """Store the content of a file that a user sent.

        Raises:
            InputError: The file is empty or too large, or the server has no space for it.
        """
        digest, size, head = hashlib.sha256(), 0, b""
        while chunk := file.read(MIB):
            head = head or chunk[:_HEAD_BYTES]
            size += len(chunk)
            digest.update(chunk)
            if size > self.most_bytes:
                raise InputError(f"an upload is at most {self.most_bytes // MIB} MiB", name, "a part of the file")
        if not size:
            raise InputError("an upload must not be empty", name)
        if self.store.total_bytes() + size > self.most_bytes_together:
            rule = f"all uploads together are at most {self.most_bytes_together // MIB} MiB"
            raise InputError(rule, name, hint="delete old jobs, or ask for a larger max_uploads_mib")
        file.seek(0)
        short = safe_name(name or "", head)
        found = StoredUpload(digest.hexdigest(), owner, short, kind_of(short, head), size, time.time())
        self.store.add(found, iter(lambda: file.read(MIB), b""))
        return found

    def stored(self, reference: str, owner: str) -> StoredUpload:
        """Return what is known of an upload of a user.

        Raises:
            InputError: The user has not uploaded such a file.
        """
        match = _REFERENCE.fullmatch(reference)
        found = None if match is None else self.store.find(match[1], owner)
        if found is None:
            raise InputError("no such upload", reference, hint="send the file to /api/v1/uploads first")
        return found

    def find(self, reference: str, owner: str) -> LocalFile:
        """Return an uploaded file of a user, written into the folder of this server.

        Raises:
            InputError: The user has not uploaded such a file.
        """
        upload = self.stored(reference, owner)
        path = self.folder / "files" / upload.hash / upload.name
        if not path.is_file():
            self.write(upload, path)
        return LocalFile(reference, upload.name, path)

    def local(self, value: Any, owner: str) -> tuple[Any, tuple[LocalFile, ...]]:
        """Return a JSON value with each upload that it names replaced by its path on this machine, and the uploads.

        Raises:
            InputError: The value names a file of the server by its path, or the user has not uploaded such a file.
        """
        refuse_paths(value)
        files = tuple(self.find(reference, owner) for reference in references(value))
        return replaced(value, {file.reference: str(file.path) for file in files}), files

    def write(self, upload: StoredUpload, path: Path) -> None:
        """Write the content of an upload to a file, completely or not at all."""
        from catalogs.io.output_files import atomic_file

        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as part, Path(part).open("wb") as out:
            for chunk in self.store.chunks(upload.hash):
                out.write(chunk)


def references(value: object) -> Iterator[str]:
    """Yield the uploads that a JSON value names, each once and in order."""
    texts: dict[str, None] = {}
    mapped(value, lambda text: texts.setdefault(text) or text)
    yield from (text for text in texts if text.startswith(PREFIX))


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with every text in it changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(inner, change) for inner in value]
    return value


def replaced(value: Any, texts: Mapping[str, str]) -> Any:
    """Return a JSON value in which each text that is a key of `texts` is replaced by the text there."""
    return mapped(value, lambda text: texts.get(text, text))


def with_names(value: Any, files: Iterable[LocalFile]) -> Any:
    """Return a JSON value in which uploads have their original names instead of their paths, also inside of texts."""
    names = {str(file.path): file.name for file in files}

    def named(text: str) -> str:
        for path, name in names.items():
            text = text.replace(path, name)
        return text

    return mapped(value, named) if names else value


def unique_names(files: list[LocalFile]) -> dict[str, str]:
    """Return a name for each reference, all different: a second `trace.csv` becomes `trace-2.csv`."""
    found: dict[str, str] = {}
    for file in files:
        stem, dot, end = file.name.partition(".")
        name, number = file.name, 1
        while name in found.values():
            number += 1
            name = f"{stem}-{number}{dot}{end}"
        found[file.reference] = name
    return found


def refuse_paths(value: object) -> None:
    """Refuse a JSON value in which a text is a path: files of the server are not for its users.

    Raises:
        InputError: A text is a path.
    """

    def check(text: str) -> str:
        for part in re.split(r"[,=\s]+", text):
            if part and not part.startswith(PREFIX) and _is_path(part):
                hint = "upload the file and name it upload:SHA256"
                raise InputError("the server reads no files by their path", text, hint=hint)
        return text

    mapped(value, check)


def _is_path(part: str) -> bool:
    if part.startswith("~") or "\\" in part or "\0" in part or part in (".", "..") or _ENDS.search(part):
        return True
    return "/" in part and not is_hugging_face_id(part)


def is_hugging_face_id(text: str) -> bool:
    """Return whether a text has the form of an id of Hugging Face, ORGANISATION/NAME."""
    return _HUGGING_FACE_ID.fullmatch(text) is not None


def safe_name(name: str, head: bytes) -> str:
    """Return a file name without folders and unusual characters, always with an end such as `.json`."""
    last = re.split(r"[/\\]", name)[-1]
    short = re.sub(r"[^A-Za-z0-9._-]+", "_", last).strip("._-")[-_LONGEST_NAME:].lstrip("._-")
    short = short or "upload"
    return short if "." in short else short + (".json" if head.lstrip()[:1] in (b"{", b"[") else ".csv")


def kind_of(name: str, head: bytes) -> str:
    """Return what a file probably is: config, result, trace or other; the reader of the file decides."""
    text = head.decode("utf-8", "replace")
    if '"architectures"' in text or '"model_type"' in text or name.lower() == "config.json":
        return "config"
    if re.search(r'"(request_throughput|ttfts|mean_ttft_ms|benchmarks|duration)"', text):
        return "result"
    if re.search(r"arrival_s|TIMESTAMP|input_length|ContextTokens|input_tokens|Request tokens", text):
        return "trace"
    return "other"
