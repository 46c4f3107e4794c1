"""The requests of agents with those that fill the caches before."""

from __future__ import annotations

import numpy as np

from catalogs.workloads.workload import load_workload
from planner.agents.load import WarmLoad, measured, requests_of
from simulator.analysis.prefix_hits import PrefixHits
from simulator.cluster.cluster import RunOptions
from simulator.cluster.simulate import run_rules
from tests.planner.agents.small_runs import SESSIONS
from tests.simulator.worlds import Linear, rules


def test_agents_continue_when_all_contexts_are_in_the_cache() -> None:
    work = requests_of(load_workload(SESSIONS), 4, 60, 0)
    load = WarmLoad.of(work, 4)
    n = load.n_first
    assert n >= 5  # a context of each agent, and the request that waits for them
    np.testing.assert_array_equal(load.requests.input_tokens[n:], work.input_tokens)
    endless = rules(max_model_len=100_000, kv_blocks=100_000, max_num_batched_tokens=512, prefix_caching=True)
    run = run_rules(endless, Linear(base_s=0.125), load.requests, 1, RunOptions(check_invariants=True))
    assert run.completed.all()
    assert run.arrival_s[n:].min() >= run.last_token_s[: n - 1].max()
    counted = measured(run, 4, n)
    assert not counted[:n].any()
    hits = PrefixHits.of(run, counted)
    assert hits.cached_tokens == hits.seen_tokens
    # The first requests of agents in the middle of a session find their contexts.
    begun = [row for row in range(n - 1) if load.requests.input_tokens[row] > 1]
    assert begun
    sessions = load.requests.sessions
    assert sessions is not None
    for row in begun:
        first = n + int(np.flatnonzero(sessions[n:] == sessions[row])[0])
        assert run.cached_tokens[first] >= load.requests.input_tokens[row] - 4


def test_the_agents_of_a_load_are_those_of_the_sessions() -> None:
    work = requests_of(load_workload(SESSIONS), 6, 60, 3)
    load = WarmLoad.of(work, 6)
    assert load.requests.concurrency == 6
    graph = load.requests.graph
    assert graph is not None
    graph.checked()
    followers = graph.followers()
    assert len(followers[load.n_first - 1]) == load.n_first - 1
