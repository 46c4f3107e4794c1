"""Engines that do not mix prefill and decode: the gaps between tokens that prefill makes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.analysis.metrics import itl_statistics, latency_metrics, prefill_waits
from simulator.cluster.cluster import RunOptions
from simulator.cluster.simulate import run_rules
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
