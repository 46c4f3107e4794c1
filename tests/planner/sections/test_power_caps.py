"""The table of power limits: the same requests on the same plan, with and without; bad limits say what is wrong."""

from __future__ import annotations

import pytest

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from planner.answer.evaluated_plan import EvaluatedPlan
from planner.answer.plan_schema import Plan
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.evaluation.verdict import Verdict
from planner.problem.accounting import Accounting
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.sections import power_limits as section
from planner.sections.power_limits import PowerLimits, PowerLimitsSection, UnusableLimit, power_limits

SLOS = parse_slos(["ttft.p90=500ms", "tpot.mean=40ms"])
SHORT = "lmsys-turns"  # an h100 carries the planned rate of 30 requests/s


def world(hardware: str = "h100") -> SimulatedEvaluator:
    return SimulatedEvaluator.of(
        PlanRequest(model="llama3.1-8b", hardware=hardware, slos=SLOS, workload=SHORT), parse_hardware(hardware)
    )


PLAN = Plan.unstarted({"hardware": "h100"}, None)


def known(value: float | None) -> float:
    assert value is not None
    return value


def planned(found: SimulatedEvaluator, requests_per_s: float, capacity_per_s: float) -> EvaluatedPlan:
    """The first candidate as a plan; its verdict has no part in the section."""
    verdict = Verdict(requests_per_s, (), 0.5, SLOS[0], True)
    return EvaluatedPlan(found.space()[0], requests_per_s, capacity_per_s, verdict, PLAN, met=True)


@pytest.fixture(scope="module")
def block() -> PowerLimits:
    found = world()
    subject = planned(found, 30.0, 64.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(section, "MOST_REQUESTS", 300)  # enough to compare
        return power_limits(found, subject, [350.0, 50.0, 700.0])


def test_a_row_without_a_limit_then_one_for_each(block: PowerLimits) -> None:
    assert [row.cap_w for row in block.rows] == [None, 700.0, 350.0, 50.0]
    _, same, _, hopeless = block.rows
    assert isinstance(same, UnusableLimit)
    assert isinstance(hopeless, UnusableLimit)
    plain, felt = block.measured
    assert plain.capacity_requests_per_s == pytest.approx(64.0)  # the answer's own
    assert "the board's own limit of 700 W" in same.note
    assert "nearest valid choice" in hopeless.note
    assert known(felt.gpu_w_mean) < 350.0 < known(plain.gpu_w_mean)


def test_a_limit_costs_latency_and_capacity_and_saves_energy(block: PowerLimits) -> None:
    plain, felt = block.measured
    assert known(felt.capacity_requests_per_s) < known(plain.capacity_requests_per_s)
    assert known(felt.capacity_change) < 0
    saved = known(felt.j_per_output_token) / known(plain.j_per_output_token) - 1
    assert felt.energy_change == pytest.approx(saved)
    assert known(felt.energy_change) < 0
    assert known(felt.latency_change["ttft.p99"]) > 0
    assert (plain.capacity_change, plain.energy_change) == (0, 0)


def test_the_screen_has_a_line_for_each_and_what_is_assumed(block: PowerLimits) -> None:
    texts = [text for _, text in PowerLimitsSection().screen(block, PLAN)]
    assert len(texts) == 5
    assert texts[2].startswith("350 W: ttft.p99 ")
    assert "a100-80gb and assumed for this board" in texts[-1]


def test_without_a_limit_a_plan_meets_at_its_capacity_what_the_answer_says() -> None:
    """One seed of short runs carries less than this capacity; the row without a limit is still the plan itself."""
    found = world()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(section, "MOST_REQUESTS", 300)
        block = power_limits(found, planned(found, 400.0, 400.0), [350.0])
    plain, felt = block.measured
    assert plain.met
    assert not felt.met
    assert known(felt.capacity_requests_per_s) < 400.0
    missed = [
        text.endswith("; misses the objectives at the planned rate")
        for _, text in PowerLimitsSection().screen(block, PLAN)
    ]
    assert missed == [False, True, False]


def test_limits_are_of_gpus() -> None:
    found = world("epyc-9654")
    block = power_limits(found, planned(found, 0.1, 0.2), [100.0])
    assert block.rows == []
    assert block.note == "power limits apply to GPUs only"


@pytest.mark.parametrize("cap_w", [10.0, 700.0])
def test_a_limit_that_the_board_cannot_have_is_refused_before_the_search_with_one_that_it_can(cap_w: float) -> None:
    terms = Accounting(power_caps_w=[cap_w])
    request = PlanRequest(model="llama3.1-8b", hardware="h100", slos=SLOS, workload=SHORT, accounting=terms)
    evaluator = open_evaluator(request)
    with pytest.raises(InputError) as caught:
        PowerLimitsSection().check(request, evaluator)
    suggested = float(str(caught.value.nearest).rpartition("=")[2])
    valid = request.replace(accounting=Accounting(power_caps_w=[suggested]))
    PowerLimitsSection().check(valid, evaluator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(section, "MOST_REQUESTS", 300)
        here = world()
        found = power_limits(here, planned(here, 30.0, 64.0), [suggested])
    assert [row.cap_w for row in found.measured] == [None, suggested]  # every step of the runs keeps it


def test_what_is_no_limit_is_refused_at_once() -> None:
    assert Accounting(power_caps_w=["500,400", 300]).power_caps_w == (500.0, 400.0, 300.0)
    for wrong in ("four hundred", "-5", "0"):
        with pytest.raises(InputError):
            Accounting(power_caps_w=wrong)
