"""Preemption by swap: a timeline by hand, laws and fast-forward at random, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.cache.offload import SwapRules, SwapSpace
from simulator.cluster.cluster import RunOptions
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.core.invariants import InvariantViolation
from simulator.schedulers.registry import make_scheduler
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v0 import SwappingV0
from tests.simulator.worlds import Linear, requests, rules

BOTH = pytest.mark.parametrize("fast", [True, False])
SWAP = SwapRules(1000, 0.25)


def simulate(engine: EngineRules, work: RequestSet, fast: bool = True, timer: Linear | None = None) -> Run:
    return run_rules(engine, timer or Linear(), work, 1, RunOptions(fast_forward=fast, check_invariants=True))


@BOTH
def test_two_requests_in_six_blocks_by_hand(fast: bool) -> None:
    """Blocks of 4 tokens, 1 s a step, 1/4 s a block over the link. Both hold 2 blocks after [0, 1), 3 after [1, 2).

    At 2 no block is free, so B (9 tokens, 3 blocks) moves out: [2, 3.75). At 3.75 it fits again and moves in: [3.75,
    5.5). At 5.5 no block is free: out, [5.5, 7.25). Then A needs a fourth block, and B waits for A's end at 11.25. It
    moves in, [11.25, 13), and decodes alone.
    """
    engine = rules(policy="vllm-v0", kv_blocks=6, swap=SWAP)
    run = simulate(engine, requests([0.0, 0.0], [8, 8], [9, 6]), fast)
    assert run.first_token_s.tolist() == [1.0, 1.0]
    assert run.last_token_s.tolist() == [11.25, 15.0]
    assert run.preemptions.tolist() == [0, 2]
    assert run.waits_s.tolist() == [[1.75, 1.75], [1.75, 5.75]]  # the step that brought it back, and the wait before
    # Computed again instead, B's prompt of 10 tokens takes a step of its own in which A does not decode.
    again = simulate(rules(policy="vllm-v0", kv_blocks=6), requests([0.0, 0.0], [8, 8], [9, 6]), fast)
    assert again.preemptions[1] > 0
    assert again.last_token_s[0] != run.last_token_s[0]


@BOTH
def test_no_prompt_starts_while_somebody_is_swapped_out(fast: bool) -> None:
    engine = rules(policy="vllm-v0", kv_blocks=6, swap=SWAP)
    run = simulate(engine, requests([0.0, 0.0, 8.0], [8, 8, 1], [9, 6, 1]), fast)
    assert run.last_token_s.tolist()[:2] == [11.25, 16.0]  # B is back at 13, then the prompt comes first
    assert run.started_s[2] == 13.0


@BOTH
def test_too_little_swap_space_stops_the_engine(fast: bool) -> None:
    engine = rules(policy="vllm-v0", kv_blocks=6, swap=SwapRules(2, 0.25))
    with pytest.raises(
        InputError,
        match=r"aborts: the preempted blocks exceed the swap space of 2 blocks: got 3; .*swap_space_gib",
    ):
        simulate(engine, requests([0.0, 0.0], [8, 8], [9, 6]), fast)


def test_only_vllm_v0_swaps() -> None:
    with pytest.raises(InputError, match="preemption by swap is simulated only for vllm-v0: got 'vllm-v1'"):
        make_scheduler(rules(swap=SWAP))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[EngineRules, RequestSet, Linear]:
    """Long outputs in a cache that does not hold them all."""
    seats, n = draw(st.integers(2, 5)), draw(st.integers(2, 12))
    engine = rules(
        policy="vllm-v0",
        max_num_seqs=seats,
        max_num_batched_tokens=100,
        kv_blocks=draw(st.integers(20, 45) | st.integers(100, 250)),
        lag=0,
        swap=SwapRules(1000, draw(st.sampled_from([0.0, 1 / 16, 0.5]))),
    )
    inputs = draw(st.lists(st.integers(1, 20), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    gaps = draw(st.lists(st.sampled_from([0, 0, 3, 16, 100]), min_size=n, max_size=n))
    timer = Linear(context_s=draw(st.sampled_from([0.0, 1 / 64])))
    return engine, requests((np.cumsum(gaps) / 4).tolist(), inputs, outputs), timer


@settings(max_examples=120, deadline=None)
@given(worlds())
def test_fast_forward_changes_nothing(world: tuple[EngineRules, RequestSet, Linear]) -> None:
    slow, fast = (simulate(world[0], world[1], fast, world[2]) for fast in (False, True))
    assert fast.completed.all()
    np.testing.assert_array_equal(slow.preemptions, fast.preemptions)
    for name in ("started_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(slow, name), getattr(fast, name), rtol=0, atol=1e-9, err_msg=name)
    for run in (slow, fast):
        assert run.logs[0].logits @ run.logs[0].steps == run.requests.output_tokens.sum()  # nothing is computed twice
        assert run.logs[0].prefill_tokens.sum() == run.requests.input_tokens.sum()


def test_blocks_that_stay_in_the_swap_space_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SwapSpace, "give_back", lambda _self, _blocks: None)
    engine = rules(policy="vllm-v0", kv_blocks=6, swap=SWAP)
    assert isinstance(make_scheduler(engine), SwappingV0)
    with pytest.raises(InvariantViolation, match="0 blocks swapped out, 3 of 1000 counted"):
        simulate(engine, requests([0.0, 0.0], [8, 8], [9, 6]))
