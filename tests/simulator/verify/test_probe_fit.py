"""A probe of an engine whose times are known gives them back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from calibration.serve.probe import Probe
from catalogs.engines.profile import HostTimes
from catalogs.errors import InputError
from simulator.cluster.compiled import CompiledDeployment, with_host
from simulator.core.batch import BatchShape
from simulator.costs.measured_steps import MeasuredStepTimer
from simulator.verify.probe_fit import (
    NO_HOST,
    Cycles,
    _line_through,
    _shape,
    fit_host,
    fit_requests,
    fit_steps,
    trimmed_mean,
)
from tests.simulator.served_worlds import probed, synchronous_plant

PLANTED = HostTimes(
    step_s=2e-3,
    step_s_per_sequence=0.3e-3,
    step_gap_s=0.0,
    request_s=4e-3,
    request_s_per_input_token=10e-6,
    output_s=0.0,
)


@pytest.fixture(scope="module")
def engine() -> CompiledDeployment:
    return synchronous_plant(PLANTED)


@pytest.fixture(scope="module")
def probe(engine: CompiledDeployment) -> Probe:
    return probed(engine)


def test_host_times_come_back(engine: CompiledDeployment, probe: Probe) -> None:
    found = fit_host(probe, with_host(engine, NO_HOST))
    assert found.step_s == pytest.approx(PLANTED.step_s, rel=0.02)
    assert found.step_s_per_sequence == pytest.approx(PLANTED.step_s_per_sequence, rel=0.02)
    assert found.request_s == pytest.approx(PLANTED.request_s, rel=0.05)
    assert found.request_s_per_input_token == pytest.approx(PLANTED.request_s_per_input_token, rel=0.05)


def test_no_term_is_negative_where_operators_are_too_slow(engine: CompiledDeployment, probe: Probe) -> None:
    """A plant that has four times the engine's host times before any is fitted: nothing is left to add."""
    cycles = Cycles.of(probe)
    slow = with_host(engine, replace(PLANTED, step_s=8e-3, step_s_per_sequence=2e-3)).cost
    at = zip(cycles.decodes.tolist(), cycles.context.tolist(), strict=True)
    beyond = cycles.seconds - np.array([slow.cycle_s(_shape(n, context)) for n, context in at])
    assert beyond.max() < 0.0
    assert _line_through(cycles, beyond) == (0.0, 0.0)


def test_cycles_are_those_of_the_engine(engine: CompiledDeployment, probe: Probe) -> None:
    cycles = Cycles.of(probe)
    assert cycles.sizes() == [1, 2, 4, 8, 16]
    for n in cycles.sizes():
        context = cycles.mean(cycles.context, n)
        shape = BatchShape(
            decodes=n, logits=n, decode_context_sum=round(context), decode_context_max=round(context / n)
        )
        assert cycles.mean(cycles.seconds, n) == pytest.approx(engine.cost.cycle_s(shape), rel=0.01)


def test_whole_steps_without_a_log(engine: CompiledDeployment, probe: Probe) -> None:
    """Decode steps at the sizes probed and steps of one prompt come out as the engine's own."""
    steps = fit_steps(probe, None, 512)
    assert steps is not None
    timer = MeasuredStepTimer(steps)
    for n in (1, 4, 16):
        shape = BatchShape(decodes=n, logits=n, decode_context_sum=108 * n, decode_context_max=108)
        assert timer.cycle_s(shape) == pytest.approx(engine.cost.cycle_s(shape), rel=0.03)
    host = fit_requests(probe, engine, timer)
    for n in (64, 256, 400):
        shape = BatchShape(prefill_tokens=n, prefill_pairs=n * n / 2, prefill_chunks=1, logits=1)
        measured = engine.cost.cycle_s(shape) + PLANTED.request_s + n * PLANTED.request_s_per_input_token
        assert timer.cycle_s(shape) + host.request_s + n * host.request_s_per_input_token == pytest.approx(
            measured, rel=0.05
        )


def single_log(engine: CompiledDeployment, probe: Probe) -> pd.DataFrame:
    """The engine's own times of the steps of single requests, as llama.cpp's server writes them."""
    rows = []
    for n in probe.single.input_tokens.astype(int).tolist():
        prompt = BatchShape(prefill_tokens=n, prefill_pairs=n * n / 2, prefill_chunks=1, logits=1)
        decode = BatchShape(decodes=1, logits=1, decode_context_sum=n + 12, decode_context_max=n + 12)
        rows += [(1, n, 0, 0, engine.cost.cycle_s(prompt)), (0, 0, 1, 1, engine.cost.cycle_s(decode))]
    names = ["context_requests", "context_tokens", "generation_requests", "generation_tokens", "seconds"]
    return pd.DataFrame(rows, columns=names)


@pytest.mark.parametrize("disturbed", [(), (0,), (0, 5, 9)])
def test_time_outside_the_engine_is_no_part_of_its_steps(
    engine: CompiledDeployment, probe: Probe, disturbed: tuple[int, ...]
) -> None:
    """With the engine's own times, a path of 4 ms to it delays its request only, even if some steps were disturbed."""
    runs = replace(probe, single=probe.single.picked(np.ones(probe.single.n, dtype=bool)))
    log = pd.concat([single_log(engine, runs)] * 2, ignore_index=True)
    shortest = np.argsort(log.context_tokens.to_numpy()[log.context_requests > 0], kind="stable")
    prompts = log.index[log.context_requests > 0][shortest]
    log.loc[prompts[list(disturbed)], "seconds"] *= 4.0
    steps = fit_steps(runs, log, 512)
    assert steps is not None
    timer = MeasuredStepTimer(steps)
    for n in (8, 64, 256, 400):
        shape = BatchShape(prefill_tokens=n, prefill_pairs=n * n / 2, prefill_chunks=1, logits=1)
        assert timer.cycle_s(shape) == pytest.approx(engine.cost.cycle_s(shape), rel=0.1)
    host = fit_requests(runs, engine, timer)
    assert host.request_s == pytest.approx(PLANTED.request_s, rel=0.15)


def test_messages_of_several_tokens_are_left_out(engine: CompiledDeployment, probe: Probe) -> None:
    """Two gaps of every other single request made one: its steps are not counted as slow ones."""
    gaps, merged = probe.single.gaps(), []
    for i, own in enumerate(gaps):
        merged.append(np.concatenate([[own[0] + own[1]], own[2:]]) if i % 2 else own)
    single = replace(probe.single, itl_s=np.concatenate(merged), n_gaps=tuple(len(g) for g in merged))
    found = fit_host(replace(probe, single=single), with_host(engine, NO_HOST))
    assert found.step_s == pytest.approx(PLANTED.step_s, rel=0.03)


def test_bursts_of_several_passes_are_left_out(probe: Probe) -> None:
    """Every second burst took two passes: the cycles are those of the others, and of all if no burst took one pass."""
    n_bursts = len(probe.burst_sizes)
    first, second = probe.burst_sizes[: n_bursts // 2], probe.burst_sizes[n_bursts // 2 :]
    assert first == second
    slow = np.repeat([1.0] * len(first) + [2.0] * len(second), probe.burst_sizes)
    gaps = [own * factor for own, factor in zip(probe.bursts.gaps(), slow, strict=True)]
    bursts = replace(probe.bursts, itl_s=np.concatenate(gaps))
    marked = replace(probe, bursts=bursts, burst_passes=(1,) * len(first) + (2,) * len(second))
    plain, found = Cycles.of(probe), Cycles.of(marked)
    assert found.sizes() == plain.sizes()
    for n in found.sizes():
        assert found.mean(found.seconds, n) == pytest.approx(plain.mean(plain.seconds, n), rel=0.01)
    everywhere = Cycles.of(replace(probe, burst_passes=(2,) * n_bursts))
    assert everywhere.sizes() == plain.sizes()


def test_a_step_is_the_mean_of_a_long_tail_without_its_end() -> None:
    """A fifth of the steps takes twice as long; one of fifty was disturbed."""
    seconds = np.array([1.0] * 39 + [2.0] * 10 + [100.0])
    assert trimmed_mean(seconds) == pytest.approx((34 + 2 * 6) / 40)
    assert trimmed_mean(np.array([1.0, 3.0])) == 2.0


def test_a_client_that_sees_hardly_any_single_token_is_one_line(probe: Probe) -> None:
    """Two messages for each request: no gap is one step."""
    single, bursts = (
        replace(run, itl_s=np.full(run.n, 0.1), n_gaps=(1,) * run.n) for run in (probe.single, probe.bursts)
    )
    with pytest.raises(InputError, match="too few single tokens"):
        Cycles.of(replace(probe, single=single, bursts=bursts))


def test_one_length_of_prompt_makes_no_table(probe: Probe) -> None:
    shortest = int(probe.single.input_tokens.min())
    assert fit_steps(probe, None, shortest) is None
    assert fit_steps(probe, None, shortest - 1) is None
    steps = {"context_requests": [1] * 20, "context_tokens": [8] * 20, "generation_requests": [0] * 20}
    log = pd.DataFrame(steps | {"generation_tokens": [0] * 20, "seconds": [0.01] * 20})
    assert fit_steps(probe, log, 512) is None
