"""What public evaluations say of a model in another precision than its own. Nothing is estimated; unknown is empty."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from catalogs.io.yaml_files import DATA, read_yaml, validate_as

FILE = DATA / "evaluations.yaml"

#: What a source says of many models at once.
ANY_MODEL: Final = "*"

Part = Literal["weights", "kv"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One published figure, or what a source says in words (`finding`).

    recovery_percent: score over that in the model's own precision, 100 the same; None where only words are known.
    """

    model: str
    part: str
    dtype: str
    method: str
    benchmark: str
    score: float | None
    baseline: float | None
    recovery_percent: float | None
    finding: str
    by: str
    as_of: str
    source: str

    @property
    def words(self) -> str:
        """ "OpenLLM v1 average 84.29 against 84.40, 99.9 % (GPTQ; Neural Magic, 2024-07-23)"."""
        whose = "; ".join(p for p in (self.method, f"{self.by}, {self.as_of}") if p)
        if self.finding:
            return f"{self.finding} ({whose})"
        scores = "" if self.score is None else f" {self.score:g} against {self.baseline:g},"
        return f"{self.benchmark}{scores} {self.recovery_percent:.1f} % ({whose})"


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    part: Part
    dtype: str
    method: str = ""
    benchmark: str = ""
    score: float | None = None
    baseline: float | None = None
    recovery: float | None = None
    finding: str = ""
    by: str
    as_of: str
    source: str

    @model_validator(mode="after")
    def _says_something(self) -> _Row:
        scored = self.score is not None and self.baseline is not None
        if scored + (self.recovery is not None) + bool(self.finding) != 1:
            raise ValueError("an evaluation is a score with its baseline, a recovery, or a finding in words")
        if not self.finding and not self.benchmark:
            raise ValueError("a figure needs its benchmark")
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    evaluations: tuple[_Row, ...]


def evaluations(model: str, part: Part, dtype: str) -> tuple[Evaluation, ...]:
    """Of a catalog model, by name, in this precision: its own first, then what is said of many; () where none is."""
    found = [e for e in list_evaluations() if (e.part, e.dtype) == (part, dtype) and e.model in (model, ANY_MODEL)]
    return tuple(sorted(found, key=lambda e: e.model == ANY_MODEL))


@cache
def list_evaluations() -> tuple[Evaluation, ...]:
    """Every row of the catalog."""
    return tuple(_evaluation(row) for row in validate_as(_File, read_yaml(FILE), FILE.name).evaluations)


def _evaluation(row: _Row) -> Evaluation:
    recovery = row.recovery
    if row.score is not None and row.baseline is not None:
        recovery = 100.0 * row.score / row.baseline
    kept = row.model_dump(exclude={"recovery"})
    return Evaluation(**kept, recovery_percent=recovery)
