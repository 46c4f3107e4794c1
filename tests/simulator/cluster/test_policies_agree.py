"""Policies that must decide alike where their rules coincide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cluster.cluster import RunOptions
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.schedulers.rules import EngineRules
from tests.simulator.worlds import Linear, requests, rules

FEW = settings(max_examples=80, deadline=None)
TIMER = Linear(prompt_token_s=0.125, decode_s=0.0625, context_s=0.0078125)
rows = st.lists(st.tuples(st.integers(1, 24), st.integers(1, 16), st.integers(0, 40)), min_size=1, max_size=12)


def simulate(engine: EngineRules, drawn: list[tuple[int, int, int]], spread: float = 0.25) -> Run:
    arrivals = np.cumsum([gap * spread for _, _, gap in drawn]).tolist()
    work = requests(arrivals, [i for i, _, _ in drawn], [o for _, o, _ in drawn])
    return run_rules(engine, TIMER, work, 1, RunOptions(check_invariants=True))


def steps(run: Run) -> np.ndarray:  # type: ignore[type-arg]
    """What each step was, one row a step."""
    log = run.logs[0].table()
    return log[np.repeat(np.arange(len(log)), log[:, 1].astype(int))][:, 2:9]


def assert_same_times(a: Run, b: Run) -> None:
    np.testing.assert_array_equal(a.status, b.status)
    for name in ("started_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=0, atol=1e-9, err_msg=name)


@FEW
@given(rows, st.integers(0, 1))
def test_a_static_batch_of_one_is_one_at_a_time(drawn: list[tuple[int, int, int]], lag: int) -> None:
    """Only that a batch's answer comes whole tells them apart."""
    batched = simulate(rules(policy="static", max_num_seqs=1, lag=lag), drawn)
    alone = simulate(rules(policy="one-at-a-time", lag=lag), drawn)
    np.testing.assert_array_equal(batched.last_token_s, alone.last_token_s)
    np.testing.assert_array_equal(batched.started_s, alone.started_s)
    np.testing.assert_array_equal(batched.logs[0].table(), alone.logs[0].table())
    np.testing.assert_array_equal(batched.first_token_s, batched.last_token_s)


@FEW
@given(rows)
def test_one_at_a_time_is_vllm_with_one_seat(drawn: list[tuple[int, int, int]]) -> None:
    one = simulate(rules(policy="one-at-a-time"), drawn)
    assert_same_times(one, simulate(rules(max_num_seqs=1), drawn))


@FEW
@given(st.integers(1, 24), st.integers(1, 16), st.integers(1, 8))
def test_equal_requests_need_no_padding(prompt: int, output: int, n: int) -> None:
    """A static batch of equals that come together is what continuous batching does with them."""
    drawn = [(prompt, output, 0)] * n
    engine = rules(max_num_batched_tokens=1000)
    static, continuous = simulate(replace(engine, policy="static"), drawn), simulate(engine, drawn)
    np.testing.assert_array_equal(steps(static), steps(continuous))
    np.testing.assert_allclose(static.last_token_s, continuous.last_token_s, rtol=0, atol=1e-9)


@FEW
@given(rows, st.integers(0, 1))
def test_orca_with_endless_memory_is_vllm_without_chunks(drawn: list[tuple[int, int, int]], lag: int) -> None:
    engine = rules(lag=lag, kv_blocks=10_000, max_model_len=64, max_num_seqs=4, chunked_prefill=False)
    orca, vllm = simulate(replace(engine, policy="orca"), drawn), simulate(engine, drawn)
    np.testing.assert_array_equal(orca.logs[0].table(), vllm.logs[0].table())
    assert_same_times(orca, vllm)


@FEW
@given(rows, st.integers(0, 1), st.integers(4, 20))
def test_sarathi_with_endless_memory_is_vllm_v1(drawn: list[tuple[int, int, int]], lag: int, chunk: int) -> None:
    engine = rules(lag=lag, kv_blocks=10_000, max_num_seqs=4, max_num_batched_tokens=chunk)
    sarathi, vllm = simulate(replace(engine, policy="sarathi"), drawn), simulate(engine, drawn)
    np.testing.assert_array_equal(sarathi.logs[0].table(), vllm.logs[0].table())
    assert_same_times(sarathi, vllm)


@FEW
@given(rows, st.sampled_from(["vllm-v1", "orca", "sarathi"]))
def test_endless_chunks_are_vllm_v0_where_all_come_at_once(drawn: list[tuple[int, int, int]], other: str) -> None:
    """With a seat, blocks and budget for everybody no prompt ever meets a decode, so mixing them or not is the same."""
    engine = rules(max_num_seqs=16, max_num_batched_tokens=10_000, kv_blocks=10_000, max_model_len=64)
    mixing, apart = (simulate(replace(engine, policy=p), drawn, spread=0.0) for p in (other, "vllm-v0"))
    np.testing.assert_array_equal(mixing.logs[0].table(), apart.logs[0].table())


@FEW
@given(rows)
def test_the_capacity_policies_agree_where_memory_is_endless(drawn: list[tuple[int, int, int]]) -> None:
    engine = rules(kv_blocks=10_000, max_num_seqs=4)
    a, b, c = (simulate(replace(engine, policy=p), drawn) for p in ("trtllm", "trtllm-max-utilization", "vllm-v1"))
    np.testing.assert_array_equal(a.logs[0].table(), b.logs[0].table())
    np.testing.assert_array_equal(a.logs[0].table(), c.logs[0].table())


@FEW
@given(rows)
def test_prefix_caching_of_prompts_nobody_shares_changes_nothing(drawn: list[tuple[int, int, int]]) -> None:
    engine = rules(kv_blocks=10_000, max_num_seqs=4, max_num_batched_tokens=9)
    assert_same_times(simulate(engine, drawn), simulate(replace(engine, prefix_caching=False), drawn))
