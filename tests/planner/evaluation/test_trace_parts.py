"""Plans for a trace: each seed replays another part of it, at a constant rate as well as at its own arrival times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from catalogs.workloads.workload import load_workload
from planner.evaluation.workload_statistics import workload_of
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos

N = 4000


@pytest.fixture
def growing(tmp_path: Path) -> str:
    """A trace whose outputs grow from about 15 to 415 tokens: its first requests are not like the others."""
    path = tmp_path / "growing.csv"
    rows = "".join(f"{k * 0.5},{100 + k % 7},{10 + k // 10 + k * 37 % 11}\n" for k in range(N))
    path.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    return str(path)


def request(workload: str, **keys: object) -> PlanRequest:
    given = {"model": "llama3.2-1b", "hardware": "l4", "slos": parse_slos(["ttft.p90=1s"]), "workload": workload}
    return PlanRequest(**{**given, **keys})  # type: ignore[arg-type]


def test_seeds_of_a_plan_are_different_requests_of_a_trace(growing: str) -> None:
    """They were the same requests, so that the noise between seeds was zero, whatever the trace."""
    drawn = [workload_of(request(growing)).materialise(seed, 400, 2.0) for seed in range(4)]
    means = [requests.output_tokens.mean() for requests in drawn]
    assert len(set(means)) == 4
    assert np.mean(means) == pytest.approx(214.5, rel=0.02)
    assert all(requests.arrival_s[-1] == pytest.approx(400 / 2.0, rel=0.01) for requests in drawn)


def test_the_plan_for_the_peak_of_a_trace_has_the_lengths_of_all_of_it(growing: str) -> None:
    """Under random arrivals the order of requests means nothing; the first 400 have a sixth of the mean length."""
    peak = workload_of(request(growing, over_time=True, requests_per_s=3.0))
    for seed in range(4):
        drawn = peak.materialise(seed, 400, 3.0)
        assert drawn.output_tokens.mean() == pytest.approx(peak.lengths().output_tokens.mean, rel=0.12)


@pytest.mark.parametrize("n", [N + 1, N + 400, 2 * N - 1])
def test_a_run_longer_than_the_trace_does_not_count_its_beginning_twice(n: int, growing: str) -> None:
    drawn = workload_of(request(growing)).materialise(1, n, 2.0)
    assert drawn.output_tokens.mean() == pytest.approx(214.5, rel=0.01)
    assert np.all(np.diff(drawn.arrival_s) > 0)
    assert drawn.arrival_s[-1] == pytest.approx(n / 2.0, rel=0.01)


def test_simulations_of_a_trace_replay_it_from_its_beginning_with_every_seed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{k},{k + 1},{k + 2}\n" for k in range(50)))
    for seed in (0, 1, 7):
        assert load_workload(str(path)).materialise(seed, 20).input_tokens.tolist() == list(range(1, 21))
