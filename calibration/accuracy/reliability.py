"""How often measured runs met limits, by the predicted probability of meeting them; every report shows this file.

`benchmarks/stated_error.py --page` computes it on public runs that no stated error was learned from.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, Field, PositiveInt

from catalogs.io.yaml_files import DATA

PATH: Final = DATA / "calibrations" / "reliability.json"

#: Predicted probabilities at which the shares are kept.
SAID: Final = tuple(round(0.02 * i, 2) for i in range(51))


class RunKind(BaseModel, extra="forbid", frozen=True):
    """The observed frequencies of one kind of run.

    `right` are the shares of its n statistics that met a limit, one share for each predicted probability in SAID.
    """

    name: str
    n: PositiveInt
    right: tuple[float, ...] = Field(min_length=len(SAID), max_length=len(SAID))


class Reliability(BaseModel, extra="forbid", frozen=True):
    """The contents of the shipped file reliability.json."""

    schema_version: Literal[1] = 1
    command: str  # the command that computes it
    kinds: tuple[RunKind, ...]


def load_reliability() -> Reliability:
    """Load the shipped file reliability.json."""
    return Reliability.model_validate_json(PATH.read_text(encoding="utf-8"))
