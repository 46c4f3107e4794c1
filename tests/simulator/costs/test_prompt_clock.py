"""Prompts at the board's limit: which steps become longer, by how much, and that all readings of a step agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.bundles.bundle import load_bundle
from calibration.power.model import capped_w
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from simulator.analysis.operators import step_seconds
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog
from simulator.costs.compile import compile_step_cost
from simulator.costs.partition import BatchRows
from simulator.costs.pricing import N_CLASSES
from simulator.costs.step_cost import StepCost
from simulator.layers.operator_call import CLOCKED, PromptClock


def step_cost(hardware: str, ranks: int) -> StepCost:
    made = Deployment(
        model="llama3.1-70b",
        engine="vllm-0.15",
        hardware=hardware,
        tensor_parallel=ranks,
        weight_dtype="fp8",
        max_num_batched_tokens=8192,
        max_model_len=8192,
        max_num_seqs=64,
    )
    resolved = resolve(made)
    return compile_step_cost(resolved, load_bundle(resolved.hardware.accelerator))


ONE = step_cost("h200x1", 1)


def prompt(tokens: int) -> BatchShape:
    return BatchShape(tokens, tokens**2 / 2, 1, logits=1)


def at_highest(cost: StepCost, tokens: int) -> float:
    """Seconds of the step's tokens and attention with all calls at the highest clock."""
    lines, pricer = replace(cost.tables.lines, prompt_clock=None), cost.tables.pricer
    at = np.array([float(tokens)])
    calls = [*lines.rank(at, False), *lines.group(at, False), *lines.prefill(np.ones(1), at, np.zeros(1))]
    return float(pricer.price(calls, (1,))[0, :N_CLASSES].sum())


def clock_of(cost: StepCost) -> PromptClock:
    clock = cost.tables.lines.prompt_clock
    assert clock is not None
    return clock


def node(tokens: int) -> int:
    """The first number of tokens from `tokens` on that has a price of its own; between two of them prices are read."""
    axis = ONE.tables.rank.axes[0]
    return int(axis[np.searchsorted(axis, tokens)])


@pytest.mark.parametrize("tokens", [node(900), node(1900)])
def test_one_board_slows_down_for_prompts_and_eight_do_not(tokens: int) -> None:
    """The rows of products show a part of the slowdown, and norms have none, so the step grows by less than 1/f."""
    share = float(clock_of(ONE).at(tokens))
    longer = (ONE.cycle_s(prompt(tokens)) - ONE.output_s(prompt(tokens))) / at_highest(ONE, tokens)
    assert 0.78 < share < 0.9
    assert 1.0 + 0.4 * (1 / share - 1) < longer < 1 / share
    assert step_cost("h200x8", 8).tables.lines.prompt_clock is None


def test_boards_without_rows_at_their_limit_do_not_slow_down() -> None:
    assert step_cost("a100-80gbx4", 4).tables.lines.prompt_clock is None


def test_the_clock_holds_the_limit_over_the_step() -> None:
    """The power of a step with prompts is at most the limit, and near it where the clock is lowered."""
    log, shape, unit = StepLog(), prompt(node(3900)), ONE.tables.resolved.hardware.accelerator
    seconds = ONE.cycle_s(shape)
    log.add(0.0, 1, shape, seconds, 0.0, seconds)
    assert 0.9 * capped_w(unit) < ONE.totals(log).joules_per_accelerator / seconds <= capped_w(unit) * (1 + 1e-9)


def test_decodes_in_graphs_keep_the_clock() -> None:
    lines = ONE.tables.lines
    calls = [*lines.rank(np.array([64.0]), True), *lines.decode(np.ones(1), np.full(1, 500.0), np.full(1, 500.0))]
    assert all(call.clock is None for call in calls)


def test_only_operators_of_the_multiprocessors_are_slowed_down() -> None:
    calls = ONE.tables.lines.rank(np.array([2048.0]), False)
    slow = {call.kind for call in calls if call.clock is not None}
    assert slow == {"gemm"}
    assert {"elementwise", "collective"}.isdisjoint(CLOCKED)


def test_the_operators_of_a_step_add_up_to_its_time() -> None:
    shape = prompt(node(1900))
    _, seconds = step_seconds(ONE.tables, BatchRows.of_shapes([shape]))
    assert float(seconds[0]) == pytest.approx(ONE.cycle_s(shape), rel=5e-3)


def test_the_clock_is_straight_between_its_nodes() -> None:
    clock = PromptClock(np.array([100.0, 300.0]), np.array([1.0, 0.8]))
    assert clock.at(np.array([50.0, 200.0, 300.0, 900.0])) == pytest.approx([1.0, 0.9, 0.8, 0.8])
