"""Capacity of a queue with a known answer, and its error bars."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from calibration.accuracy.stated_error import StatedError
from planner.evaluation.capacity import find_capacity
from planner.evaluation.confidence import LatencyCurve, confidence
from planner.evaluation.observation import Load, Observation
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.verdict import judge
from planner.problem.slo import Slo, parse_slos
from planner.search.candidate_tester import CandidateTester
from tests.planner.queue_toy import QueueToy, candidate

MEAN = parse_slos(["ttft.mean=0.5s"])


def bench(toy: QueueToy, slos: tuple[Slo, ...], n: int) -> CandidateTester:
    return CandidateTester(toy, slos, RunSizes(n, n), 3, 0.9, None)


def md1_rate(service_s: float, mean_s: float) -> float:
    """The rate at which an M/D/1 queue has this mean time in system: s + r s^2 / (2 (1 - r s)) = mean."""
    excess = mean_s - service_s
    return 2 * excess / (service_s**2 + 2 * excess * service_s)


def test_capacity_matches_md1_theory() -> None:
    toy, plan = QueueToy(0.1), candidate(tensor_parallel=1)
    b = bench(toy, MEAN, 200_000)
    floor = b.probe(plan, b.floor_per_s(plan), 20_000)
    found = b.capacity(plan, floor, toy.fluid_requests_per_s(plan))
    assert found.requests_per_s == pytest.approx(md1_rate(toy.candidate_service_s(plan), 0.5), rel=0.03)
    assert found.upper_requests_per_s <= found.requests_per_s * 1.02001


@pytest.mark.parametrize("guess", [0.01, 1.0, 7.0, 100.0, 5000.0])
def test_capacity_does_not_depend_on_the_guess(guess: float) -> None:
    toy, plan = QueueToy(0.1), candidate(tensor_parallel=1)
    b = bench(toy, MEAN, 4000)
    floor = b.probe(plan, 0.05, 4000)
    found = find_capacity(lambda r: b.probe(plan, r, 4000), guess, floor)
    reference = find_capacity(lambda r: b.probe(plan, r, 4000), 7.7, floor)
    assert found.requests_per_s == pytest.approx(reference.requests_per_s, rel=0.021)


def test_a_statistic_at_its_limit_meets_it() -> None:
    seen = [Observation(Load(1.0, 4, 0), {"ttft": np.full(4, 0.5)}, 4, 0.0)]
    assert judge(seen, parse_slos(["ttft.p90=0.5s"])).met
    assert not judge(seen, parse_slos(["ttft.p90=0.499s"])).met


def test_the_worst_objective_decides() -> None:
    seen = [Observation(Load(1.0, 4, 0), {"ttft": np.full(4, 0.5), "tpot": np.full(4, 0.02)}, 4, 0.0)]
    verdict = judge(seen, parse_slos(["tpot.mean=10ms", "ttft.mean=1s"]))
    assert (verdict.worst.metric, verdict.value_ratio, verdict.met) == ("tpot", 2.0, False)


def test_a_growing_queue_is_infeasible_even_if_the_percentile_of_a_short_run_holds() -> None:
    toy, plan = QueueToy(0.1), candidate(tensor_parallel=1)
    loose = parse_slos(["ttft.p99=80000s"])
    overload = 1.3 * toy.fluid_requests_per_s(plan)
    verdict = judge([toy.observe(plan, Load(overload, 2000, 0))], loose)
    assert verdict.value_s(loose[0]) < loose[0].limit_s
    assert not verdict.stable
    assert not verdict.met
    below = judge([toy.observe(plan, Load(0.8 * toy.fluid_requests_per_s(plan), 2000, 0))], loose)
    assert below.met


def test_a_higher_rate_never_shortens_the_wait_under_common_random_numbers() -> None:
    toy, plan = QueueToy(0.1), candidate(tensor_parallel=1)
    values = [judge([toy.observe(plan, Load(r, 2000, 5))], MEAN).value_s(MEAN[0]) for r in np.geomspace(0.1, 20, 30)]
    assert all(a <= b for a, b in itertools.pairwise(values))


def verdicts(toy: QueueToy, rates: list[float], slo: Slo, seeds: int = 4) -> list:  # type: ignore[type-arg]
    plan = candidate(tensor_parallel=1)
    return [judge([toy.observe(plan, Load(r, 4000, s)) for s in range(seeds)], (slo,)) for r in rates]


def test_probability_is_even_at_the_limit_and_certain_far_from_it() -> None:
    toy = QueueToy(0.1)
    rates = [2.0, 3.0, 4.0, 4.5, 5.0, 5.25, 5.5, 5.75, 6.0, 6.3, 6.6]
    probe = verdicts(toy, rates, MEAN[0])
    at = probe[6]
    slo_at = Slo("ttft", "mean", at.value_s(MEAN[0]))
    curve = LatencyCurve.of(probe, slo_at)
    assert confidence(at, curve, slo_at, StatedError("toy", 0.05, {})).probability_met == pytest.approx(0.5, abs=0.06)
    assert confidence(probe[0], curve, slo_at, StatedError("toy", 0.05, {})).probability_met > 0.97
    assert confidence(probe[10], curve, slo_at, StatedError("toy", 0.05, {})).probability_met < 0.05


def test_more_calibration_error_means_a_wider_interval() -> None:
    toy = QueueToy(0.1)
    probe = verdicts(toy, [1.0, 3.0, 4.5, 5.5, 6.3], MEAN[0])
    curve = LatencyCurve.of(probe, MEAN[0])
    widths = []
    for error in (0.0, 0.02, 0.1, 0.3):
        c = confidence(probe[1], curve, MEAN[0], StatedError("toy", error, {}))
        assert c.low_s <= c.value_s <= c.high_s
        widths.append(c.high_s / c.low_s)
    assert widths == sorted(widths)
    assert widths[0] > 1


def test_a_slower_machine_is_the_same_machine_at_a_higher_rate() -> None:
    """The identity that carries the calibration error: value(f x service, rate) = f x value(service, f x rate)."""
    plan, f, slo = candidate(tensor_parallel=1), 1.17, MEAN[0]
    slow = judge([QueueToy(0.1 * f).observe(plan, Load(5.0, 3000, 1))], MEAN).value_s(slo)
    fast = judge([QueueToy(0.1).observe(plan, Load(5.0 * f, 3000, 1))], MEAN).value_s(slo)
    assert slow == pytest.approx(f * fast, rel=1e-9)


def test_one_token_outputs_have_no_tpot_and_meet_any_limit() -> None:
    empty = Observation(Load(1.0, 10, 0), {"tpot": np.array([])}, 10, 0.0)
    assert judge([empty], parse_slos(["tpot.p99=1ms"])).met
