"""The times of sessions and tasks, put together from measured latencies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from catalogs.workloads.sessions.agents import AgentSessions
from catalogs.workloads.sessions.texts import TextTree
from catalogs.workloads.workload import load_workload
from planner.agents.load import measured, requests_of, sessions_of
from planner.agents.session_times import MeasuredLatencies, WholeSessions
from simulator.analysis.sessions import grouped_times
from simulator.cluster.simulate import run_rules
from tests.simulator.worlds import Linear, rules

CONSTANT = (
    "{arrivals: {closed_loop: 1}, input_tokens: 8, output_tokens: 5, "
    "turns: {per_session: 4, gap_s: {tool: {constant: {seconds: 2}}}, first_input_tokens: 12}}"
)


def sessions(waits: list[tuple[int, int]], gap_s: list[float], by_human: list[bool]) -> AgentSessions:
    """Return one session of requests of eight new tokens and two output tokens."""
    n = len(gap_s)
    own = np.arange(n)
    texts = TextTree(np.full(n, -1), np.zeros(n, dtype=np.int64), np.full(n, 10), own, np.full(n, 10))
    pairs = np.array(waits, dtype=np.int64).reshape(-1, 2)
    eight = np.full(n, 8)
    return AgentSessions(np.zeros(n, dtype=np.int64), pairs, np.array(gap_s), np.array(by_human), eight, eight, texts)


def test_a_session_and_its_tasks_by_hand() -> None:
    """Requests take 1 s + 7 x 0.5 s = 4.5 s. A human sends 0 and 3; 1 and 2 follow 0 at once, and 3 waits for both."""
    drawn = sessions([(1, 0), (2, 0), (3, 1), (3, 2)], [0.0, 1.0, 3.0, 10.0], [True, False, False, True])
    whole = WholeSessions(drawn, np.full(4, 8.0))
    latencies = MeasuredLatencies(np.full(3, 8.0), np.full(3, 1.0), np.full(3, 0.5))
    found = whole.times_s(latencies, 0)
    assert found["task"].tolist() == [4.5 + 3 + 4.5, 4.5]
    assert found["session"].tolist() == [4.5 + 3 + 4.5 + 10 + 4.5]
    faster = whole.times_s(latencies, 0, speed=2.0)
    assert faster["session"].tolist() == [4.5 + 1.5 + 4.5 + 5 + 4.5]
    assert whole.requests_per_task == 2
    assert len(whole.new) / whole.sessions.n_sessions == 4


def test_a_request_takes_the_latency_of_one_with_as_many_new_tokens() -> None:
    drawn = sessions([], [0.0], [True])
    new = np.repeat([10.0, 1000.0], 50)
    latencies = MeasuredLatencies(new, np.where(new > 100, 9.0, 1.0), np.zeros(100))
    for tokens, ttft_s in ((5.0, 1.0), (2000.0, 9.0)):
        assert WholeSessions(drawn, np.full(1, tokens)).times_s(latencies, 0)["task"].tolist() == [ttft_s]


def test_requests_that_are_not_served_make_a_session_endless() -> None:
    drawn = sessions([], [0.0], [True])
    found = WholeSessions(drawn, np.full(1, 8.0)).times_s(
        MeasuredLatencies(np.ones(1), np.full(1, np.inf), np.ones(1)), 0
    )
    assert np.isinf(found["session"]).all()


def test_equal_sessions_take_the_time_of_the_simulated_ones() -> None:
    """Steps take 1/8 s whatever is in them: the sessions of a run and those put together take the same time."""
    workload = load_workload(CONSTANT)
    work = replace(requests_of(workload, 1, 40, 0), arrival_s=np.zeros(40))
    run = run_rules(rules(max_model_len=1000, kv_blocks=1000), Linear(base_s=0.125), work)
    assert run.requests.sessions is not None
    simulated, _ = grouped_times(run, run.requests.sessions)
    latencies = MeasuredLatencies.of(run, measured(run, 1))
    found = WholeSessions.of(sessions_of(workload), 0).times_s(latencies, 0)["session"]
    assert found.max() == pytest.approx(found.min())
    assert float(np.median(simulated)) == pytest.approx(float(found[0]))
