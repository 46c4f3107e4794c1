"""Engines that do not mix prefill and decode: the gaps between tokens that prefill makes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.analysis.inter_token_latency import itl_statistics, prefill_waits
from simulator.analysis.metrics import latency_metrics
from simulator.cluster.cluster import RunOptions
from simulator.cluster.simulate import run_rules
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog
from tests.simulator.worlds import Linear, requests, rules


def test_prefill_makes_decodes_wait() -> None:
    """A decodes from 1 on; B's prompt runs [4, 5) and C's [5, 6) (the budget holds one): A's gap is 3 s, B's 2."""
    work = requests([0.0, 3.5, 3.5], [4, 4, 4], [6, 2, 2])
    run = run_rules(rules(policy="sglang", max_num_batched_tokens=4, max_num_seqs=4), Linear(), work)
    assert run.last_token_s.tolist() == [8.0, 7.0, 7.0]
    assert sorted(prefill_waits(run.logs).tolist()) == [[1.0, 1.0, 1.0], [1.0, 2.0, 1.0]]
    # A's gaps: 1 1 1 3 1; B's 2; C's 1
    itl = latency_metrics(run)["itl_s"]
    assert itl["mean"] == pytest.approx(10.0 / 7.0)
    assert (itl["p50"], itl["p99"]) == (1.0, 3.0)


STEPS = st.tuples(st.sampled_from([0.0, 0.5]), st.integers(0, 2), st.integers(0, 3), st.integers(0, 3))


@given(st.lists(STEPS, max_size=30))
def test_the_gaps_of_prefill_step_by_step(steps: list[tuple[float, int, int, int]]) -> None:
    """Steps of (pause before them, prefill tokens, decodes, logits): each request waits since its last token."""
    log, now_s, expected = StepLog(), 0.0, []
    tokens: list[tuple[float, int]] = []  # when tokens came out, and how many, since the last step with decodes
    stalled = False
    for i, (pause_s, prefill, decodes, logits) in enumerate(steps):
        now_s += pause_s
        left = decodes if stalled else 0
        for end_s, n in reversed(tokens):
            taken = min(left, n)
            left -= taken
            if taken and now_s > end_s:
                expected.append([1.0 + i, now_s - end_s, taken])
        shape = BatchShape(prefill_tokens=prefill, decodes=decodes)
        shape.logits = logits
        log.add(now_s, 1, shape, 1.0 + i, 0.0, 1.0 + i)
        now_s += 1.0 + i
        stalled = not decodes and bool(prefill)
        tokens = [(now_s, logits)] if decodes else [*tokens, (now_s, logits)]
    assert prefill_waits([log]).tolist() == expected


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 24), st.integers(2, 20), st.integers(0, 6)), min_size=1, max_size=20),
    lag=st.integers(0, 1),
    policy=st.sampled_from(["sglang", "trtllm", "vllm-v1"]),
)
def test_gaps_add_up_to_the_time_between_tokens(rows: list[tuple[int, int, int]], lag: int, policy: str) -> None:
    work = requests(np.cumsum([g for *_, g in rows]).tolist(), [i for i, _, _ in rows], [o for _, o, _ in rows])
    run = run_rules(rules(policy=policy, kv_blocks=200, lag=lag), Linear(), work, 1, RunOptions())
    gaps = run.requests.output_tokens.sum() - run.requests.n
    found = itl_statistics(StepLog.merged(run.logs), run.gaps_s, prefill_waits(run.logs))
    assert found["mean"] == pytest.approx(float((run.last_token_s - run.first_token_s).sum()) / gaps, rel=1e-12)
