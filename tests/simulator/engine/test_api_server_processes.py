"""Several processes of an API server: requests in turn on the way in, the work of tokens divided on the way out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.api_server import RequestIntake, TokenStream
from tests.simulator.worlds import host_times

times = st.floats(0.0, 2.0).map(lambda t: round(t * 64) / 64)
counts = st.integers(1, 9)


@given(st.integers(1, 8), times, times, counts)
def test_processes_divide_the_work_of_tokens_and_not_the_time_of_a_step(
    processes: int, step_s: float, token_s: float, tokens: int
) -> None:
    stream = TokenStream(host_times(api_step_s=step_s, api_token_s=token_s), processes)
    left_s = stream.stream(1.0, 1.0, 1, tokens)
    assert left_s == stream.left_s == pytest.approx(1.0 + step_s + tokens * token_s / processes)


@given(st.integers(1, 8), times, times, counts, counts)
def test_processes_divide_the_work_of_requests_that_end(
    processes: int, token_s: float, request_s: float, tokens: int, ended: int
) -> None:
    """It delays the tokens after it, not the request itself."""
    stream = TokenStream(host_times(api_token_s=token_s, api_request_s=request_s), processes)
    first = stream.stream(1.0, 1.0, 1, tokens)
    stream.end(ended)
    assert stream.left_s == first
    free_s = first + ended * request_s / processes
    assert stream.stream(1.0, 1.0, 1, tokens) == pytest.approx(free_s + tokens * token_s / processes)


@given(st.integers(1, 6), st.integers(1, 12), times, times, times, counts)
def test_each_process_reads_its_own_requests(
    processes: int, n: int, read_s: float, delay_s: float, token_s: float, tokens: int
) -> None:
    """Requests that come together: the i-th of a process is read after the others, and tokenised after them."""
    host = host_times(api_request_s=read_s, request_s=delay_s, request_s_per_input_token=token_s)
    intake = RequestIntake(host, processes)
    found = [intake.admit(5.0, tokens) for _ in range(n)]
    work_s = tokens * token_s
    for i, ready_s in enumerate(found):
        behind = i // processes
        assert ready_s == pytest.approx(5.0 + delay_s + behind * max(read_s, work_s) + work_s)


def test_a_request_that_comes_later_finds_its_process_free_again() -> None:
    intake = RequestIntake(host_times(api_request_s=1.0, request_s=0.5, request_s_per_input_token=0.25), 2)
    assert [intake.admit(0.0, 4), intake.admit(0.0, 8)] == [1.5, 2.5]
    assert intake.admit(0.5, 4) == 2.5  # the loop of the first process is free at 1, its tokeniser at 1.5
    assert intake.admit(9.0, 4) == 10.5


def test_a_loop_that_is_behind_before_the_first_step_stays_behind() -> None:
    stream = TokenStream(host_times(api_token_s=0.25), 1)
    assert stream.stream(1.0, 4.0, 4, 4) == 5.0  # a step a second, and a second of work for each
    assert stream.stream(4.5, 4.5, 1, 4) == 6.0
    late = TokenStream(host_times(api_token_s=0.25), 1)
    assert late.stream(1.0, 1.5, 2, 4) == 3.0  # two seconds of work from the first end on
    assert late.stream(2.0, 2.5, 2, 4) == 5.0
