"""Published evaluations: each with a source and a date, of models the catalog knows; nothing is made up."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from catalogs.models.catalog import list_models, load_model
from catalogs.models.evaluations import ANY_MODEL, Evaluation, evaluations, list_evaluations
from catalogs.units import DTYPE_BYTES
from planner.answer.plan_schema import Plan
from planner.sections.quality import QualityNote, QualitySection, quality_notes


def test_every_evaluation_has_a_source_a_date_and_a_model_of_the_catalog() -> None:
    assert len(list_evaluations()) > 20
    for e in list_evaluations():
        assert e.model == ANY_MODEL or e.model in list_models()
        assert e.source.startswith("https://")
        assert e.as_of[:2] == "20"
        assert e.by
        assert e.dtype in DTYPE_BYTES
        assert e.finding or (e.recovery_percent is not None and 80 < e.recovery_percent < 110)


def test_recovery_by_hand() -> None:
    (found,) = evaluations("llama3.1-70b", "weights", "fp8")
    assert found.recovery_percent == pytest.approx(100 * 84.29 / 84.40)
    assert found.words.startswith("OpenLLM v1 average 84.29 against 84.4, 99.9 %")
    own, many = evaluations("llama3.1-8b", "kv", "fp8")
    assert (own.model, many.model) == ("llama3.1-8b", ANY_MODEL)


@pytest.mark.parametrize(
    "rest",
    [
        {},
        {"score": 1.0},
        {"score": 1.0, "baseline": 1.0},  # of which benchmark
        {"recovery": 99.0, "finding": "fine", "benchmark": "MMLU"},
    ],
)
def test_a_row_that_says_nothing_or_too_much_is_refused(rest: dict[str, object]) -> None:
    row = {"model": "x", "part": "kv", "dtype": "fp8", "by": "y", "as_of": "2026", "source": "https://z"}
    with pytest.raises(ValidationError):
        Evaluation.model_validate(row | rest)


def test_a_plan_in_the_models_own_precision_needs_no_note() -> None:
    model = load_model("llama3.1-8b")
    assert quality_notes(model, {"weight_dtype": "bf16", "kv_dtype": "bf16"}) == []
    assert quality_notes(load_model("llama3.1-8b-fp8"), {"weight_dtype": "fp8", "kv_dtype": "bf16"}) == []


def screen(notes: list[QualityNote]) -> list[tuple[str, str]]:
    return list(QualitySection().screen(notes, Plan.unstarted({}, None)))


def test_what_nobody_published_is_said_to_be_unknown() -> None:
    (entry,) = quality_notes(load_model("yi-34b"), {"weight_dtype": "int4", "kv_dtype": "bf16"})
    assert entry.evaluations == []
    assert "no public evaluation of yi-34b with int4 weights" in str(entry.note)
    lines = screen([entry])
    assert lines == [("Quality", entry.note)]


def test_the_screen_says_the_first_and_how_many_more() -> None:
    block = quality_notes(load_model("llama3.1-8b"), {"weight_dtype": "int4", "kv_dtype": "fp8"})
    (weights, kv) = screen(block)
    assert weights[1] == "int4 weights: 98.9 % of OpenLLM v1 average (Neural Magic, 2024-07-26); 2 more in the JSON"
    assert kv[0] == ""
