"""The table of hardware on the screen: it fits every width, and marks estimates of hardware that was not measured."""

from __future__ import annotations

import pytest

from planner.answer.hardware_ranking import HardwareRow, estimate_sentences, marked_words
from planner.answer.plan_schema import CalibrationBlock, Evidence, Plan
from planner.cli.screens.plan import _hardware_table


def row(hardware: str, evidence: Evidence = "measured", borrowed_from: str | None = None) -> HardwareRow:
    return HardwareRow(
        hardware=hardware,
        state="holds",
        evidence=evidence,
        borrowed_from=borrowed_from,
        usd_per_hour=12.5,
        usd_per_month=238_786.0,
        usd_per_million_output_tokens=35.92,
        j_per_output_token=0.448,
        capacity_requests_per_s=18.1,
        ttft_s=0.297,
        ttft_stat="p99",
        tpot_s=0.00752,
        tpot_stat="p95",
        limited_by="ttft.p99",
        weight_dtype="bf16",
    )


def calibration(borrowed_from: str | None, roofline: float) -> CalibrationBlock:
    fractions = {"measured_fraction": 0.0, "interpolated_fraction": 1 - roofline, "roofline_fraction": roofline}
    return CalibrationBlock(bundle="a", borrowed_from=borrowed_from, expected_error=0.1, **fractions)


ROWS = [row("a100-80gb-pciex5", "borrowed", "a100-80gb"), row("h100x1"), row("mi300xx1", "roofline")]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_cell_is_cut_or_wrapped(width: int) -> None:
    lines = _hardware_table(ROWS, width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    for each in ROWS:
        line = next(line for line in lines if line.lstrip().startswith(each.marked_hardware))
        assert line.rstrip().endswith("7.52 ms")


def test_columns_are_left_out_in_their_order() -> None:
    heads = {
        width: next(line for line in _hardware_table(ROWS, width) if "TTFT" in line) for width in (60, 80, 100, 200)
    }
    names = ("$/h ", "$/Mtok", "weights", "J/token", "limited by", "$/month")
    shown = {width: [name for name in names if name in f"{head} "] for width, head in heads.items()}
    assert all(each == list(names[: len(each)]) for each in shown.values())
    assert shown[200] == list(names)
    assert len(shown[60]) < len(shown[80]) < len(shown[100]) < len(names)


def test_estimates_are_marked_and_explained_below() -> None:
    text = "\n".join(_hardware_table(ROWS, 200))
    assert "a100-80gb-pciex5 ~" in text
    assert "mi300xx1 ~" in text
    assert "h100x1 ~" not in text
    assert (
        "~           an estimate: its operator times are borrowed from another accelerator (a100-80gb-pcie from" in text
    )
    assert "a100-80gb), or mostly roofline estimates (mi300x)" in " ".join(text.split())
    assert marked_words([ROWS[1]]) == ""


@pytest.mark.parametrize(
    ("block", "evidence"),
    [
        (calibration(None, 0.2), "measured"),
        (calibration(None, 0.6), "roofline"),
        (calibration("h100", 0.1), "borrowed"),
    ],
)
def test_the_evidence_of_a_plan_is_borrowed_or_mostly_a_roofline(block: CalibrationBlock, evidence: str) -> None:
    assert block.evidence == evidence
    assert (block.estimate_words == "") == (evidence == "measured")


def test_a_recommended_estimate_names_the_best_measured_hardware() -> None:
    plan = Plan.unstarted({"model": "m", "hardware": "h100-nvlx1"}, None)
    assert estimate_sentences(plan, ROWS) == ""  # an answer without a calibration
    plan = plan.model_copy(update={"calibration": calibration("h100", 1.0)})
    words = estimate_sentences(plan, ROWS)
    assert words.startswith("This is an estimate: its operator times are borrowed from h100.")
    assert "The best plan with measured operator times is on h100x1, at $12.50/h." in words
    assert "best plan" not in estimate_sentences(plan, [ROWS[0]])
