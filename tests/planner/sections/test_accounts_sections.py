"""Sections of costs in full, power limits and quality, from blocks as `plan --json` writes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from catalogs.ui.html_page import Section
from planner.answer.schema import AnswerFile
from planner.sections.accounts_page import accounts_sections

CAPS = {
    "accelerator": "h100",
    "own_limit_w": 700.0,
    "voltage_measured_on": "a100-80gb",
    "voltage_measured_here": False,
    "source": "somewhere",
    "least_measured_clock": 0.41,
    "caution": None,
    "note": None,
}
ROW = {
    "note": None,
    "met": True,
    "latency_s": {"ttft.p99": 0.2},
    "latency_change": {"ttft.p99": 0.25},
    "capacity_requests_per_s": 9.0,
    "capacity_change": -0.1,
    "gpu_w_mean": None,
    "j_per_output_token": 0.4,
    "energy_change": -0.2,
}


def sections(**blocks: Any) -> list[Section]:
    given = {"accounts": None, "power_caps": None, "quality": [], "best": None} | blocks
    return accounts_sections(cast(AnswerFile, SimpleNamespace(**given)))


def words(section: Section) -> str:
    return " ".join(str(part) for part in section.parts)


def test_an_older_answer_has_none_of_them() -> None:
    assert sections() == []


def test_limits_are_said_with_their_change_and_those_not_kept_with_the_reason() -> None:
    rows = [{**ROW, "cap_w": None}, {**ROW, "cap_w": 400.0, "met": False}, {"cap_w": 100.0, "note": "too low"}]
    (section,) = sections(power_caps={**CAPS, "rows": rows})
    said = words(section)
    assert "+25 %" in said
    assert "−20 %" in said
    assert said.count(">NO<") == 1
    assert "100 W: too low" in said


def test_an_accelerator_without_limits_says_why() -> None:
    (section,) = sections(power_caps={**CAPS, "rows": [], "note": "power limits are of GPUs"})
    assert "power limits are of GPUs" in words(section)


def test_a_precision_nobody_evaluated_is_said_to_have_no_figures() -> None:
    entry = {"part": "kv", "dtype": "fp8", "note": "no published evaluation is known", "evaluations": []}
    (section,) = sections(quality=[entry])
    assert "no published evaluation is known" in words(section)


def test_hours_of_an_unknown_grid_are_unknown() -> None:
    hours = {"source": None, "note": "yours to give"}
    blocks = {"per_user": None, "spot": None, "owned": None, "rack": None, "carbon_hours": hours}
    (section,) = sections(accounts=blocks)
    assert "unknown" in words(section)
    assert "plan --price" in words(section)
