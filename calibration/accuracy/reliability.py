"""How often measured runs met a limit that they were said to meet with some probability: shipped, for every report.

Found by `benchmarks/coverage.py --page` on public runs whose measurements no stated error was learned from.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from catalogs.io.yaml_files import DATA

PATH: Final = DATA / "calibrations" / "reliability.json"

#: Probabilities said, at which the shares are kept.
SAID: Final = tuple(round(0.02 * i, 2) for i in range(51))


class RunKind(BaseModel):
    """One kind of run. right: of its n statistics, the share that was at most the limit said to hold with SAID."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    n: PositiveInt
    right: tuple[float, ...] = Field(min_length=len(SAID), max_length=len(SAID))


class Reliability(BaseModel):
    """The file as it is shipped."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    command: str  # that finds it
    kinds: tuple[RunKind, ...]


def load_reliability() -> Reliability:
    """What is shipped."""
    return Reliability.model_validate_json(PATH.read_text(encoding="utf-8"))
