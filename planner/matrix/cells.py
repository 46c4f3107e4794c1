"""The cells of a matrix: every combination of its axes, in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

from planner.matrix.matrix_file import MatrixFile, OpenLoad

CLOSED: Final = "closed"


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the axes of a matrix.

    Attributes:
        model: Name of the model as the matrix writes it.
        system: Name of the engine in the matrix.
        engine: Engine of the catalog.
        hardware: Largest hardware that the cell may use, as written.
        workload: Name or file of the workload.
        batch: The batch of the engine (`planner.matrix.engine_batches`).
        precision: As written.
        layout: As written, or "auto".
        open_share: Share of the closed loop's requests per second; None for the closed loop itself.
        requests: Number of requests.
        seed: Seed of the requests.
        max_model_len: Longest sequence; None for the longest request.
        keys: Further keys of deployment.yaml.
    """

    model: str
    system: str
    engine: str
    hardware: str
    workload: str
    batch: int
    precision: str
    layout: str
    open_share: float | None
    requests: int
    seed: int
    max_model_len: int | None
    keys: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def load(self) -> str:
        """Return the load as a row writes it: `closed` or `open 0.8`."""
        return CLOSED if self.open_share is None else OpenLoad(open=self.open_share).words

    @property
    def name(self) -> str:
        """Return the axes of the cell, which identify it in its matrix."""
        axes = (self.model, self.system, self.hardware, self.workload, f"batch {self.batch}")
        return " / ".join((*axes, self.precision, self.layout, self.load))

    @property
    def in_closed_loop(self) -> Cell:
        """Return the cell whose requests per second a share refers to."""
        return replace(self, open_share=None)


def cells_of(matrix: MatrixFile) -> list[Cell]:
    """Return every cell; models change slowest, then engines, hardware, workloads and so on, and batches fastest."""
    axes = (matrix.models, matrix.engine_choices, matrix.hardware, matrix.workloads, matrix.precision, matrix.layouts)
    return [
        Cell(
            model=model,
            system=engine.name,
            engine=engine.engine,
            hardware=hardware,
            workload=workload,
            batch=batch,
            precision=precision,
            layout=layout,
            open_share=load.open if isinstance(load, OpenLoad) else None,
            requests=matrix.requests_per_cell,
            seed=matrix.seed,
            max_model_len=matrix.max_model_len,
            keys=matrix.deployment | engine.deployment,
        )
        for model, engine, hardware, workload, precision, layout, load, batch in product(
            *axes, matrix.loads, matrix.batches
        )
    ]
