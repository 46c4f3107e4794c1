"""What the planner measures on one replica is what that replica does in the whole cluster, request by request.

A run of conversations has the rate that it was made for, however short it is compared with a conversation.
"""

from __future__ import annotations

import numpy as np
import pytest

from catalogs.deployments.schema import Deployment
from catalogs.workloads.workload import load_workload
from planner.evaluation.observation import Load
from planner.evaluation.runs import RunCache
from planner.evaluation.workload_statistics import workload_of
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.simulate import simulate


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_share_of_the_requests_runs_as_in_the_cluster(replicas: int) -> None:
    cluster = compile_deployment(
        Deployment(model="llama3.1-8b", hardware=f"h100x{replicas}", replicas=replicas, max_model_len=8192)
    )
    alone = compile_deployment(Deployment(model="llama3.1-8b", hardware="h100", max_model_len=8192))
    # Arrivals are routed when they reach the engine, after tokenisation: equal prompts keep the order of arrival.
    workload = load_workload("lmsys-turns")
    requests = workload.materialise(seed=5, n_requests=600, requests_per_s=12.0 * replicas)
    requests.input_tokens[:] = 200
    together = simulate(cluster, requests)
    share = simulate(alone, requests.every(replicas))
    assert share.requests.n == 600 // replicas
    np.testing.assert_allclose(together.first_token_s[::replicas], share.first_token_s, rtol=0, atol=1e-9)
    np.testing.assert_allclose(together.last_token_s[::replicas], share.last_token_s, rtol=0, atol=1e-9)


def test_a_share_keeps_whole_rows() -> None:
    requests = load_workload("azure-conv").materialise(seed=1, n_requests=10, requests_per_s=2.0)
    third = requests.every(3)
    assert third.arrival_s.tolist() == requests.arrival_s[[0, 3, 6, 9]].tolist()
    assert third.output_tokens.tolist() == requests.output_tokens[[0, 3, 6, 9]].tolist()
    assert requests.every(1) is requests


def test_runs_of_conversations_have_the_rate_of_their_load() -> None:
    """Turns are ten seconds apart: without a steady state, 200 requests at any rate would take as long as they do."""
    talks = "{arrivals: {poisson: {}}, input_tokens: 40, output_tokens: 4, turns: {per_session: 2, think_time_s: 10}}"
    slos = parse_slos(["ttft.p90=1s"])
    asked = PlanRequest(model="llama3.2-1b", hardware="l40s", slos=slos, workload=talks)
    part = compile_deployment(Deployment(model="llama3.2-1b", hardware="l40s", max_model_len=8192))
    cache = RunCache(workload_of(asked), asked.seed)
    for rate, n in ((5.0, 200), (50.0, 1500), (1e6, 20_000)):
        done = cache.simulate(part, 1, Load(rate, seed=1, n_requests=200), 200)
        assert done.requests.n == n  # three conversations long, with a limit
        assert done.arrival_s[-1] == pytest.approx(n / rate, rel=0.05)
