"""Inter-token latencies against the same gaps counted token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.analysis.inter_token_latency import ascending, itl_statistics
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog


def gaps_token_by_token(log: StepLog) -> list[float]:
    gaps: list[float] = []
    for steps, decodes, first_s, slope_s in zip(log.steps, log.decodes, log.first_s, log.slope_s, strict=True):
        for j in range(int(steps)):
            gaps += [first_s + slope_s * j] * int(decodes)
    return gaps


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.integers(0, 9), st.floats(0.01, 1.0), st.floats(0.0, 1e-3)),
        min_size=1,
        max_size=20,
    ),
    st.lists(st.floats(0.0, 5.0), max_size=3),
)
def test_inter_token_latencies_match_counting_every_token(
    rows: list[tuple[int, int, float, float]], preempted: list[float]
) -> None:
    log = StepLog()
    for steps, decodes, first_s, slope_s in rows:
        total = steps * first_s + slope_s * steps * (steps - 1) / 2
        log.add(0.0, steps, BatchShape(decodes=decodes), first_s, slope_s, total)
    found = itl_statistics(log, np.array(preempted))
    gaps = sorted(gaps_token_by_token(log) + preempted)
    if not gaps:
        assert found["mean"] is None
        return
    assert found["mean"] == pytest.approx(float(np.mean(gaps)), rel=1e-9)
    ramp = max(slope * steps for steps, _, _, slope in rows)  # a run is read at 16 points of its ramp
    for name, q in (("p50", 50), ("p90", 90), ("p99", 99)):
        rank = q / 100 * len(gaps)
        slack = 1 + sum(steps * decodes for steps, decodes, _, _ in rows) / 16
        low = gaps[max(0, int(rank - slack) - 1)] - ramp / 16 - 1e-12
        high = gaps[min(len(gaps) - 1, int(rank + slack) + 1)] + ramp / 16 + 1e-12
        assert low <= found[name] <= high  # type: ignore[operator]


def test_many_runs_of_steps_are_read_at_fewer_points(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    log = StepLog()
    for steps, first_s in zip(rng.integers(1, 60, 3000).tolist(), rng.uniform(0.01, 0.02, 3000).tolist(), strict=True):
        log.add(0.0, steps, BatchShape(decodes=4), first_s, 1e-5, steps * first_s + 1e-5 * steps * (steps - 1) / 2)
    fine = itl_statistics(log, np.zeros(0))
    monkeypatch.setattr("simulator.analysis.inter_token_latency.MOST_ITL_POINTS", 3000)
    coarse = itl_statistics(log, np.zeros(0))
    assert coarse["mean"] == fine["mean"]
    for name in ("p50", "p90", "p99"):
        assert coarse[name] == pytest.approx(fine[name], rel=0.005)
        assert coarse[name] != fine[name]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3)), max_size=40))
def test_the_order_of_values_is_that_of_two_keys(pairs: list[tuple[int, int]]) -> None:
    values, weights = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    assert ascending(values, weights).tolist() == np.lexsort((weights, values)).tolist()
