"""The two files of a bundle: bundle.json with readable facts, and arrays.npz with the fitted nodes.

The facts hold a hash of the arrays and a hash of themselves, so that a change of either file is found.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from calibration.bundles.ranges import array_fault, check_facts, first_fault
from calibration.families.base import FamilyModel
from catalogs.errors import InputError
from catalogs.io.output_files import atomic_folder, write_json

#: Version 2 has a hash of the facts.
SCHEMA_VERSION: Final = 2

JSON_NAME: Final = "bundle.json"

ARRAYS_NAME: Final = "arrays.npz"

# folder of host times measured on this hardware, which stay when a bundle is replaced
ENGINES_FOLDER: Final = "engines"


_HASH_KEY: Final = "facts_sha256"

_MEND: Final = "fit again, or remove the folder to do without"

_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

_Error = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Release:
    """A version of an engine, for example ("vllm", "0.19.0")."""

    engine: str
    version: str

    @property
    def folder(self) -> str:
        """Return the name of the folder of its bundle."""
        return f"{self.engine}-{self.version}"

    def __str__(self) -> str:
        """Return the engine and the version in words."""
        return f"{self.engine} {self.version}".rstrip()


class Source(BaseModel, extra="forbid"):
    """Where the measured rows of a bundle come from."""

    name: str
    licence: str = ""
    commit: str = ""
    version: str = ""


class ErrorLine(BaseModel, extra="forbid"):
    """One held-out error, see `HeldOutErrors`."""

    region: str
    n: PositiveInt
    median_abs_rel_error: _Error
    p90_abs_rel_error: _Error
    bias: Annotated[float, Field(ge=-1.0, allow_inf_nan=False)]  # no prediction is negative


class FamilyRecord(BaseModel, extra="forbid"):
    """One fitted family: the facts of its model, its rows and its errors."""

    facts: Annotated[dict[str, Any], AfterValidator(check_facts)]
    rows: dict[str, NonNegativeInt] = {}
    rows_sha256: _Hash | Literal[""] = ""
    held_out: list[ErrorLine] = []
    notes: list[str] = []


class BundleFacts(BaseModel, extra="forbid"):
    """The facts of a calibration, as `bundle.json` holds them."""

    schema_version: Literal[2]
    hardware: str
    engine: str = "vllm"
    engine_version: str = ""
    driver: str | None = None
    sources: list[Source] = []
    notices: list[str] = []  # notices of every answer that uses this bundle
    families: dict[str, FamilyRecord] = {}
    arrays_sha256: _Hash
    facts_sha256: _Hash | Literal[""] = ""  # of the document without this key; empty before it is written

    @model_validator(mode="after")
    def _check_label(self) -> Self:
        for family, record in self.families.items():
            measured = record.facts.get("fitted_on", {}).get("name", self.hardware)
            if measured != self.hardware:
                raise ValueError(f"the bundle is labelled {self.hardware}, but {family} was measured on {measured}")
        return self

    @property
    def held_out(self) -> list[dict[str, Any]]:
        """Return the held-out errors of all families as JSON data, each with its family."""
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
    folder: Path, hardware: str, release: Release, sources: list[dict[str, str]], fitted: dict[str, FittedFamily]
) -> Path:
    """Write both files and return the path of the JSON; the same fit gives the same bytes."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    records = {}
    for family, fit in sorted(fitted.items()):
        facts, own = fit.model.to_parts()
        arrays |= {f"{family}/{name}": a for name, a in own.items()}
        record = {name: getattr(fit, name) for name in ("rows", "rows_sha256", "held_out", "notes")}
        records[family] = FamilyRecord(facts=facts, **record)
    with atomic_folder(folder) as part:
        with (part / ARRAYS_NAME).open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        facts_model = BundleFacts(
            schema_version=SCHEMA_VERSION,
            hardware=hardware,
            engine=release.engine,
            engine_version=release.version,
            sources=[Source(**s) for s in sources],
            families=records,
            arrays_sha256=_sha256(part / ARRAYS_NAME),
        )
        write_facts(facts_model, part / JSON_NAME)
    return folder / JSON_NAME


def write_facts(facts: BundleFacts, path: Path) -> None:
    """Write the JSON file of a bundle, with the hash of the facts; the key `notices` is left out if there are none."""
    document = facts.model_dump()
    if not facts.notices:
        del document["notices"]
    write_json(document | {_HASH_KEY: facts_hash(document)}, str(path))


def facts_hash(document: Mapping[str, Any]) -> str:
    """Return the hash of the facts in the JSON document of a bundle, whatever its spaces and the order of its keys.

    Raises:
        ValueError: A number is not finite.
    """
    rest = {key: value for key, value in document.items() if key != _HASH_KEY}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def parse_facts(data: bytes, source: Path) -> BundleFacts:
    """Return the facts in the bytes of bundle.json; `source` is named in errors.

    Raises:
        InputError: They are cut short or altered, of an earlier release, or out of range.
    """
    try:
        document = json.loads(data)
        found = facts_hash(document)
    except (ValueError, AttributeError) as error:
        raise InputError(f"calibration bundle is not valid ({JSON_NAME}: {error})", str(source)) from None
    if document.get("schema_version") == 1 and _HASH_KEY not in document:
        raise InputError(
            "calibration bundle of an earlier release, without a hash of its facts", str(source), hint=_MEND
        )
    if document.get("schema_version") == SCHEMA_VERSION and document.get(_HASH_KEY) != found:
        raise InputError(f"calibration facts do not match the hash in the bundle; {_MEND}", str(source))
    try:
        return BundleFacts.model_validate(document)
    except ValidationError as error:
        raise InputError(f"calibration bundle is not valid ({first_fault(error, JSON_NAME)})", str(source)) from None


def read_bundle(path: Path) -> tuple[BundleFacts, dict[str, npt.NDArray[Any]]]:
    """Return the facts and arrays of a bundle folder or its JSON file.

    Raises:
        InputError: A file is missing, cut short or altered.
    """
    file = path / JSON_NAME if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError:
        raise InputError("no calibration bundle here", str(path)) from None
    facts = parse_facts(data, file)
    packed = file.parent / ARRAYS_NAME
    if not packed.is_file():
        raise InputError("calibration bundle lacks its arrays file", str(packed))
    if _sha256(packed) != facts.arrays_sha256:
        raise InputError(f"calibration arrays do not match the hash in the bundle; {_MEND}", str(packed))
    try:
        with np.load(packed, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"calibration arrays cannot be read ({type(error).__name__})", str(packed)) from None
    if (fault := array_fault(arrays)) is not None:
        raise InputError(f"calibration arrays are out of range ({fault})", str(packed))
    return facts, arrays


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
