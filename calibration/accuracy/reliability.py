"""How often measured runs met a limit that a prediction gave a probability for; a shipped file, shown in every report.

`benchmarks/coverage.py --page` computes it on public runs that no stated error was learned from.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, Field, PositiveInt

from catalogs.io.yaml_files import DATA

PATH: Final = DATA / "calibrations" / "reliability.json"

#: Predicted probabilities at which the shares are kept.
SAID: Final = tuple(round(0.02 * i, 2) for i in range(51))


class RunKind(BaseModel, extra="forbid", frozen=True):
    """One kind of run.

    `right` is the share of its n statistics that met the limit predicted with each probability in SAID.
    """

    name: str
    n: PositiveInt
    right: tuple[float, ...] = Field(min_length=len(SAID), max_length=len(SAID))


class Reliability(BaseModel, extra="forbid", frozen=True):
    """The shipped file."""

    schema_version: Literal[1] = 1
    command: str  # the command that computes it
    kinds: tuple[RunKind, ...]


def load_reliability() -> Reliability:
    """Load the shipped file."""
    return Reliability.model_validate_json(PATH.read_text(encoding="utf-8"))
