"""The compiled cost of a step: laws of monotony, its two readers agree, segments are exact, totals add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.deployments.resolved import ResolvedDeployment
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog
from simulator.costs.compile import compile_step_cost
from simulator.costs.step_cost import StepCost
from simulator.layers.shard import Shard
from simulator.layers.step import step_calls
from tests.simulator.plants import ToySource, resolved, with_host


def compiled(deployment: ResolvedDeployment) -> StepCost:
    return compile_step_cost(deployment, ToySource(deployment.hardware.accelerator))


BARE = with_host(resolved(), 0.0)
COST = compiled(BARE)
DENSE_70B = compiled(with_host(resolved("llama-2-70b", "h100x4", tensor_parallel=4), 0.004))
WINDOWED = compiled(resolved("gpt-oss-120b", "h100x1", weight_dtype="fp4"))
EXPERTS = compiled(resolved("qwen3-30b-a3b", "h100x4", tensor_parallel=2, data_parallel=2, expert_parallel=True))
SEQUENTIAL = compiled(with_host(resolved(), 0.002, async_scheduling=False))
JOINED = compile_step_cost(BARE, ToySource(BARE.hardware.accelerator, joins=True))
ALL = (JOINED, COST, DENSE_70B, WINDOWED, EXPERTS, SEQUENTIAL)


def decodes(n: int, mean: int, above: int = 0) -> BatchShape:
    return BatchShape(decodes=n, decode_context_sum=n * mean, decode_context_max=mean + above, logits=n)


def prompt(tokens: int, context: int = 0, chunks: int = 1, **more: int) -> BatchShape:
    each = tokens / chunks
    return BatchShape(tokens, chunks * each * (context + each / 2), chunks, **more)


@st.composite
def shapes(draw: st.DrawFn) -> BatchShape:
    n, chunks = draw(st.integers(0, 60)), draw(st.integers(0, 4))
    total = draw(st.integers(0, 4000 * n)) if n else 0
    longest = draw(st.integers(math.ceil(total / n), 4000)) if n else 0
    tokens = draw(st.integers(chunks, 900)) if chunks else 0
    pairs = tokens * (draw(st.integers(0, 3000)) + tokens / max(chunks, 1) / 2)
    return BatchShape(tokens, pairs, chunks, n, total, longest, n + chunks, draw(st.integers(1, 3)))


@given(n=st.integers(1, 64), mean=st.floats(0, 4096), above=st.integers(0, 4000), which=st.sampled_from(ALL))
def test_the_first_step_of_a_segment_is_the_step_itself(n: int, mean: float, above: int, which: StepCost) -> None:
    total = int(n * mean)
    longest = math.ceil(total / n) + (above if n > 1 else 0)
    first, _, steps = which.decode_segment(n, total, longest)
    assert steps >= 1
    assert first == which.cycle_s(BatchShape(decodes=n, decode_context_sum=total, decode_context_max=longest, logits=n))


@given(n=st.integers(1, 64), mean=st.integers(0, 4000), above=st.integers(0, 900), which=st.sampled_from(ALL))
def test_segments_equal_steps_one_by_one(n: int, mean: int, above: int, which: StepCost) -> None:
    above = above if n > 1 else 0
    j = 0
    while j < 600:
        first, slope, steps = which.decode_segment(n, n * (mean + j), mean + j + above)
        for k in range(min(steps, 40)):
            assert first + slope * k == pytest.approx(which.cycle_s(decodes(n, mean + j + k, above)), abs=1e-12)
        j += steps


@given(shape=shapes(), which=st.sampled_from(ALL))
def test_the_scalar_and_the_vector_reader_agree(shape: BatchShape, which: StepCost) -> None:
    if not shape.tokens:
        return
    log = StepLog()
    cycle = which.cycle_s(shape)
    log.add(0.0, 1, shape, cycle, 0.0, cycle)
    totals = which.totals(log)
    assert totals.busy_s == pytest.approx(cycle, rel=1e-9)


def test_every_further_pass_reads_the_weights_once_more() -> None:
    shape = decodes(9, 500)
    one, three = COST.cycle_s(shape), COST.cycle_s(shape.with_counts(passes=3))
    assert (three - one) / 2 == pytest.approx(COST._rank[1], rel=1e-9)


def test_a_run_of_steps_totals_as_its_steps() -> None:
    one, run = StepLog(), StepLog()
    first, slope, steps = COST.decode_segment(8, 8 * 1000, 1100)
    run.add(0.0, steps, decodes(8, 1000, 100), first, slope, steps * first + slope * steps * (steps - 1) / 2)
    for j in range(steps):
        one.add(0.0, 1, decodes(8, 1000 + j, 100), first + slope * j, 0.0, first + slope * j)
    a, b = COST.totals(run), COST.totals(one)
    assert steps > 10
    assert a.seconds == pytest.approx(b.seconds, rel=1e-9)
    assert a.joules_per_accelerator == pytest.approx(b.joules_per_accelerator, rel=1e-9)


@pytest.mark.parametrize("cost", ALL)
def test_more_work_never_takes_less_time(cost: StepCost) -> None:
    by_context = [cost.cycle_s(decodes(16, m)) for m in range(0, 4096, 97)]
    by_batch = [cost.cycle_s(decodes(n, 700)) for n in range(1, 65)]
    by_tokens = [cost.cycle_s(prompt(t)) for t in range(1, 1025, 9)]
    by_prefix = [cost.cycle_s(prompt(512, c)) for c in range(0, 4000, 130)]
    by_skew = [cost.cycle_s(decodes(16, 700, above)) for above in range(0, 3000, 100)]
    for series in (by_context, by_batch, by_tokens, by_prefix, by_skew):
        drop = (
            0.05 if cost is EXPERTS else 1e-9
        )  # data-parallel graphs pad every rank, the eager step after them does not
        assert np.all(np.diff(series) >= -drop * np.array(series[1:]))
        paced_by_host = series is by_prefix and cost._batch_s(prompt(512)) == cost.tables.launch_s
        assert series[-1] > series[0] or cost in (WINDOWED, DENSE_70B) or paced_by_host


def test_a_batch_is_padded_to_the_next_captured_graph() -> None:
    free = [COST._rank[n] for n in (9, 12, 16, 17)]
    assert free[0] == free[1] == free[2] < free[3]


def test_tables_equal_the_operators_they_stand_for() -> None:
    """At a captured size with an even batch on a context node nothing is interpolated."""
    mean = int(COST._contexts[30])
    shape = decodes(16, mean)
    source = COST.tables.pricer.source
    lines = step_calls(Shard.of(BARE), shape)
    direct = sum(line.count * float(source.cost(line.op).seconds) for line in lines)
    assert COST.cycle_s(shape) == pytest.approx(direct + BARE.engine.host.step_gap_s, rel=2e-3)


@pytest.mark.parametrize(("tokens", "context", "chunks"), [(300, 0, 1), (1000, 900, 1), (777, 333, 3), (64, 3000, 1)])
def test_prefill_tables_follow_the_operators_between_nodes(tokens: int, context: int, chunks: int) -> None:
    shape = prompt(tokens, context, chunks)
    clock = COST.tables.lines.prompt_clock
    assert clock is not None
    calls = step_calls(Shard.of(BARE), shape)
    slowed = clock.slowed(calls, shape.tokens) if shape.tokens > COST._graphed else calls
    direct = sum(line.count * float(cost.seconds) for line, cost in COST.tables.pricer.costs(slowed))
    host = COST.tables.launch_s if shape.tokens > COST._graphed else 0.0
    assert COST._batch_s(shape) == pytest.approx(max(direct, host), rel=0.08 if tokens <= 128 else 0.02)


def test_host_time_hides_behind_the_device_only_when_scheduled_ahead() -> None:
    shape = decodes(8, 500)
    device = COST._batch_s(shape)
    times = BARE.engine.host
    gap_s = times.step_gap_s
    assert SEQUENTIAL.cycle_s(shape) == pytest.approx(device + 0.002 + 8 * times.step_s_per_sequence + gap_s)
    slow = compiled(with_host(resolved(), 1.0))
    assert slow.cycle_s(shape) == pytest.approx(1.0 + 8 * times.step_s_per_sequence + gap_s)
    assert slow.decode_segment(8, 4000, 500)[1] == 0.0


def test_the_longest_context_counts_beyond_the_mean() -> None:
    """Planted fault: a table without the skew term would give equal times."""
    assert COST.cycle_s(decodes(16, 700, 2000)) > COST.cycle_s(decodes(16, 700, 0)) + 1e-6


def test_decodes_beside_prefill_may_run_as_chunks_of_one_token() -> None:
    alone, mixed = decodes(16, 700, 900), prompt(512, 0, 1, decodes=16, decode_context_sum=16 * 700, logits=17)
    mixed.decode_context_max = 1600
    assert JOINED.cycle_s(alone) == COST.cycle_s(alone)
    assert JOINED.tables.mixed is not JOINED.tables.decode
    assert COST.tables.mixed is COST.tables.decode  # one table where the kernels are the same
    assert JOINED.cycle_s(mixed) != COST.cycle_s(mixed)
    longer = prompt(512, 0, 1, decodes=16, decode_context_sum=16 * 700, decode_context_max=3000, logits=17)
    assert JOINED.cycle_s(mixed) == JOINED.cycle_s(longer) < COST.cycle_s(longer)


def test_data_parallel_ranks_share_decodes_and_wait_for_a_single_prompt() -> None:
    """On A100, whose clock does not depend on what else a rank does."""
    one = compiled(with_host(resolved("qwen3-30b-a3b", "a100-80gbx1"), 0.0))
    two = compiled(with_host(resolved("qwen3-30b-a3b", "a100-80gbx2", data_parallel=2), 0.0))
    assert two.cycle_s(decodes(64, 2000)) < one.cycle_s(decodes(64, 2000))
    seconds = []
    for cost in (one, two):
        log = StepLog()
        log.add(0.0, 1, prompt(1024), 1.0, 0.0, 1.0)
        seconds.append(cost.totals(log).seconds["gemm"])
    assert seconds[1] == pytest.approx(seconds[0])


def test_joules_are_power_times_time_and_fractions_add_up() -> None:
    log = StepLog()
    shape = decodes(16, 700)
    log.add(0.0, 1, shape, 0.05, 0.0, 0.05)
    totals = COST.totals(log)
    device = totals.busy_s - totals.seconds["host"]
    unit = BARE.hardware.accelerator
    assert totals.busy_s == pytest.approx(0.05)
    idle_like = totals.joules_per_accelerator - 500.0 * device
    assert unit.idle_w * totals.seconds["host"] < idle_like < 0.3 * unit.tdp_w * totals.seconds["host"]
    assert totals.measured_fraction + totals.interpolated_fraction + totals.roofline_fraction == pytest.approx(1.0)
    assert totals.interpolated_fraction == pytest.approx(1.0)
    assert 0.0 < totals.expected_error <= 0.1


@pytest.mark.parametrize("more", [0.3, 0.0])
def test_times_that_another_accelerator_lends_are_a_share_of_their_own(more: float) -> None:
    source = ToySource(BARE.hardware.accelerator)
    source.borrowed_error = more
    log = StepLog()
    log.add(0.0, 1, decodes(16, 700), 0.05, 0.0, 0.05)
    own, lent = COST.totals(log), compile_step_cost(BARE, source).totals(log)
    assert lent.seconds == own.seconds
    assert (own.borrowed_fraction, lent.borrowed_fraction) == (0.0, pytest.approx(1.0))
    assert (lent.measured_fraction, lent.interpolated_fraction) == (0.0, 0.0)
    assert lent.roofline_fraction == pytest.approx(0.0)
    assert lent.expected_error == pytest.approx((own.expected_error**2 + more**2) ** 0.5)


@pytest.mark.parametrize(("tensor", "data"), [(1, 8), (4, 2)])
def test_groups_beyond_a_node_pay_the_network(tensor: int, data: int) -> None:
    """Two ranks four accelerators apart are on two nodes of four, though a node could hold two ranks."""
    cycles = [
        compiled(
            with_host(
                resolved("qwen3-30b-a3b", hw, tensor_parallel=tensor, data_parallel=data, expert_parallel=True),
                0.0,
            )
        ).cycle_s(decodes(64, 500))
        for hw in ("h100x8", "2*h100x4")
    ]
    assert cycles[1] > cycles[0] + 48 * 2 * 10e-6


def test_empty_log_totals_are_zero() -> None:
    totals = COST.totals(StepLog())
    assert totals.busy_s == totals.joules_per_accelerator == totals.expected_error == 0.0
