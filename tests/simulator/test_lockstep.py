"""Ranks that each schedule for themselves and step together: by hand, against independent replicas, and at random."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_engine import REFERENCES
from worlds import Linear, host_times, requests, rules

from catalogs.engines import Receiving
from catalogs.request_set import RequestSet
from simulator import schedulers
from simulator.cluster import RunOptions
from simulator.rank_dispatch import DISPATCHES
from simulator.rules import EngineRules
from simulator.run_record import Run
from simulator.simulate import run_rules

TICK = 1.0 / 64
POLICIES = ("vllm-v1", "sglang", "trtllm", "trtllm-max-utilization")


def group(ranks: int, dispatch: str = "round_robin", **changes: object) -> EngineRules:
    """Limits are given for one rank."""
    own = rules(**changes)
    return replace(
        own,
        attention_ranks=ranks,
        rank_dispatch=dispatch,
        max_num_seqs=own.max_num_seqs * ranks,
        max_num_batched_tokens=own.max_num_batched_tokens * ranks,
        kv_blocks=own.kv_blocks * ranks,
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[EngineRules, Linear, RequestSet]:
    ticks = st.sampled_from([0, 1, 3, 40]).map(lambda t: t * TICK)
    seqs = draw(st.integers(1, 5))
    ranks = draw(st.integers(2, 4))
    made = group(
        ranks,
        draw(st.sampled_from(sorted(DISPATCHES))),
        policy=draw(st.sampled_from(POLICIES)),
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, 30)),
        kv_blocks=draw(st.integers(11, 40) | st.integers(50, 90)),
        prefix_caching=draw(st.booleans()),
        admit_whole_prompt=draw(st.booleans()),
        lag=draw(st.integers(0, 1)),
        host=host_times(step_s=draw(ticks), output_s=draw(ticks), api_token_s=draw(st.sampled_from([0.0, TICK / 2]))),
        balance_steps=draw(st.sampled_from([0, 3, 9])),
        receiving=draw(st.sampled_from([None, Receiving(3, 5, 4)])),
        max_output_tokens=draw(st.sampled_from([0, 30])),
    )
    n = draw(st.integers(1, 14))
    lengths = [draw(st.integers(1, 25)) for _ in range(n)], [draw(st.integers(1, 15)) for _ in range(n)]
    arrival = np.cumsum([draw(st.sampled_from([0, 0, 1, 7, 64])) * TICK for _ in range(n)]).tolist()
    hashes = [[draw(st.integers(0, 2)), *range(100 * i, 100 * i + 5)] for i in range(n)]
    timer = Linear(TICK, draw(ticks) / 8, draw(ticks) / 32, draw(st.sampled_from([0.0, TICK / 256])))
    closed = draw(st.sampled_from([None, None, 1, 3]))
    return made, timer, requests(arrival if closed is None else [0.0] * n, *lengths, hashes=hashes, concurrency=closed)


def serve(world: tuple[EngineRules, Linear, RequestSet], **options: object) -> Run:
    return run_rules(*world, options=RunOptions(check_laws=True, **options))  # type: ignore[arg-type]


def assert_same(a: Run, b: Run) -> None:
    for name in ("status", "preemptions", "cached_tokens"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for name in ("started_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=0, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(np.sort(a.gaps_s), np.sort(b.gaps_s), rtol=0, atol=1e-9)
    for x, y in zip(a.logs[0].parts, b.logs[0].parts, strict=True):
        assert x.steps.sum() == y.steps.sum()
        assert x.logits @ x.steps == y.logits @ y.steps
        np.testing.assert_allclose(x.total_s.sum(), y.total_s.sum(), rtol=0, atol=1e-9)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_laws_hold_and_fast_forward_changes_nothing(world: tuple[EngineRules, Linear, RequestSet]) -> None:
    slow, fast = serve(world, fast_forward=False), serve(world)
    assert_same(slow, fast)
    assert slow.kv_peak_fraction == fast.kv_peak_fraction
    assert len(fast.logs[0]) <= len(slow.logs[0])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_ranks_decide_like_engines_written_out(world: tuple[EngineRules, Linear, RequestSet]) -> None:
    world = (replace(world[0], balance_steps=0), *world[1:])
    fast, policy = serve(world), world[0].policy
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(schedulers.POLICIES, policy, REFERENCES[policy])
        assert_same(run_rules(*world, options=RunOptions(fast_forward=False)), fast)
