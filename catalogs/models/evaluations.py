"""Published evaluations of models in another precision than their own; nothing is estimated, and unknown is empty."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from catalogs.io.yaml_files import DATA, read_yaml, validate_as

FILE = DATA / "evaluations.yaml"

#: The model name of findings about many models at once.
ANY_MODEL: Final = "*"

Part = Literal["weights", "kv"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One published figure, or a statement of the source in words (`finding`).

    `recovery_percent` is the score relative to that in the model's own precision, where 100 means equal; None where
    only words are known.
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
        """The figure as text: "OpenLLM v1 average 84.29 against 84.40, 99.9 % (GPTQ; Neural Magic, 2024-07-23)"."""
        origin = "; ".join(p for p in (self.method, f"{self.by}, {self.as_of}") if p)
        if self.finding:
            return f"{self.finding} ({origin})"
        scores = "" if self.score is None else f" {self.score:g} against {self.baseline:g},"
        return f"{self.benchmark}{scores} {self.recovery_percent:.1f} % ({origin})"


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
    def _has_one_figure(self) -> _Row:
        scored = self.score is not None and self.baseline is not None
        if scored + (self.recovery is not None) + bool(self.finding) != 1:
            raise ValueError("an evaluation needs exactly one of: a score with its baseline, a recovery, a finding")
        if not self.finding and not self.benchmark:
            raise ValueError("a figure needs its benchmark")
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    evaluations: tuple[_Row, ...]


def evaluations(model: str, part: Part, dtype: str) -> tuple[Evaluation, ...]:
    """Return the evaluations of a catalog model in this precision: first its own, then those of many models at once."""
    found = [e for e in list_evaluations() if (e.part, e.dtype) == (part, dtype) and e.model in (model, ANY_MODEL)]
    return tuple(sorted(found, key=lambda e: e.model == ANY_MODEL))


@cache
def list_evaluations() -> tuple[Evaluation, ...]:
    """Return every evaluation in the catalog."""
    return tuple(_evaluation(row) for row in validate_as(_File, read_yaml(FILE), FILE.name).evaluations)


def _evaluation(row: _Row) -> Evaluation:
    recovery = row.recovery
    if row.score is not None and row.baseline is not None:
        recovery = 100.0 * row.score / row.baseline
    kept = row.model_dump(exclude={"recovery"})
    return Evaluation(**kept, recovery_percent=recovery)
