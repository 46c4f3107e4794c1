"""The table of power limits: the same requests on the same plan, with and without; bad limits say what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs.errors import InputError
from planner.evaluation.simulated import SimulatedEvaluator
from planner.problem.accounting import Accounting
from planner.problem.candidate import Candidate
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.sections import power_limits as power_caps
from planner.sections.power_limits import PowerLimitedPlan, power_cap_lines, power_caps_block

SLOS = parse_slos(["ttft.p90=500ms", "tpot.mean=40ms"])


def world(hardware: str = "h100") -> SimulatedEvaluator:
    return SimulatedEvaluator(PlanRequest("llama3.1-8b", hardware, SLOS))


def first(found: SimulatedEvaluator) -> Candidate:
    return found.space()[0]


@pytest.fixture(scope="module")
def block() -> dict[str, Any]:
    found = world()
    subject = PowerLimitedPlan(first(found), 30.0, 64.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(power_caps, "MOST_REQUESTS", 300)  # enough to compare
        return power_caps_block(found, subject, [350.0, 50.0, 700.0])


def test_a_row_without_a_limit_then_one_for_each(block: dict[str, Any]) -> None:
    assert [row["cap_w"] for row in block["rows"]] == [None, 700.0, 350.0, 50.0]
    plain, same, felt, hopeless = block["rows"]
    assert plain["capacity_requests_per_s"] == pytest.approx(64.0)  # the answer's own
    assert "the board's own is 700 W" in same["note"]
    assert "nearest valid choice" in hopeless["note"]
    assert felt["gpu_w_mean"] < 350.0 < plain["gpu_w_mean"]


def test_a_limit_costs_latency_and_capacity_and_saves_energy(block: dict[str, Any]) -> None:
    plain, _, felt, _ = block["rows"]
    assert felt["capacity_requests_per_s"] < plain["capacity_requests_per_s"]
    assert felt["capacity_change"] < 0
    assert felt["energy_change"] == pytest.approx(felt["j_per_output_token"] / plain["j_per_output_token"] - 1)
    assert felt["energy_change"] < 0
    assert felt["latency_change"]["ttft.p99"] > 0
    assert (plain["capacity_change"], plain["energy_change"]) == (0, 0)


def test_the_screen_has_a_line_for_each_and_what_is_assumed(block: dict[str, Any]) -> None:
    texts = [text for _, text in power_cap_lines({"power_caps": block})]
    assert len(texts) == 5
    assert texts[2].startswith("350 W: ttft.p99 ")
    assert "a100-80gb, assumed here" in texts[-1]
    assert list(power_cap_lines({})) == []


def test_limits_are_of_gpus() -> None:
    found = world("epyc-9654")
    block = power_caps_block(found, PowerLimitedPlan(first(found), 0.1, 0.2), [100.0])
    assert block["rows"] == []
    assert block["note"] == "power limits are of GPUs"


def test_what_is_no_limit_is_refused_at_once() -> None:
    assert Accounting.parse(None, None, ["500,400", "300"]).power_caps_w == (500.0, 400.0, 300.0)
    for wrong in ("four hundred", "-5", "0"):
        with pytest.raises(InputError):
            Accounting.parse(None, None, [wrong])
