"""The parts of a trace that seeds replay: independent samples of all of it, each with its own order and contents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from catalogs.workloads.replay import Replay
from catalogs.workloads.traces import Trace

N = 1000


def trace(**columns: object) -> Trace:
    """Return a trace whose outputs grow from one to 1,000 tokens; the inputs are the numbers of the rows."""
    outputs = np.arange(1, N + 1)
    plain = Trace(None, np.arange(N), outputs, None, 16, "by hand")
    return replace(plain, **columns)  # type: ignore[arg-type]


def by_seed(**columns: object) -> Replay:
    return Replay(trace(**columns), N, part_by_seed=True)


def test_a_sample_of_a_trace_without_times_has_the_lengths_of_the_whole_trace() -> None:
    """The first 200 requests of this trace are a fifth as long as the others are."""
    whole = Replay(trace(), N).draw(0, 200, 1.0)
    assert whole.output_tokens.mean() == pytest.approx(100.5)
    for seed in range(4):
        sample = by_seed().draw(seed, 200, 1.0)
        assert sample.output_tokens.mean() == pytest.approx(500.5, rel=0.15)
        assert len(set(sample.input_tokens.tolist())) == 200
        assert np.array_equal(sample.output_tokens, sample.input_tokens + 1)  # rows stay whole


def test_seeds_differ_and_more_requests_extend_fewer() -> None:
    replay = by_seed()
    few, many = replay.draw(3, 200, 1.0), replay.draw(3, 2500, 1.0)
    assert np.array_equal(many.input_tokens[:200], few.input_tokens)
    assert np.array_equal(many.arrival_s[:200], few.arrival_s)
    assert sorted(many.input_tokens[:N].tolist()) == sorted(many.input_tokens[N : 2 * N].tolist()) == list(range(N))
    assert not np.array_equal(replay.draw(4, 200, 1.0).input_tokens, few.input_tokens)
    assert np.array_equal(replay.draw_lengths(3, 200)[0], few.input_tokens)


def test_a_trace_with_times_keeps_them_from_another_beginning() -> None:
    times = np.concatenate([np.arange(N // 2) * 2.0, N + np.arange(N // 2) * 1.0])
    replay = by_seed(arrival_s=times)
    own = replay.requests_per_s
    assert own is not None
    assert np.array_equal(replay.draw(0, 100, own).arrival_s, times[:100])
    begins = []
    for seed in range(4):
        drawn = replay.draw(seed, N + 1, own)
        first = int(drawn.input_tokens[0])
        begins.append(first)
        assert drawn.arrival_s[0] == 0.0
        assert np.array_equal(drawn.input_tokens, (first + np.arange(N + 1)) % N)
        assert np.allclose(drawn.arrival_s[: N - first], times[first:] - times[first])
        assert np.all(np.diff(drawn.arrival_s) > 0)
        assert drawn.arrival_s[-1] == pytest.approx(N / own)
    gaps = np.diff(sorted([*begins, begins[0] + N]))
    assert gaps.min() > 0.1 * N  # the beginnings are spread over the trace


def test_a_part_that_goes_beyond_the_end_shares_no_contents_with_the_beginning() -> None:
    hashes = tuple((0, row + 1) for row in range(N))
    replay = by_seed(block_hashes=hashes)
    drawn = replay.draw(1, N, 1.0)
    found, first = drawn.block_hashes, int(drawn.input_tokens[0])
    assert isinstance(found, tuple)
    assert first > 0
    assert found[: N - first] == hashes[first:]
    assert not {b for ids in found[: N - first] for b in ids} & {b for ids in found[N - first :] for b in ids}


def test_simulations_of_a_trace_replay_it_from_its_beginning_with_every_seed(tmp_path: Path) -> None:
    from catalogs.workloads.workload import load_workload

    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{k},{k + 1},{k + 2}\n" for k in range(50)))
    for seed in (0, 1, 7):
        assert load_workload(str(path)).materialise(seed, 20).input_tokens.tolist() == list(range(1, 21))
