"""The file of a matrix: its axes, and the settings that all of its cells share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, PositiveInt, field_validator

from catalogs.deployments.resolve import check_dtype
from catalogs.deployments.schema import Deployment, deployment_of_keys
from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import DATA, Seed, StrictYamlBlock, read_typed_yaml, validate_as
from catalogs.workloads.limits import MOST_REQUESTS

#: Folder of the matrices that `--preset` names.
PRESETS: Final = DATA / "matrices"

#: Layout that takes the fewest accelerators on which the cell fits.
AUTO: Final = "auto"

#: Precision of the checkpoint and of the engine's default KV cache.
DEFAULT: Final = "default"

_LAYOUT: Final = re.compile(r"(?:tp(?P<tensor_parallel>\d{1,4}))?(?:pp(?P<pipeline_parallel>\d{1,4}))?")

#: Keys of deployment.yaml that the axes of a matrix set.
AXIS_KEYS: Final = (
    "model",
    "engine",
    "hardware",
    "tensor_parallel",
    "pipeline_parallel",
    "weight_dtype",
    "kv_dtype",
    "max_num_seqs",
    "max_model_len",
    "queue",
)

#: Requests of a cell by default, as a multiple of the largest batch: ten batches, one after the other.
BATCHES_PER_CELL: Final = 10

#: Fewest requests of a cell by default, so that the 99th percentile is not the maximum.
LEAST_REQUESTS: Final = 320


def layout_keys(text: str) -> dict[str, int]:
    """Return the keys of deployment.yaml of a written layout such as `tp4` or `tp2pp2`.

    Raises:
        InputError: The text is no layout.
    """
    found = _LAYOUT.fullmatch(text)
    keys = {} if found is None else {k: int(n) for k, n in found.groupdict().items() if n is not None}
    if not keys or not all(keys.values()):
        raise InputError("a layout is auto, or tensor and pipeline ranks such as tp4 or tp2pp2", text, "tp4")
    return keys


def precision_keys(text: str) -> dict[str, str]:
    """Return the keys of deployment.yaml of a written precision: `default`, `fp8`, or weights and KV as `fp8/fp8`.

    Raises:
        InputError: A number format is unknown.
    """
    if text == DEFAULT:
        return {}
    weights, _, cache = text.partition("/")
    for key, dtype in (("weight_dtype", weights), ("kv_dtype", cache)):
        if dtype or key == "weight_dtype":
            check_dtype(f"unknown {key}", dtype)
    return {"weight_dtype": weights} | ({"kv_dtype": cache} if cache else {})


def _layout(text: str) -> str:
    if text != AUTO:
        layout_keys(text)
    return text


def _precision(text: str) -> str:
    precision_keys(text)
    return text


class OpenLoad(StrictYamlBlock):
    """Requests that arrive at a share of what the closed loop of the same batch completes per second."""

    open: Annotated[float, Field(gt=0, le=2)]

    @property
    def words(self) -> str:
        """Return the load in the words of a row: `open 0.8`."""
        return f"open {self.open:g}"


def _closed() -> list[Literal["closed"] | OpenLoad]:
    return ["closed"]


class NamedEngine(StrictYamlBlock):
    """An engine of the catalog under a name of its own, with further keys of deployment.yaml."""

    name: str
    engine: str
    deployment: dict[str, Any] = Field(default_factory=dict)

    @field_validator("deployment")
    @classmethod
    def _free_keys(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _checked_keys(value)


def _checked_keys(keys: dict[str, Any]) -> dict[str, Any]:
    """Return further keys of deployment.yaml, none of which an axis sets.

    Raises:
        ValueError: An axis of the matrix sets the key, or deployment.yaml has no such key or value.
    """
    for key in keys:
        if key in AXIS_KEYS:
            raise ValueError(f"{key} is set by an axis of the matrix")
        if key not in Deployment.model_fields:
            nearest = nearest_name(key, Deployment.model_fields) or "gpu_memory_utilization"
            raise ValueError(f"deployment.yaml has no key {key}; the nearest is {nearest}")
    deployment_of_keys({"model": "any", "engine": "any", "hardware": "any"} | keys, "deployment.yaml")
    return keys


Names = Annotated[list[str], Field(min_length=1)]


class MatrixFile(StrictYamlBlock):
    """The contents of matrix.yaml.

    Attributes:
        models: Names of the catalog, or files.
        engines: Names of the catalog, or engines with keys of their own.
        hardware: Largest hardware of a cell; a layout may use a part of it.
        workloads: Names of the catalog, or files.
        batches: Batch sizes; `planner.matrix.engine_batches` states what a batch is for each engine.
        precision: `default`, a weight dtype such as `fp8`, or weights and KV cache such as `fp8/fp8`.
        layouts: `auto` for the fewest accelerators on which a cell fits, or `tp4`, `tp2pp2`.
        loads: `closed` for as many clients as the batch, or `{open: 0.8}`.
        requests: Requests of a cell; null: ten of the largest batches, and at least 320.
        max_model_len: Longest sequence; longer requests are cut. Null: the longest request of the cell's workload.
        deployment: Further keys of deployment.yaml for all cells.
    """

    name: str = "matrix"
    models: Names
    engines: Annotated[list[str | NamedEngine], Field(min_length=1)]
    hardware: Names
    workloads: Names
    batches: Annotated[list[PositiveInt], Field(min_length=1)]
    precision: Annotated[list[Annotated[str, AfterValidator(_precision)]], Field(min_length=1)] = Field(
        default_factory=lambda: [DEFAULT]
    )
    layouts: Annotated[list[Annotated[str, AfterValidator(_layout)]], Field(min_length=1)] = Field(
        default_factory=lambda: [AUTO]
    )
    loads: Annotated[list[Literal["closed"] | OpenLoad], Field(min_length=1)] = Field(default_factory=_closed)
    requests: Annotated[PositiveInt | None, Field(le=MOST_REQUESTS)] = None
    seed: Seed = 0
    max_model_len: PositiveInt | None = None
    deployment: dict[str, Any] = Field(default_factory=dict)

    @field_validator("deployment")
    @classmethod
    def _free_keys(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _checked_keys(value)

    @field_validator("models", "hardware", "workloads", "batches", "precision", "layouts")
    @classmethod
    def _without_repetition(cls, value: list[Any]) -> list[Any]:
        repeated = next((item for i, item in enumerate(value) if item in value[:i]), None)
        if repeated is not None:
            raise ValueError(f"{repeated} is listed twice")
        return value

    @field_validator("engines")
    @classmethod
    def _names_differ(cls, value: list[str | NamedEngine]) -> list[str | NamedEngine]:
        names = [choice if isinstance(choice, str) else choice.name for choice in value]
        cls._without_repetition(names)
        return value

    def on_hardware(self, text: str) -> MatrixFile:
        """Return the same matrix on other hardware, written as a list with commas.

        Raises:
            InputError: The list is empty or names one twice.
        """
        names = [name.strip() for name in text.split(",") if name.strip()]
        return validate_as(MatrixFile, self.model_dump(mode="json") | {"hardware": names}, "--hw")

    @property
    def engine_choices(self) -> list[NamedEngine]:
        """Return every engine with its name and keys."""
        return [NamedEngine(name=e, engine=e) if isinstance(e, str) else e for e in self.engines]

    @property
    def requests_per_cell(self) -> int:
        """Return the requests of each cell, a multiple of every batch where it is not given and batches double."""
        return self.requests or max(LEAST_REQUESTS, BATCHES_PER_CELL * max(self.batches))


def preset_names() -> list[str]:
    """Return the names that `--preset` accepts, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def read_matrix(path: Path) -> MatrixFile:
    """Read and check a matrix.yaml.

    Raises:
        InputError: The file is unreadable, a key is unknown, or a value breaks a rule.
    """
    return validate_as(MatrixFile, {"name": path.stem} | read_typed_yaml(path), path.name)


def read_preset(name: str) -> MatrixFile:
    """Return a shipped matrix.

    Raises:
        InputError: No preset has this name.
    """
    names = preset_names()
    if name not in names:
        raise InputError("unknown preset", name, nearest_name(name, names) or ", ".join(names))
    return read_matrix(PRESETS / f"{name}.yaml")
