"""Two ways of computing the same thing agree: step by step, fast-forwarded, and the engine written out the long way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalogs.engines.model_defaults import ReceiveIntervals
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.cluster import RunOptions
from simulator.cluster.run import INSTANTS, Run
from simulator.cluster.simulate import run_rules
from simulator.schedulers import registry as schedulers
from simulator.schedulers.rules import EngineRules
from tests.simulator.reference_engine import REFERENCES
from tests.simulator.worlds import Linear, host_times, requests, rules

EXACT = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TICK = 1.0 / 64  # every time below is a multiple of a small power of two: ties are real and sums exact


@dataclass(frozen=True)
class World:
    rules: EngineRules
    timer: Linear
    requests: RequestSet
    n_replicas: int
    router: str


POLICIES = sorted(schedulers.POLICIES)


def engine_rules(draw: st.DrawFn) -> EngineRules:
    ticks = st.sampled_from([0, 1, 3, 40]).map(lambda t: t * TICK)
    host = host_times(
        step_s=draw(ticks),
        request_s=draw(ticks),
        request_s_per_input_token=draw(st.sampled_from([0.0, TICK / 16])),
        output_s=draw(ticks),
        api_request_s=draw(ticks),
        api_step_s=draw(st.sampled_from([0.0, TICK, 60 * TICK])),
        api_token_s=draw(st.sampled_from([0.0, TICK / 2, 5 * TICK])),
    )
    seqs = draw(st.integers(1, 6))
    return rules(
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, 40)),
        kv_blocks=draw(st.integers(11, 40) | st.integers(50, 90)),
        prefix_caching=draw(st.booleans()),
        admit_whole_prompt=draw(st.booleans()),
        lag=draw(st.integers(0, 1)),
        held_launch_s=draw(st.sampled_from([0.0, 3 * TICK, 8 * TICK])),
        host=host,
        max_output_tokens=draw(st.sampled_from([0, 30, 5000])),
        physical_batch_tokens=draw(st.sampled_from([0, 4, 16])),
        attention_ranks=draw(st.sampled_from([1, 2, 3])),
        balance_steps=draw(st.sampled_from([0, 3, 11])),
        receiving=draw(st.sampled_from([None, ReceiveIntervals(3, 7, 3), ReceiveIntervals(10, 2, 4)])),
    )


@st.composite
def workloads(draw: st.DrawFn) -> RequestSet:
    n = draw(st.integers(1, 14))
    inputs = draw(st.lists(st.integers(1, 24), min_size=n, max_size=n))
    longest = draw(st.sampled_from([20, 60]))
    outputs = draw(st.lists(st.integers(1, longest) | st.just(longest), min_size=n, max_size=n))
    gaps = draw(st.lists(st.sampled_from([0, 0, 5, 64, 70, 640]), min_size=n, max_size=n))
    hashes = None
    if draw(st.booleans()):  # three families of prompts; the generated blocks of two of them are known too
        families = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
        hashes = [
            [100 * f + i for i in range((inputs[r] + (outputs[r] - 1 if f else 0)) // 4)]
            for r, f in enumerate(families)
        ]
    concurrency = draw(st.none() | st.integers(1, 6))
    arrivals = np.cumsum(gaps) * TICK if concurrency is None else np.zeros(n)
    return requests(arrivals.tolist(), inputs, outputs, hashes, concurrency)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    timer = Linear(
        base_s=draw(st.sampled_from([8, 64])) * TICK,
        decode_s=draw(st.sampled_from([0, 1])) * TICK,
        prompt_token_s=draw(st.sampled_from([0.0, TICK / 4])),
        context_s=draw(st.sampled_from([0.0, TICK / 16])),
        pass_s=draw(st.sampled_from([0.0, 4 * TICK])),
        segment_steps=draw(st.sampled_from([1, 3, 1 << 40])),
    )
    router = draw(st.sampled_from(["round_robin", "least_outstanding"]))
    return World(engine_rules(draw), timer, draw(workloads()), draw(st.integers(1, 2)), router)


def simulate(world: World, **options: bool) -> Run:
    chosen = RunOptions(router=world.router, **options)  # type: ignore[arg-type]
    return run_rules(world.rules, world.timer, world.requests, world.n_replicas, chosen)


def assert_same(a: Run, b: Run, tolerance_s: float = 1e-9) -> None:
    for name in ("status", "replica", "preemptions", "cached_tokens"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for name in ("arrival_s", *INSTANTS):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=0, atol=tolerance_s, err_msg=name)
    np.testing.assert_allclose(np.sort(a.gaps_s), np.sort(b.gaps_s), rtol=0, atol=tolerance_s)
    for x, y in zip(a.logs, b.logs, strict=True):
        assert x.steps.sum() == y.steps.sum()
        assert x.logits @ x.steps == y.logits @ y.steps
        np.testing.assert_allclose(x.total_s.sum(), y.total_s.sum(), rtol=0, atol=1e-9)
    assert a.kv_peak_fraction == b.kv_peak_fraction


@st.composite
def crowds(draw: st.DrawFn) -> World:
    """Long outputs in a cache that holds less than their worst cases: where SGLang retracts."""
    world = draw(worlds())
    n, seats = draw(st.integers(4, 12)), draw(st.integers(3, 6))
    inputs = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    outputs = draw(st.lists(st.just(60) | st.integers(40, 60), min_size=n, max_size=n))
    gaps = draw(st.lists(st.sampled_from([16, 70, 200]), min_size=n, max_size=n))
    hashes = draw(st.none() | st.just([[100 * (r % 2) + i for i in range(inputs[r] // 4)] for r in range(n)]))
    blocks = seats * 16 * draw(st.integers(70, 100)) // 100
    engine = replace(world.rules, max_num_seqs=seats, kv_blocks=blocks, max_output_tokens=0)
    engine = replace(engine, max_num_batched_tokens=max(seats, engine.max_num_batched_tokens))
    work = requests((np.cumsum(gaps) * TICK).tolist(), inputs, outputs, hashes)
    return replace(world, rules=engine, requests=work)


def with_policy(world: World, policy: str) -> World:
    engine = replace(world.rules, policy=policy)
    if not schedulers.POLICIES[policy].chunks:  # most prompts fit in a step, with what they have produced
        longer = engine.max_num_batched_tokens + 60
        engine = replace(engine, max_num_batched_tokens=longer, max_model_len=84 if policy == "orca" else 4096)
    if policy == "llama.cpp":  # a context for the longest request in every slot
        engine = replace(engine, max_model_len=84, kv_blocks=21 * engine.max_num_seqs)
    return replace(world, rules=engine)


@pytest.mark.parametrize("policy", POLICIES)
@EXACT
@given(worlds() | crowds(), st.sampled_from([2, 4, 8]))
def test_fast_forward_changes_nothing(policy: str, world: World, hash_block_tokens: int) -> None:
    world = with_policy(world, policy)
    world = replace(world, requests=replace(world.requests, hash_block_tokens=hash_block_tokens))
    slow = simulate(world, fast_forward=False, check_invariants=True)
    fast = simulate(world, fast_forward=True, check_invariants=True)
    assert_same(slow, fast)
    assert max(len(log) for log in fast.logs) <= max(len(log) for log in slow.logs)


@pytest.mark.parametrize("policy", POLICIES)
@EXACT
@given(worlds() | crowds())
def test_decides_like_the_engine_written_out(policy: str, world: World) -> None:
    world = with_policy(world, policy)
    fast = simulate(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(schedulers.POLICIES, policy, REFERENCES[policy])
        slow = simulate(world, fast_forward=False)
    for name in ("status", "replica", "preemptions", "cached_tokens"):
        np.testing.assert_array_equal(getattr(slow, name), getattr(fast, name), err_msg=name)
    for name in ("started_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(slow, name), getattr(fast, name), rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_long_run_is_one_event(policy: str) -> None:
    engine = rules(max_model_len=100_000, kv_blocks=30_000, max_num_batched_tokens=6000, policy=policy)
    world = World(engine, Linear(), requests([0.0], [8], [5000]), 1, "round_robin")
    fast, slow = simulate(world), simulate(world, fast_forward=False)
    assert len(slow.logs[0]) == 5000
    assert len(fast.logs[0]) <= 3
    assert_same(slow, fast)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lag", [0, 1])
def test_same_seed_same_bytes(lag: int, policy: str) -> None:
    rng = np.random.default_rng(7)
    work = requests(np.cumsum(rng.exponential(1.0, 300)).tolist(), rng.integers(1, 60, 300).tolist(), [30] * 300)
    world = World(
        rules(lag=lag, kv_blocks=60, policy=policy), Linear(base_s=0.1, context_s=1e-4), work, 2, "least_outstanding"
    )
    a, b = simulate(world), simulate(world)
    assert a.last_token_s.tobytes() == b.last_token_s.tobytes()
    assert [x.table().tobytes() for x in a.logs] == [x.table().tobytes() for x in b.logs]
