"""Clients of a closed loop that think: worked by hand, and against the finite-source queue of the textbooks."""

from __future__ import annotations

from dataclasses import replace
from math import perm
from pathlib import Path

import numpy as np
import pytest

from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import load_workload
from simulator.cluster.cluster import RunOptions
from simulator.cluster.simulate import run_rules
from tests.simulator.worlds import Linear, requests, rules


@pytest.mark.parametrize("fast", [True, False])
def test_two_clients_by_hand(fast: bool) -> None:
    """Every step takes a second, a request two: its prompt and its second token. Client A thinks 1 s
    and sends at 1; B sends at 10; A has its answer at 3 and thinks 4 s."""
    work = replace(requests([0.0] * 3, [4] * 3, [2] * 3, concurrency=2), think_s=np.array([1.0, 10.0, 4.0]))
    engine = rules(max_num_seqs=4)
    run = run_rules(engine, Linear(base_s=1.0), work, 1, RunOptions(fast_forward=fast))
    assert run.arrival_s.tolist() == [1.0, 7.0, 10.0]
    assert run.last_token_s.tolist() == [3.0, 9.0, 12.0]


def test_no_more_is_sent_than_there_is() -> None:
    work = replace(requests([0.0] * 2, [4] * 2, [2] * 2, concurrency=5), think_s=np.array([3.0, 1.0]))
    run = run_rules(rules(), Linear(base_s=1.0), work)
    assert run.completed.all()
    assert run.arrival_s.tolist() == [1.0, 3.0]


def test_one_server_for_a_few_clients() -> None:
    """M/M/1 with a finite source: throughput = (1 - P0) / S, P0 = 1 / sum over k of N! / (N - k)! (S / Z)^k."""
    n, clients, service_s, think_s, per_token_s = 12_000, 6, 1.0, 4.0, 1e-3
    rng = np.random.default_rng(5)
    tokens = np.maximum(1, np.rint(rng.exponential(service_s / per_token_s, n))).astype(np.int64)
    work = RequestSet(np.zeros(n), np.ones(n, dtype=np.int64), tokens, clients, think_s=rng.exponential(think_s, n))
    engine = rules(max_num_seqs=1, kv_blocks=10**7, max_model_len=10**6)
    run = run_rules(engine, Linear(base_s=per_token_s), work)
    empty = 1.0 / sum(perm(clients, k) * (service_s / think_s) ** k for k in range(clients + 1))
    throughput = n / float(run.last_token_s.max())
    assert throughput == pytest.approx((1.0 - empty) / service_s, rel=0.02)
    assert throughput * (float(run.e2e_s.mean()) + think_s) == pytest.approx(clients, rel=0.01)


def test_a_file_says_how_long_they_think(tmp_path: Path) -> None:
    def drawn(arrivals: str) -> RequestSet:
        file = tmp_path / "w.yaml"
        file.write_text(
            f"arrivals: {arrivals}\nrequests: 4000\ninput_tokens: {{constant: 9}}\noutput_tokens: {{constant: 5}}\n"
        )
        return load_workload(str(file)).materialise()

    thinking = drawn("{closed_loop: {concurrency: 3, think_time_s: 20}}")
    assert thinking.think_s is not None
    assert float(thinking.think_s.mean()) == pytest.approx(20.0, rel=0.05)
    assert drawn("{closed_loop: {concurrency: 3}}").think_s is None
