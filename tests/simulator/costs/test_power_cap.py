"""Power limits: laws of clocks, voltages and steps, by hand and against public measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.bundles.lower_clock import DATACENTER, LEAST_CLOCK_PART, WORKSTATION, Clocked, stretch, voltage_curve
from calibration.operators.operators import Collective, Gemm
from calibration.power.model import LIMIT_SHARE
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.workloads.workload import load_workload
from simulator.analysis.metrics import summarise
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.cluster.simulate import simulate
from simulator.core.batch import BatchShape
from simulator.costs.power_limit import CLOCKS, CappedStepCost, PowerLimitedBoard, decode_kind

DATA = Path(__file__).parents[3] / "benchmarks" / "data" / "power_caps.json"
clocks = st.floats(0.2, 1.0)
seconds = st.floats(1e-6, 1e-2)


@pytest.fixture(scope="module")
def plant() -> CompiledDeployment:
    return compile_deployment(Deployment(model="llama3.1-8b", hardware="h100"))


@pytest.fixture(scope="module")
def board(plant: CompiledDeployment) -> PowerLimitedBoard:
    return PowerLimitedBoard(plant.cost, plant.bundle)


def of(arithmetic_s: float, memory_s: float, taken_s: float, clock: float) -> float:
    return float(stretch(np.array(arithmetic_s), np.array(memory_s), np.array(taken_s), clock))


@given(seconds, seconds, st.floats(1.0, 5.0), clocks)
def test_a_lower_clock_never_helps_and_never_costs_more_than_its_share(
    a: float, m: float, slack: float, f: float
) -> None:
    taken = max(a, m) * slack
    longer = of(a, m, taken, f)
    assert 1.0 - 1e-9 <= longer <= 1.0 / f + 1e-9
    assert of(a, m, taken, 1.0) == pytest.approx(1.0)
    assert longer >= of(a, m, taken, min(1.0, f * 1.1)) - 1e-9


def test_arithmetic_follows_the_clock_and_memory_does_not() -> None:
    assert of(1e-3, 1e-4, 1e-3, 0.5) == pytest.approx(2.0, rel=1e-3)
    assert of(1e-5, 1e-3, 1e-3, 0.8) < 1.03
    assert of(1e-5, 1e-3, 1e-3, 0.3) > 1.5  # bandwidth falls at last
    assert of(1e-7, 1e-7, 1e-5, 0.5) > 1.5  # latency runs on the clock
    # by hand: part 0.5 at half of the clock, ((1 + 1) / (1 + 1 / 16)) ** 0.25
    assert of(0.0, 1e-3, 1e-3, 0.5) == pytest.approx((2 / 1.0625) ** 0.25)
    assert LEAST_CLOCK_PART == 0.5


def test_voltage_by_hand() -> None:
    assert DATACENTER.at(1.0) == WORKSTATION.at(1.0) == 1.0
    assert DATACENTER.at(0.9) == pytest.approx(1 - 0.088)
    assert DATACENTER.at(0.5) == 0.80
    assert voltage_curve(parse_hardware("a100-80gb").accelerator) == (DATACENTER, True)
    assert voltage_curve(parse_hardware("h100").accelerator) == (DATACENTER, False)
    assert voltage_curve(parse_hardware("rtxpro6000").accelerator) == (WORKSTATION, True)
    assert voltage_curve(parse_hardware("l40s").accelerator) == (WORKSTATION, False)


def test_the_curves_meet_the_measurements_they_are_of() -> None:
    """Watts of an A100 at 33 clocks and of vLLM under 20 limits, the amplitude of each run free."""
    data = json.loads(DATA.read_text())
    table = data["clock_tables"]["a100-80gb"]
    mhz, taken, joules = np.array(table["rows"]).T
    clock = mhz / table["max_mhz"]
    shape = clock * np.array([DATACENTER.at(f) for f in clock]) ** 2
    above = joules / taken - parse_hardware("a100-80gb").accelerator.idle_w
    off = above / shape / np.median(above / shape) - 1
    assert np.abs(off).mean() < 0.015
    for limited in data["limit_tables"]["runs"]:
        _, _, watts, mhz = np.array(limited["rows"]).T
        clock = mhz / data["limit_tables"]["max_mhz"]
        shape = clock * np.array([WORKSTATION.at(f) for f in clock]) ** 2
        drawn = (watts - 131.0) / shape
        assert np.abs(drawn / np.median(drawn) - 1).mean() < 0.05


@pytest.mark.parametrize("op", [Gemm(4096, 4096, 4096, "bf16"), Gemm(8, 4096, 4096, "bf16")])
def test_at_the_full_clock_nothing_changes_and_below_it_watts_fall(plant: CompiledDeployment, op: Gemm) -> None:
    full, same = plant.bundle.cost(op), Clocked(plant.bundle, 1.0).cost(op)
    assert float(same.seconds) == pytest.approx(float(full.seconds))
    assert float(same.watts) == pytest.approx(float(full.watts))
    watts = [float(Clocked(plant.bundle, f).cost(op).watts) for f in CLOCKS]
    assert all(b < a for a, b in pairwise(watts))
    assert watts[-1] > plant.bundle.accelerator.idle_w


def test_a_link_keeps_its_clock(plant: CompiledDeployment) -> None:
    op = Collective("all_reduce", np.array(1e8), 2)
    slower = float(Clocked(plant.bundle, 0.5).cost(op).seconds) / float(plant.bundle.cost(op).seconds)
    assert slower == pytest.approx((2 / 1.0625) ** 0.25)


def test_at_the_boards_own_limit_steps_are_as_they_were(plant: CompiledDeployment, board: PowerLimitedBoard) -> None:
    same = CappedStepCost(board, board.accelerator.tdp_w)
    for shape in shapes():
        assert same.cycle_s(shape) == plant.cost.cycle_s(shape)


def shapes() -> list[BatchShape]:
    single = BatchShape(decodes=1, decode_context_sum=900, decode_context_max=900, logits=1)
    many = BatchShape(decodes=256, decode_context_sum=256 * 900, decode_context_max=2000, logits=256)
    prompt = BatchShape(prefill_tokens=4096, prefill_pairs=4096**2 / 2, prefill_chunks=1, logits=1)
    return [single, many, prompt, many.with_counts(prefill_tokens=2048, prefill_pairs=2048**2 / 2, prefill_chunks=2)]


def test_a_lower_limit_takes_longer_where_it_is_felt(board: PowerLimitedBoard) -> None:
    costs = [CappedStepCost(board, w) for w in (700.0, 600.0, 500.0, 400.0, 300.0)]
    for shape in shapes():
        taken = [c.cycle_s(shape) for c in costs]
        assert all(b >= a - 1e-12 for a, b in pairwise(taken))
    single, _, prompt, _ = shapes()
    factor = [c.cycle_s(prompt) / costs[0].cycle_s(prompt) for c in costs]
    assert factor[-1] > 1.5
    assert costs[2].cycle_s(single) / costs[0].cycle_s(single) < factor[2]  # memory decides there


@settings(deadline=None)
@given(st.integers(1, 400), st.floats(10, 8000), st.floats(250.0, 690.0))
def test_by_turns_at_two_clocks_a_step_draws_the_limit(
    board: PowerLimitedBoard, decodes: int, context: float, limit_w: float
) -> None:
    kind = decode_kind(decodes, context)
    taken, free = board.under(kind, limit_w), board.at(kind, 0)
    held_w = LIMIT_SHARE * limit_w
    if free[1] <= held_w * free[0]:
        assert taken == free[0]
        return
    levels = [board.at(kind, i) for i in range(len(CLOCKS))]
    k = next(i for i, (s, j) in enumerate(levels) if j <= held_w * s)
    (fast_s, fast_j), (slow_s, slow_j) = levels[k - 1], levels[k]
    part = (slow_s - taken) / (slow_s - fast_s) if slow_s != fast_s else 0.0
    assert -1e-9 <= part <= 1 + 1e-9
    if slow_s > fast_s * (1 + 1e-9):
        assert part * fast_j + (1 - part) * slow_j == pytest.approx(held_w * taken, rel=1e-6)


def test_a_run_of_decode_steps_begins_as_its_first_step(board: PowerLimitedBoard) -> None:
    capped = CappedStepCost(board, 400.0)
    for n, mean in ((1, 900), (200, 1000), (256, 1023), (33, 4095)):
        shape = BatchShape(decodes=n, decode_context_sum=n * mean, decode_context_max=mean + 50, logits=n)
        first, slope, steps = capped.decode_segment(n, n * mean, mean + 50)
        assert first == capped.cycle_s(shape)
        last = shape.with_counts(decode_context_sum=n * (mean + steps - 1), decode_context_max=mean + 49 + steps)
        assert first + slope * (steps - 1) == pytest.approx(capped.cycle_s(last), rel=1e-9)


def test_a_run_keeps_the_limit_saves_energy_and_is_fast_forwarded_exactly(
    plant: CompiledDeployment, board: PowerLimitedBoard
) -> None:
    requests = load_workload("lmsys-turns").materialise(0, 300, 60.0)
    capped = replace(plant, cost=CappedStepCost(board, 350.0))
    plain, held = (summarise(simulate(p, requests))["metrics"] for p in (plant, capped))
    assert plain["power"]["gpu_w_mean"] > 350.0
    assert held["power"]["gpu_w_mean"] <= LIMIT_SHARE * 350.0 + 1e-6
    assert held["tpot_s"]["mean"] > plain["tpot_s"]["mean"]
    assert held["energy"]["gpu_j_per_output_token"] < plain["energy"]["gpu_j_per_output_token"]
    slowly = summarise(simulate(capped, requests, RunOptions(fast_forward=False)))["metrics"]
    assert slowly["e2e_s"]["mean"] == pytest.approx(held["e2e_s"]["mean"], abs=1e-9)


def test_a_limit_below_the_lowest_clock_is_refused_with_one_that_works(board: PowerLimitedBoard) -> None:
    with pytest.raises(InputError) as caught:
        CappedStepCost(board, 120.0)
    CappedStepCost(board, float(str(caught.value.nearest)))
