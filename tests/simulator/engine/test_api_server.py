"""The API server: one thing at a time on the way in, tokens that queue on the way out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.workloads.request_set import RequestSet
from simulator.analysis.metrics import latency_metrics
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.engine.api_server import RequestIntake, TokenStream
from tests.simulator.worlds import Linear, host_times, requests, rules

BOTH = pytest.mark.parametrize("fast", [True, False], ids=["fast", "step by step"])


def test_prompts_that_come_together_are_tokenised_one_after_the_other() -> None:
    host = host_times(request_s=0.5, api_request_s=0.25, request_s_per_input_token=0.125)
    intake = RequestIntake(host, processes=1)
    # read from 0, 0.25 and 0.5; ready 0.5 later; tokenised after those before
    assert [intake.admit(0.0, tokens) for tokens in (8, 4, 2)] == [1.5, 2.0, 2.25]
    assert intake.admit(10.0, 2) == 10.75
    two = RequestIntake(host, processes=2)
    assert [two.admit(0.0, tokens) for tokens in (8, 4, 2)] == [1.5, 1.0, 1.75]


def test_random_tokens_take_the_tokeniser_longer_than_text() -> None:
    host = host_times(request_s=0.5, request_s_per_input_token=0.125, request_s_per_random_token=0.25)
    assert RequestIntake(host, 1).admit(0.0, 8) == 1.5
    assert RequestIntake(host, 1, random_prompts=True).admit(0.0, 8) == 2.5
    measured = replace(host, measured=True)  # with the prompts of the load client
    assert RequestIntake(measured, 1, random_prompts=True).admit(0.0, 8) == 1.5
    unknown = replace(host, request_s_per_random_token=0.0)
    assert RequestIntake(unknown, 1, random_prompts=True).admit(0.0, 8) == 1.5


def test_a_run_tokenises_the_prompts_of_its_workload() -> None:
    host = host_times(request_s_per_input_token=0.125, request_s_per_random_token=0.25)
    texts = requests([0.0], [8], [1])
    first = [
        run_rules(rules(host=host), Linear(1.0), replace(texts, random_prompts=drawn)).ttft_s[0]
        for drawn in (False, True)
    ]
    assert first[1] - first[0] == pytest.approx(8 * 0.125)


def test_a_single_step_takes_its_work_and_a_crowd_waits_for_it() -> None:
    outlet = TokenStream(host_times(api_step_s=0.5, api_token_s=0.25, api_request_s=1.0), processes=1)
    assert outlet.stream(1.0, 1.0, 1, 2) == 2.0
    assert outlet.stream(1.25, 1.25, 1, 2) == 2.5  # read while the first is still being sent
    outlet.end(2)  # two of its requests are closed
    assert outlet.stream(4.0, 4.0, 1, 1) == 4.75
    assert outlet.stream(4.5, 4.5, 1, 1) == 5.25
    assert TokenStream(host_times(api_token_s=0.25), processes=2).stream(1.0, 1.0, 1, 8) == 2.0


ticks = st.integers(0, 40).map(lambda t: t / 64)
runs = st.tuples(st.integers(1, 9), ticks, st.integers(0, 8).map(lambda t: t / 256), st.integers(1, 6), ticks)


@given(st.lists(runs, min_size=1, max_size=6), ticks, ticks)
def test_a_run_of_steps_at_once_is_the_same_as_step_by_step(
    rows: list[tuple[int, float, float, int, float]], step_s: float, token_s: float
) -> None:
    host = host_times(api_step_s=step_s, api_token_s=token_s)
    at_once, single = TokenStream(host, 1), TokenStream(host, 1)
    now = 0.0
    for steps, first_s, slope_s, tokens, pause_s in rows:
        ends = now + pause_s + np.cumsum(first_s + slope_s * np.arange(steps))
        whole = at_once.stream(float(ends[0]), float(ends[-1]), steps, tokens)
        for end_s in ends.tolist():
            left_s = single.stream(end_s, end_s, 1, tokens)
        assert whole == pytest.approx(left_s, abs=1e-12)
        now = float(ends[-1])


@given(
    st.lists(st.tuples(ticks, st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=12),
    st.lists(st.floats(0.0, 1.0), min_size=12, max_size=12),
    ticks,
    ticks,
    ticks,
)
def test_no_output_leaves_later_if_steps_end_earlier(
    steps: list[tuple[float, int, int]], shares: list[float], step_s: float, token_s: float, request_s: float
) -> None:
    """A faster engine never makes a client wait longer for the API server."""
    host = host_times(api_step_s=step_s, api_token_s=token_s, api_request_s=request_s)
    slow, fast = TokenStream(host, 1), TokenStream(host, 1)
    slow_s = fast_s = 0.0
    for (gap_s, tokens, ended), share in zip(steps, shares, strict=False):
        slow_s, fast_s = slow_s + gap_s, fast_s + share * gap_s
        assert fast.stream(fast_s, fast_s, 1, tokens) <= slow.stream(slow_s, slow_s, 1, tokens) + 1e-12
        for stream in (slow, fast):
            stream.end(ended)


def test_processes_share_the_work() -> None:
    """Twice the processes: half the time for the tokens of each step, and prompts are read by two at once."""
    host = host_times(api_step_s=0.5, api_token_s=0.25)
    assert TokenStream(host, processes=2).stream(1.0, 1.0, 1, 8) == 1.0 + 0.5 + 8 * 0.25 / 2
    crowded = [serve(crowd(None), True, servers, api_token_s=1 / 64) for servers in (1, 2, 4)]
    ends_s = [float(run.last_token_s.max()) for run in crowded]
    assert ends_s[0] > 1.8 * ends_s[1] > 1.8 * 0.9 * ends_s[2]


def crowd(concurrency: int | None) -> RequestSet:
    return requests([0.0] * 32, [4] * 32, [40] * 32, concurrency=concurrency)


def serve(work: RequestSet, fast: bool, api_servers: int = 1, **host: float) -> Run:
    from simulator.cluster.cluster import RunOptions

    engine = rules(max_num_seqs=16, host=host_times(**host), lag=1, api_servers=api_servers)
    return run_rules(engine, Linear(base_s=0.125), work, 1, RunOptions(fast_forward=fast))


@BOTH
@pytest.mark.parametrize("concurrency", [None, 16])
def test_a_replica_streams_no_more_than_its_api_server_can(fast: bool, concurrency: int | None) -> None:
    """The engine makes 16 tokens in 0.125 s; the API server needs 0.25 s for them."""
    free = latency_metrics(serve(crowd(concurrency), fast))
    run = serve(crowd(concurrency), fast, api_token_s=1 / 64)
    bound = latency_metrics(run)
    assert free["output_tokens_per_s"] > 100
    assert 58 < bound["output_tokens_per_s"] <= 64
    assert bound["tpot_s"]["p99"] > 1.8 * free["tpot_s"]["p99"]
    assert bound["itl_s"]["mean"] > 1.8 * free["itl_s"]["mean"]
    if concurrency:  # clients that wait for their last token hold the engine back
        assert run.arrival_s[-1] > 1.8 * serve(crowd(concurrency), fast).arrival_s[-1]
    else:
        assert np.array_equal(run.started_s, serve(crowd(concurrency), fast).started_s)


def test_gaps_between_tokens_are_those_of_clients() -> None:
    """Their sum is last token - first token, over all requests, whether the API server keeps up or not."""
    rng = np.random.default_rng(3)
    n = 60
    work = requests(
        np.cumsum(rng.integers(0, 4, n)).tolist(), rng.integers(1, 24, n).tolist(), rng.integers(1, 20, n).tolist()
    )
    for token_s in (1e-3, 0.2):
        host = host_times(api_step_s=1e-3, api_token_s=token_s, api_request_s=0.01)
        run = run_rules(rules(host=host), Linear(), work)
        gaps = int((work.output_tokens - 1).sum())
        spent_s = float((run.last_token_s - run.first_token_s).sum())
        assert latency_metrics(run)["itl_s"]["mean"] == pytest.approx(spent_s / gaps, rel=0.01)


def test_the_first_wave_of_a_closed_loop_waits_for_the_tokeniser() -> None:
    host = host_times(request_s_per_input_token=0.25)
    work = requests([0.0] * 4, [4] * 4, [1] * 4, concurrency=4)
    run = run_rules(rules(host=host), Linear(base_s=0.125), work)
    assert run.started_s.tolist() == [1.0, 2.0, 3.0, 4.0]
    alone = replace(work, concurrency=1)
    assert run_rules(rules(host=host), Linear(base_s=0.125), alone).ttft_s.tolist() == [1.125] * 4
