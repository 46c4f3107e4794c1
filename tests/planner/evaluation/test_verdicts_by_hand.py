"""Verdicts: seeds pooled, the growth that chance explains, and stability as a part of every objective."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.evaluation.observation import Load, Observation
from planner.evaluation.verdict import ErrorAllowance, Verdict, judge, verdict_of
from planner.problem.candidate import Candidate
from planner.problem.slo import Slo, parse_slo
from planner.search.candidate_tester import RequestCounter
from tests.planner.queue_toy import QueueToy, candidate

MEAN = parse_slo("ttft.mean=1s")


def seen(value_s: float, rate_per_s: float = 1.0, growth: float = 0.0, n: int = 100, **more: object) -> Observation:
    """A run whose every request took as long."""
    return Observation(Load(rate_per_s, n, 0), {"ttft": np.full(4, value_s)}, n, growth, **more)  # type: ignore[arg-type]


def seeds_of(*values_s: float, growth: float = 0.0) -> Verdict:
    return judge([seen(v, growth=growth) for v in values_s], [MEAN])


@pytest.mark.parametrize(
    ("growth", "n", "stable", "undecided"),
    [
        (0.05, 10_000, True, False),
        (0.0501, 10_000, False, True),
        (0.2, 100, True, True),  # two sigma of 100 arrivals: stable, but a longer run shows more
        (0.2001, 100, False, True),
        (0.3, 10_000, False, True),
        (0.3001, 10_000, False, False),
        (2.0, 0, True, False),
        (2.0001, 0, False, False),
    ],
)
def test_growth_beyond_chance_is_not_stable(growth: float, n: int, stable: bool, undecided: bool) -> None:
    observation = seen(0.1, growth=growth, n=n)
    assert (observation.stable, observation.undecided) == (stable, undecided)


def test_a_batch_in_which_nobody_waits_may_still_fill_up_however_fast_it_grows() -> None:
    for waiting, undecided in ((0.0, True), (0.05, True), (0.0501, False), (1.0, False)):
        assert seen(0.1, growth=0.9, n=10_000, waiting_fraction=waiting).undecided is undecided
    assert not seen(0.1, growth=0.05, n=10_000, waiting_fraction=0.0).undecided  # it keeps up


def test_requests_are_rejected_only_where_the_run_says_so() -> None:
    growing = seen(0.1, growth=0.9, n=10_000)
    assert growing.rejected_fraction == 0.0
    assert judge([growing], [MEAN]).rejection == ""
    rejecting = seen(0.1, growth=0.9, n=10_000, rejected_fraction=0.5, rejected_because="too long")
    assert "too long" in judge([rejecting], [MEAN]).rejection


def test_an_objective_is_met_only_by_a_stable_system_with_every_seed() -> None:
    steady, growing = seen(0.5), seen(0.5, growth=0.4)
    assert judge([steady, steady], [MEAN]).met
    for runs in ([steady, growing], [growing, steady], [growing]):
        verdict = judge(runs, [MEAN])
        assert (verdict.stable, verdict.met, verdict.ratio) == (False, False, math.inf)
        assert verdict.value_ratio == 0.5
    late = judge([seen(1.5), seen(1.5)], [MEAN])
    assert (late.stable, late.met, late.ratio) == (True, False, 1.5)


def test_seeds_are_pooled() -> None:
    verdict = judge([seen(0.5, joules_per_output_token=2.0), seen(1.1, joules_per_output_token=4.0)], [MEAN])
    assert verdict.value_s(MEAN) == verdict.mean_s("ttft") == pytest.approx(0.8)
    assert (verdict.met, verdict.requests_per_s, verdict.joules_per_output_token) == (True, 1.0, 3.0)


def test_an_objective_without_samples_is_met_and_is_not_the_worst() -> None:
    none, limit = Slo("tpot", "mean", 1.0), Slo("ttft", "mean", 10.0)
    empty = Observation(Load(1.0, 4, 0), {"ttft": np.full(4, 0.5), "tpot": np.array([])}, 4, 0.0)
    verdict = judge([empty], [none, limit])
    assert (verdict.met, verdict.worst, verdict.value_ratio) == (True, limit, 0.05)
    assert judge([empty], [none]).value_ratio == 0.0


def test_a_short_run_rules_out_only_what_is_far_off() -> None:
    assert not seeds_of(1.3).clearly_missed
    assert seeds_of(1.301).clearly_missed
    assert not seeds_of(0.5, growth=0.5).clearly_missed
    assert judge([seen(0.5), seen(0.5, growth=0.501)], [MEAN]).clearly_missed


def test_a_run_is_counted_once() -> None:
    counter, plan = RequestCounter(), candidate()
    for load_seed in (0, 0, 1):
        run = Observation(Load(1.0, 50, load_seed), {}, 40, 0.0, n_simulated=50)
        counter.add(plan, run)
    counter.add(candidate(tensor_parallel=4), Observation(Load(1.0, 50, 0), {}, 40, 0.0, n_simulated=70))
    assert counter.n_requests == 170
    counter.restart()
    assert counter.n_requests == 0
    counter.add(plan, Observation(Load(1.0, 50, 0), {}, 40, 0.0, n_simulated=50))
    assert counter.n_requests == 50
    assert seen(0.5).n_simulated == 0


# ---- longer runs


class GrowingQueue(QueueToy):
    """Short runs are unlucky: a latency of a tenth of the rate, and half of that in longer runs.

    From 8 requests/s on it is undecided after a short run whether the system keeps up; a longer one shows that it does
    up to 18 requests/s.
    """

    def observe(self, c: Candidate, load: Load) -> Observation:
        self.loads.append((c, load))
        rate = load.requests_per_s
        n, value_s, growth = load.n_requests, rate / 10, 0.06 if rate >= 8 else 0.0
        if load.patient and growth:
            n, value_s, growth = 4 * n, rate / 20, 0.0 if rate <= 18 else 1.0
        samples_s = {"ttft": np.full(4, value_s + 0.01 * load.seed)}
        return Observation(load, samples_s, n, growth, n_simulated=n)


def test_a_longer_run_decides_only_about_a_rate_whose_short_run_meets_the_objectives() -> None:
    toy = GrowingQueue()
    met = {rate: verdict_of(toy, candidate(), [Load(rate, 1000, 0)], [MEAN]).met for rate in (7.0, 9.0, 11.0, 15.0)}
    assert met == {7.0: True, 9.0: True, 11.0: False, 15.0: False}
    assert [load.requests_per_s for _, load in toy.loads if load.patient] == [9.0]


def test_the_allowance_for_errors_decides_too_whether_a_run_is_extended() -> None:
    """With slow steps the load is 1.2 times the rate: 8.5 requests/s are simulated as 10.2, and missed."""
    toy, slow = GrowingQueue(), ErrorAllowance(speed=1.2)
    for rate, met in ((8.0, True), (8.5, False)):
        load = Load(rate * slow.speed, 1000, 0)
        assert verdict_of(toy, candidate(), [load], [MEAN], slow).met is met
    assert [load.requests_per_s for _, load in toy.loads if load.patient] == [pytest.approx(9.6)]


@given(st.lists(st.floats(1, 30), min_size=2, max_size=8), st.integers(1, 4))
def test_a_rate_above_a_missed_one_is_missed(rates: list[float], n_seeds: int) -> None:
    toy = GrowingQueue()
    met = [
        verdict_of(toy, candidate(), [Load(rate, 1000, seed) for seed in range(n_seeds)], [MEAN]).met
        for rate in sorted(rates)
    ]
    assert met == sorted(met, reverse=True)


def test_a_run_that_is_not_extended_counts_once() -> None:
    toy, counter = GrowingQueue(), RequestCounter()
    for rate, n_requests in ((7.0, 1000), (9.0, 5000), (15.0, 1000)):
        counter.restart()
        for _ in range(2):
            verdict_of(toy, candidate(), [Load(rate, 1000, 0)], [MEAN], seen=partial(counter.add, candidate()))
        assert counter.n_requests == n_requests
