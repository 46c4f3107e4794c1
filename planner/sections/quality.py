"""Published evaluations of answer quality in the precisions of a plan that differ from the model's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from catalogs.io.json_block import JsonBlock
from catalogs.models.evaluations import Evaluation, Part, evaluations
from catalogs.models.spec import ModelSpec
from catalogs.ui.html_page import Markup, note, paragraph, table
from catalogs.ui.terminal import Line
from planner.answer.plan_schema import Plan
from planner.sections.section import ChosenPlan, Section

#: KV cache precisions that need no note.
WIDE: Final = ("bf16", "fp16", "fp32", "auto")


class EvaluationRow(JsonBlock):
    """A published evaluation, see `catalogs.models.evaluations.Evaluation`; `words` is a one-line summary."""

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
    words: str = ""

    @classmethod
    def of(cls, found: Evaluation) -> EvaluationRow:
        """Return the row of a catalog evaluation."""
        return cls.model_validate({name: getattr(found, name) for name in cls.model_fields})

    @property
    def kept(self) -> str:
        """Return the finding, or the share of the score that is kept, with its publisher and date."""
        finding = self.finding or f"{self.recovery_percent:.1f} % of {self.benchmark}"
        return f"{finding} ({self.by}, {self.as_of})"


class QualityNote(JsonBlock):
    """The evaluations of the weights or of the KV cache in a precision that is not the model's own."""

    part: Part
    dtype: str
    own_dtype: str = ""
    evaluations: list[EvaluationRow]
    note: str | None

    @property
    def words(self) -> str:
        """Return the precision in words, for example "fp8 weights"."""
        return f"{self.dtype} {_PARTS[self.part]}"


_PARTS: Final = {"weights": "weights", "kv": "KV cache"}


class QualitySection(Section[list[QualityNote]]):
    """The section of published evaluations of the plan's precisions; empty if the plan keeps the model's own."""

    name = "quality"
    title = "Quality: effect of lower precision on the answers"
    short_title = "Quality"
    schema = list[QualityNote]

    def compute(self, chosen: ChosenPlan) -> list[QualityNote]:
        """Return a note for the weights and one for the KV cache, each only if it is not the model's own precision."""
        return quality_notes(chosen.evaluator.names.model, chosen.plan.deployment)

    def screen(self, block: list[QualityNote], plan: Plan) -> Iterator[Line]:  # noqa: ARG002
        """Yield the first evaluation of each precision, or its note; the JSON and the page have all evaluations."""
        for i, entry in enumerate(block):
            known = entry.evaluations
            more = f"; {len(known) - 1} more in the JSON" if len(known) > 1 else ""
            text = f"{entry.words}: {known[0].kept}{more}" if known else str(entry.note)
            yield "" if i else "Quality", text

    def page(self, block: list[QualityNote], plan: Plan) -> Iterator[Markup]:  # noqa: ARG002
        """Yield a table of every evaluation, and a note for each precision without one."""
        if block:
            yield paragraph(
                "Published by others and relative to the same model in its own precision; not measured by this planner."
            )
        rows = [_row(entry, e) for entry in block for e in entry.evaluations]
        if rows:
            yield table(("Precision", "Retained", "Scores", "Published by", "Source"), rows, words=5)
        yield from (note(f"{entry.note}.") for entry in block if entry.note)


def quality_notes(model: ModelSpec, deployment: Mapping[str, Any]) -> list[QualityNote]:
    """Return the notes on a deployment's weights and KV cache; empty if both keep the model's own precision."""
    weights, kv = str(deployment["weight_dtype"]), str(deployment["kv_dtype"])
    changed: list[tuple[Part, str, str]] = []
    if weights != model.weight_dtype:
        changed.append(("weights", weights, model.weight_dtype))
    if kv not in WIDE:
        changed.append(("kv", kv, WIDE[0]))
    found = []
    for part, dtype, own in changed:
        known = [EvaluationRow.of(e) for e in evaluations(model.name, part, dtype)]
        nothing = f"the catalog has no public evaluation of {model.name} with {dtype} {_PARTS[part]}"
        note = None if known else f"{nothing}: measure it on your own task"
        found.append(QualityNote(part=part, dtype=dtype, own_dtype=own, evaluations=known, note=note))
    return found


def _row(entry: QualityNote, e: EvaluationRow) -> tuple[str, ...]:
    found = e.finding or f"{e.benchmark}: {e.recovery_percent:.1f} %"
    scores = "" if e.score is None else f"{e.score:g}, baseline {e.baseline:g}"
    source = "; ".join(p for p in (e.method, e.by, e.as_of) if p)
    return entry.words, found, scores, source, e.source.replace("https://", "")
