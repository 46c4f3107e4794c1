"""Published evaluations of models in another precision than their own; nothing is estimated, and unknown is empty."""

from __future__ import annotations

from functools import cache
from typing import Final, Literal

from pydantic import model_validator

from catalogs.io.yaml_files import DATA, YamlBlock, read_yaml, validate_as

FILE = DATA / "evaluations.yaml"

#: The model name of findings about many models at once.
ANY_MODEL: Final = "*"

Part = Literal["weights", "kv"]


class Evaluation(YamlBlock):
    """One published figure (a score with its baseline, or a recovery), or a statement of the source in words."""

    model: str
    part: Part
    dtype: str
    method: str = ""
    benchmark: str = ""
    score: float | None = None
    baseline: float | None = None  # the score in the model's own precision
    recovery: float | None = None  # in per cent of the score in the model's own precision
    finding: str = ""
    by: str
    as_of: str
    source: str

    @property
    def recovery_percent(self) -> float | None:
        """Return the score in per cent of that in the model's own precision; None where only words are known."""
        return self.recovery if self.score is None or self.baseline is None else 100.0 * self.score / self.baseline

    @property
    def words(self) -> str:
        """The figure as text: "OpenLLM v1 average 84.29 against 84.40, 99.9 % (GPTQ; Neural Magic, 2024-07-23)"."""
        origin = "; ".join(p for p in (self.method, f"{self.by}, {self.as_of}") if p)
        if self.finding:
            return f"{self.finding} ({origin})"
        scores = "" if self.score is None else f" {self.score:g} against {self.baseline:g},"
        return f"{self.benchmark}{scores} {self.recovery_percent:.1f} % ({origin})"

    @model_validator(mode="after")
    def _has_one_figure(self) -> Evaluation:
        scored = self.score is not None and self.baseline is not None
        if scored + (self.recovery is not None) + bool(self.finding) != 1:
            raise ValueError("an evaluation needs exactly one of: a score with its baseline, a recovery, a finding")
        if not self.finding and not self.benchmark:
            raise ValueError("a figure needs its benchmark")
        return self


class _File(YamlBlock):
    evaluations: tuple[Evaluation, ...]


def evaluations(model: str, part: Part, dtype: str) -> tuple[Evaluation, ...]:
    """Return the evaluations of a catalog model in this precision: first its own, then those of many models at once."""
    found = [e for e in list_evaluations() if (e.part, e.dtype) == (part, dtype) and e.model in (model, ANY_MODEL)]
    return tuple(sorted(found, key=lambda e: e.model == ANY_MODEL))


@cache
def list_evaluations() -> tuple[Evaluation, ...]:
    """Return every evaluation in the catalog."""
    return validate_as(_File, read_yaml(FILE), FILE.name).evaluations
