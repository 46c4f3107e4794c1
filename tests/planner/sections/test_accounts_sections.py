"""Sections of the page: costs in full, power limits and quality, from blocks as `plan --json` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from catalogs.ui import html_page
from planner.answer.plan_schema import Plan
from planner.sections.accounts import AccountsSection, PlanAccounts
from planner.sections.power_limits import PowerLimits, PowerLimitsSection
from planner.sections.quality import QualityNote, QualitySection

PLAN = Plan.unstarted({"hardware": "h100x8"}, None)
LIMITS = {
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


def limits(**more: object) -> PowerLimits:
    return PowerLimits.model_validate_json(json.dumps(LIMITS | more))


def words(parts: Iterable[html_page.Markup]) -> str:
    return " ".join(map(str, parts))


def test_limits_are_said_with_their_change_and_those_not_kept_with_the_reason() -> None:
    rows = [{**ROW, "cap_w": None}, {**ROW, "cap_w": 400.0, "met": False}, {"cap_w": 100.0, "note": "too low"}]
    said = words(PowerLimitsSection().page(limits(rows=rows), PLAN))
    assert "+25 %" in said
    assert "−20 %" in said
    assert said.count(">no<") == 1
    assert "100 W: too low" in said


def test_an_accelerator_without_limits_says_why() -> None:
    said = words(PowerLimitsSection().page(limits(rows=[], note="power limits are of GPUs"), PLAN))
    assert "power limits are of GPUs" in said


def test_a_precision_that_was_never_evaluated_is_said_to_have_no_figures() -> None:
    note = QualityNote(part="kv", dtype="fp8", note="no published evaluation is known", evaluations=[])
    assert "no published evaluation is known" in words(QualitySection().page([note], PLAN))
    assert list(QualitySection().page([], PLAN)) == []


def test_hours_of_an_unknown_grid_are_unknown() -> None:
    hours = {"source": None, "note": "yours to give"}
    data = {"per_user": None, "spot": None, "owned": None, "rack": None, "carbon_hours": hours}
    block = PlanAccounts.model_validate_json(json.dumps(data))
    said = words(AccountsSection().page(block, PLAN))
    assert "unknown" in said
    assert "plan --price" in said
