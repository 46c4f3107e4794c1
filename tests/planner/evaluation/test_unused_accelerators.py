"""The energy of a candidate counts the accelerators that are rented with it and idle."""

from __future__ import annotations

from functools import cache

import pytest

from catalogs.hardware.catalog import parse_hardware
from planner.answer.plan_figures import steady_metrics
from planner.economics.ownership import OwnedHardware
from planner.evaluation.observation import Load, RunDetail
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.evaluation.verdict import judge
from planner.problem.candidate import Candidate
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.problem.tariff import Tariff

REQUEST = PlanRequest(
    model="llama3.1-8b",
    hardware="h100x4",
    slos=parse_slos(["ttft.p99=500ms"]),
    objective="energy",
    precisions=("native",),
    requests_per_s=30.0,
)

LOAD = Load(20.0, 60, 0)

#: Idle watts of an H100 with its share of the idle host, by hand from the hardware catalog.
EACH_W = parse_hardware("h100").accelerator.idle_w + parse_hardware("h100x8").node.host_idle_w / 8


def evaluator(request: PlanRequest = REQUEST) -> SimulatedEvaluator:
    return SimulatedEvaluator.of(request, parse_hardware("h100x4"))


@cache
def pairs_and_ones() -> tuple[SimulatedEvaluator, SimulatedEvaluator, Candidate, Candidate]:
    """The evaluator, the same without instances, a replica of two accelerators, and two replicas of one."""
    own, bare = evaluator(), evaluator(REQUEST.replace(tariff=Tariff(usd_per_hour=10.0)))
    both = [c for c in own.space() if c.hardware.n_accelerators == 2 and not c.split]
    (pair, *_) = (c for c in both if c.layout.tensor_parallel == 2)
    (ones, *_) = (c for c in both if c.layout.accelerators == 1)
    return own, bare, pair, ones


def test_a_part_of_an_instance_has_the_idle_power_of_the_rest() -> None:
    own, bare, pair, ones = pairs_and_ones()
    assert own.unused_w(pair) == pytest.approx(6 * EACH_W)
    assert own.unused_w(ones) == 0.0
    assert bare.unused_w(pair) == 0.0
    assert own.guess_w(pair, 20.0) - bare.guess_w(pair, 20.0) == pytest.approx(6 * EACH_W)
    assert own.guess_w(ones, 20.0) == bare.guess_w(ones, 20.0)


def test_owned_hardware_rents_nothing() -> None:
    accounting = REQUEST.accounting.replace(owned=OwnedHardware(capex=1e5, years=4, power_price=0.1))
    found = evaluator(REQUEST.replace(accounting=accounting))
    assert found.unused_w(pairs_and_ones()[2]) == 0.0


def test_runs_count_it_and_state_it() -> None:
    """Without it, one replica of two accelerators seemed to need less energy than two replicas of one."""
    own, bare, pair, ones = pairs_and_ones()
    counted, plain = own.detail(pair, LOAD), bare.detail(pair, LOAD)
    per_s = LOAD.requests_per_s * own.mean_output_tokens
    more_j = 6 * EACH_W / per_s
    assert counted.power_w - plain.power_w == pytest.approx(6 * EACH_W)
    for seen in (counted.observation, own.observe(pair, LOAD)):
        assert seen.joules_per_output_token - bare.observe(pair, LOAD).joules_per_output_token == pytest.approx(more_j)
    assert own.observe(ones, LOAD).joules_per_output_token == bare.observe(ones, LOAD).joules_per_output_token

    def power(detail: RunDetail) -> object:
        return steady_metrics([detail], judge([detail.observation], REQUEST.slos))["power"]

    assert power(counted) == {**plain.metrics["power"], "unused_w": 6 * EACH_W, "node_w_mean": counted.power_w}  # type: ignore[dict-item]
    assert "unused_w" not in power(plain)  # type: ignore[operator]
