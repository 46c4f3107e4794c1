"""The two files of a bundle: bundle.json with readable facts, arrays.npz with the fitted nodes, tied by a hash."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ValidationError

from calibration.families.base import FamilyModel
from catalogs.errors import InputError
from catalogs.io.output_files import write_json

SCHEMA_VERSION: Final = 1

JSON_NAME: Final = "bundle.json"

ARRAYS_NAME: Final = "arrays.npz"

# folder of host times measured on this hardware, which stay when a bundle is replaced
ENGINES_FOLDER: Final = "engines"


def first_fault(error: ValidationError, whole: str = "") -> str:
    """Return the place and the message of the first fault in a document; `whole` is the name of the document itself."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"


class Source(BaseModel, extra="forbid"):
    """The source of rows."""

    name: str
    licence: str = ""
    commit: str = ""
    version: str = ""


class ErrorLine(BaseModel, extra="forbid"):
    """One held-out error, see `HeldOutErrors`."""

    region: str
    n: int
    median_abs_rel_error: float
    p90_abs_rel_error: float
    bias: float


class FamilyRecord(BaseModel, extra="forbid"):
    """One fitted family: the facts of its model, its rows and its errors."""

    facts: dict[str, Any]
    rows: dict[str, int] = {}
    rows_sha256: str = ""
    held_out: list[ErrorLine] = []
    notes: list[str] = []


class BundleFacts(BaseModel, extra="forbid"):
    """The contents of bundle.json."""

    schema_version: Literal[1]
    hardware: str
    engine: str = "vllm"
    engine_version: str = ""
    driver: str | None = None
    sources: list[Source] = []
    notices: list[str] = []  # notices of every answer that uses this bundle
    families: dict[str, FamilyRecord] = {}
    arrays_sha256: str

    @property
    def held_out(self) -> list[dict[str, Any]]:
        """The held-out errors of all families as JSON data, each with its family."""
        return [{"family": f, **e.model_dump()} for f, record in self.families.items() for e in record.held_out]


@dataclass(frozen=True, slots=True)
class FittedFamily:
    """A model with the record of its fit, before it is written."""

    model: FamilyModel
    rows: dict[str, int]
    rows_sha256: str
    held_out: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)


def write_bundle(
    folder: Path, hardware: str, engine_version: str, sources: list[dict[str, str]], fitted: dict[str, FittedFamily]
) -> Path:
    """Write both files and return the path of the JSON; the same fit gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, npt.NDArray[Any]] = {}
    records = {}
    for family, fit in sorted(fitted.items()):
        facts, own = fit.model.to_parts()
        arrays |= {f"{family}/{name}": a for name, a in own.items()}
        record = {name: getattr(fit, name) for name in ("rows", "rows_sha256", "held_out", "notes")}
        records[family] = FamilyRecord(facts=facts, **record)
    with (folder / ARRAYS_NAME).open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    facts_model = BundleFacts(
        schema_version=SCHEMA_VERSION,
        hardware=hardware,
        engine_version=engine_version,
        sources=[Source(**s) for s in sources],
        families=records,
        arrays_sha256=_sha256(folder / ARRAYS_NAME),
    )
    write_facts(facts_model, folder / JSON_NAME)
    return folder / JSON_NAME


def write_facts(facts: BundleFacts, path: Path) -> None:
    """Write the JSON file of a bundle; the key `notices` is left out where there are none."""
    document = facts.model_dump()
    if not facts.notices:
        del document["notices"]
    write_json(document, str(path))


def read_bundle(path: Path) -> tuple[BundleFacts, dict[str, npt.NDArray[Any]]]:
    """Return the facts and arrays of a bundle folder or its JSON file.

    Raises:
        InputError: A file is missing, cut short or altered.
    """
    file = path / JSON_NAME if path.is_dir() else path
    try:
        facts = BundleFacts.model_validate_json(file.read_bytes())
    except OSError:
        raise InputError("no calibration bundle here", str(path)) from None
    except ValidationError as error:
        raise InputError(f"calibration bundle is not valid ({first_fault(error)})", str(file)) from None
    packed = file.parent / ARRAYS_NAME
    if not packed.is_file():
        raise InputError("calibration bundle lacks its arrays file", str(packed))
    if _sha256(packed) != facts.arrays_sha256:
        rule = "calibration arrays do not match the hash in the bundle; fit again, or remove the folder to do without"
        raise InputError(rule, str(packed))
    try:
        with np.load(packed, allow_pickle=False) as data:
            return facts, {name: data[name] for name in data.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"calibration arrays cannot be read ({type(error).__name__})", str(packed)) from None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
