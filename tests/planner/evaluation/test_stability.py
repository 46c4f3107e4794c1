"""When a deployment counts as keeping up: queues with a known answer, judged by the shares of stability.py."""

from __future__ import annotations

import numpy as np
import pytest

from planner.evaluation.observation import Load, Observation
from planner.evaluation.stability import CLEAR_OVERLOAD_GROWTH, FILLING_GROWTH, GROWTH_LIMIT, OVERLOAD, most_unserved

REQUESTS = 1000
DRAWS = 200


def unserved(utilisation: float, seed: int, n: int = REQUESTS) -> float:
    """Return the growth of an M/D/1 queue while the second half of `n` requests arrive, as a share of these arrivals.

    One request takes one second.
    """
    arrival_s = np.cumsum(np.random.default_rng(seed).exponential(1 / utilisation, n))
    end_s = np.empty(n)
    free_s = 0.0
    for i, now_s in enumerate(arrival_s):
        free_s = end_s[i] = max(free_s, now_s) + 1.0
    begin, end = n // 2, n - 1
    inside = [k + 1 - np.count_nonzero(end_s <= arrival_s[k]) for k in (begin, end)]
    return (inside[1] - inside[0]) / (end - begin)


def seen(growth: float, waiting: float = 1.0, n_measured: int = REQUESTS // 2) -> Observation:
    return Observation(Load(1.0, REQUESTS, 0), {}, n_measured, growth, waiting_fraction=waiting)


@pytest.mark.parametrize("utilisation", [0.3, 0.7, 0.9])
def test_a_queue_that_is_not_full_keeps_up(utilisation: float) -> None:
    stable = [seen(unserved(utilisation, seed)).stable for seed in range(DRAWS)]
    assert np.mean(stable) >= 0.98


def test_a_rate_that_counts_as_an_overload_by_the_estimate_does_not_keep_up() -> None:
    """At 1.15 times the saturation rate 13 % of the arrivals are left over, more than a window of 500 tolerates."""
    growth = [unserved(OVERLOAD, seed, 20 * REQUESTS) for seed in range(5)]
    assert np.mean(growth) == pytest.approx(1 - 1 / OVERLOAD, abs=0.02)
    assert not any(seen(each).stable for each in growth)


def test_half_of_the_arrivals_are_left_over_at_twice_the_saturation_rate_only() -> None:
    assert np.mean([unserved(2.0, seed) for seed in range(20)]) == pytest.approx(CLEAR_OVERLOAD_GROWTH, abs=0.03)
    assert max(unserved(1.3, seed) for seed in range(DRAWS)) < CLEAR_OVERLOAD_GROWTH


def test_the_tolerance_of_a_window_falls_to_the_limit_of_long_runs() -> None:
    shares = [most_unserved(n) for n in (1, 16, 100, 400, 1600, 10**6)]
    assert shares == sorted(shares, reverse=True)
    assert shares[3:] == [pytest.approx(0.1), pytest.approx(GROWTH_LIMIT), GROWTH_LIMIT]
    assert most_unserved(0) == most_unserved(1)


@pytest.mark.parametrize(
    ("growth", "waiting", "undecided"),
    [
        (GROWTH_LIMIT, 1.0, False),  # within the limit of long runs: it keeps up
        (GROWTH_LIMIT + 0.01, 1.0, True),  # the batch may still be filling up
        (FILLING_GROWTH + 0.01, 1.0, False),  # more than a batch that fills up can explain
        (FILLING_GROWTH + 0.01, GROWTH_LIMIT, True),  # but nothing waits for a seat
    ],
)
def test_a_run_is_repeated_only_while_its_batch_may_be_filling_up(
    growth: float, waiting: float, undecided: bool
) -> None:
    assert seen(growth, waiting).undecided is undecided
