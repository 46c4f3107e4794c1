"""Statistics of small runs against the same numbers counted token by token."""

from __future__ import annotations

import numpy as np
import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from simulator.analysis.metrics import (
    duration_s,
    latency_metrics,
    statistics,
    streaming_notice,
    summarise,
)
from simulator.cluster.cluster import RunOptions
from simulator.cluster.simulate import run_rules
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog
from tests.simulator.worlds import Linear, requests, rules


def test_metrics_of_a_timeline_by_hand() -> None:
    run = run_rules(rules(), Linear(), requests([1.0, 2.5], [6, 4], [4, 1]))
    # A: first token 2, last 5. B arrives in [2, 3), runs [3, 4).
    metrics = latency_metrics(run)
    assert metrics["ttft_s"]["mean"] == 1.25
    assert metrics["ttft_s"]["p50"] == 1.25
    assert metrics["tpot_s"] == dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), 1.0)  # one-token outputs have none
    assert metrics["itl_s"]["mean"] == 1.0
    assert metrics["e2e_s"]["mean"] == (4.0 + 1.5) / 2
    assert metrics["queue_s"]["mean"] == 0.25
    assert metrics["duration_s"] == 4.0
    assert metrics["output_tokens_per_s"] == 5 / 4.0
    assert metrics["input_tokens_per_s"] == 10 / 4.0
    assert (metrics["n_arrived"], metrics["n_completed"], metrics["n_rejected"], metrics["n_unfinished"]) == (
        2,
        2,
        0,
        0,
    )
    assert metrics["kv_peak_fraction"] == 3 / 1000  # A holds 8 tokens beside B's 4, then 9 alone


def test_nothing_to_measure_is_said() -> None:
    run = run_rules(rules(max_model_len=4), Linear(), requests([0.0], [9], [1]))
    metrics = latency_metrics(run)
    assert metrics["ttft_s"] == dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), None)
    assert metrics["itl_s"]["p50"] is None
    assert metrics["n_rejected"] == 1
    with pytest.raises(ValueError, match="without a compiled deployment"):
        summarise(run)


def test_an_open_run_lasts_to_its_horizon() -> None:
    run = run_rules(rules(), Linear(), requests([1.0, 1.0], [4, 4], [2, 90]), 1, RunOptions(horizon_s=21.0))
    assert duration_s(run) == 20.0
    assert latency_metrics(run)["output_tokens_per_s"] == (2 + 20) / 20.0  # tokens of the unfinished count


def test_percentiles_are_numpys() -> None:
    values = np.array([3.0, np.nan, 1.0, 2.0, 10.0])
    found = statistics(values)
    assert found["mean"] == 4.0
    assert found["p90"] == float(np.percentile([1.0, 2.0, 3.0, 10.0], 90))


def test_inter_token_latencies_of_a_run_with_preemption() -> None:
    """The log and the gaps of preemptions give every gap: their sum is last token - first token, over all requests."""
    rng = np.random.default_rng(3)
    work = requests(
        np.cumsum(rng.integers(0, 4, 60)).tolist(), rng.integers(1, 24, 60).tolist(), rng.integers(1, 20, 60).tolist()
    )
    for lag in (0, 1):
        run = run_rules(rules(kv_blocks=15, lag=lag), Linear(), work)
        assert run.preemptions.sum() > 0
        log = StepLog.merged(run.logs)
        total = float(log.total_s @ log.decodes) + run.gaps_s.sum()
        assert total == pytest.approx(float((run.last_token_s - run.first_token_s).sum()), rel=1e-12)
        n = float(log.decodes @ log.steps) + len(run.gaps_s)
        assert n == (run.requests.output_tokens - 1).sum()


def test_the_log_keeps_what_was_added() -> None:
    log = StepLog()
    shape = BatchShape(
        prefill_tokens=7, prefill_pairs=24.5, prefill_chunks=1, decodes=2, decode_context_sum=30, decode_context_max=20
    )
    shape.logits = 3
    log.add(1.5, 1, shape, 0.25, 0.0, 0.25)
    log.add(1.75, 10, BatchShape(decodes=3, logits=3), 0.5, 0.125, 10.625)
    assert len(log) == 2
    assert log.table()[0].tolist() == [1.5, 1, 7, 24.5, 1, 2, 30, 20, 0, 3, 0.25, 0.0, 0.25, 1, *[0.0] * 8]
    assert log.steps.tolist() == [1, 10]
    assert StepLog.merged([log, log]).total_s.tolist() == [0.25, 10.625] * 2


def test_a_busy_api_server_is_pointed_out() -> None:
    one = resolve(Deployment(model="llama3.1-8b", hardware="h100"))
    two = resolve(Deployment(model="llama3.1-8b", hardware="h100x2", replicas=2))
    most = 1.0 / one.engine.host.api_token_s
    assert streaming_notice(one, 0.7 * most) is None
    assert f"{most:,.0f}" in (streaming_notice(one, 1.5 * most) or "")
    assert streaming_notice(two, 1.5 * most) is None
