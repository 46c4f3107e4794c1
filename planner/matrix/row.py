"""The row of a cell: its identity, its verdict, what was simulated or measured, and how to reproduce it."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from catalogs.io.json_block import JsonBlock

#: Version of the form of a row of the matrix.
SCHEMA_VERSION: Final = 1

#: What became of a cell. A row always has one of these, and a rule wherever it is not "ok".
Verdict = Literal["ok", "does not fit", "unsupported", "failed"]

Origin = Literal["simulated", "measured"]

#: The layout of a row that was read from a file of measurements, or that predicts one: no axis of a matrix set it.
AS_MEASURED: Final = "as measured"

#: The words of a table or a heat map for a row that has no figures.
NO_FIGURE: Final[dict[Verdict, str]] = {"does not fit": "no fit", "unsupported": "no", "failed": "failed"}


class CellMemory(JsonBlock):
    """Memory of one accelerator in bytes, and the tokens that the KV cache of the replica holds."""

    weights_bytes: float
    activation_bytes: float
    runtime_bytes: float
    kv_bytes: float
    kv_tokens: int
    kv_peak_fraction: float | None = None


class CellCost(JsonBlock):
    """The price of the accelerators that the cell uses; None where no price is known."""

    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_total_tokens: float | None
    price_as_of: str | None
    price_source: str | None
    idle_accelerators: int | None = None  # rented with the whole instance, and not used


class CellVersions(JsonBlock):
    """What computed the row; `calibration` is a digest of the bundle, `measured_on` the machine of a measured row."""

    product: str
    engine: str
    calibration: str | None = None
    bundle: str | None = None
    measured_on: str | None = None


class MatrixRow(JsonBlock):
    """One cell of a matrix.

    Attributes:
        cell: The axes in one text, unique in the matrix.
        hardware: Largest hardware of the cell; `used` is the part that its layout takes.
        precision: As the matrix writes it; `weight_dtype` and `kv_dtype` are resolved.
        rule: Why the verdict is not "ok"; empty where it is.
        nearest: The nearest choice that would be "ok", where one is known.
        metrics: The block `metrics` of `simulate --json`, or the same keys of a measurement.
        noise: Of a measured row, half the spread of each mean latency between its replays, over the mean.
        complexity: Latency against the lengths of requests, as in `simulate --json`.
        stated_error: The block `calibration.stated_error` of `simulate --json`.
        notices: Sentences about the row that apply to its cell only.
        command: Reproduces the row.
    """

    cell: str
    origin: Origin
    model: str
    engine: str
    hardware: str
    workload: str
    batch: int
    precision: str
    layout: str
    load: str
    requests: int
    seed: int
    verdict: Verdict
    rule: str = ""
    nearest: str | None = None
    used: str | None = None
    n_accelerators: int | None = None
    resolved_layout: str | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    requests_per_s: float | None = None
    deployment: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    noise: dict[str, float] | None = None
    complexity: dict[str, Any] | None = None
    memory: CellMemory | None = None
    cost: CellCost | None = None
    calibration: dict[str, Any] | None = None
    stated_error: dict[str, Any] | None = None
    versions: CellVersions | None = None
    notices: list[str] = Field(default_factory=list)
    command: str = ""

    @property
    def key(self) -> tuple[str, Origin]:
        """Return what identifies the row in a table of simulated and measured rows."""
        return self.cell, self.origin

    @property
    def is_cell(self) -> bool:
        """Return whether the row is of a cell of the matrix, and not of a measurement that was read from a file."""
        return self.layout != AS_MEASURED

    def statistic(self, metric: str, stat: str) -> float | None:
        """Return a statistic of the row's metrics, such as ("e2e_s", "p99"); None where it has none."""
        block = (self.metrics or {}).get(metric)
        value = block.get(stat) if isinstance(block, dict) else None
        return None if value is None else float(value)
