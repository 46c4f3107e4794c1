"""Files a command writes: each appears whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from catalogs.errors import InputError


def write_whole(path: Path, parts: Iterable[str]) -> None:
    """Write beside the target and rename. Raises InputError where that cannot be done."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.writelines(parts)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def write_json(data: dict[str, Any], target: str) -> None:
    """To a file, or to stdout for "-"."""
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        write_whole(Path(target), [text])


def check_folder(target: str | Path | None) -> None:
    """Before long work: raises InputError where the folder of a file to be written does not exist."""
    if target is None or str(target) == "-":
        return
    folder = Path(target).absolute().parent
    if not os.access(folder, os.W_OK):
        raise InputError("cannot write there: no such folder, or not allowed", str(target))
