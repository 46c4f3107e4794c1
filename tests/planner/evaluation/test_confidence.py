"""Error bars: what the interval, the probability and the safe rate say must agree."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from calibration.accuracy.spread_fit import fit_group
from calibration.accuracy.stated_error import LEVELS, Group, StatedError, load_file
from planner.evaluation.confidence import (
    LatencyCurve,
    Spread,
    allowance_for,
    confidence,
    confident_rate_per_s,
    probability_met,
)
from planner.evaluation.observation import Load
from planner.evaluation.verdict import Verdict, judge
from planner.problem.slo import Slo, parse_slo
from tests.planner.queue_toy import QueueToy, candidate

GENEROUS = parse_slo("ttft.p99=50s")
ERROR = StatedError("toy", 0.05, {})  # no whole runs: log-normal


def scaled(curve: LatencyCurve, factor: float) -> LatencyCurve:
    return replace(curve, values_s=tuple(v * factor for v in curve.values_s))


def verdict(rate_per_s: float, slo: Slo) -> Verdict:
    return judge([QueueToy().observe(candidate(), Load(rate_per_s, 4000, seed)) for seed in range(4)], [slo])


def curve(slo: Slo) -> LatencyCurve:
    full = QueueToy().fluid_requests_per_s(candidate())
    return LatencyCurve.of([verdict(full * share, slo) for share in (0.2, 0.5, 0.8, 0.9, 0.97, 1.3)], slo)


def test_no_latency_is_promised_where_slower_steps_would_overload() -> None:
    full = QueueToy().fluid_requests_per_s(candidate())
    near = confidence(verdict(0.97 * full, GENEROUS), curve(GENEROUS), GENEROUS, ERROR)
    assert near.probability_met < 0.9
    assert math.isinf(near.high_s)
    far = confidence(verdict(0.5 * full, GENEROUS), curve(GENEROUS), GENEROUS, ERROR)
    assert far.probability_met > 0.9
    assert math.isfinite(far.high_s)


def runs_off_by(metric: str, log_ratios: np.ndarray) -> Group:
    return fit_group("toy", metric, log_ratios, np.zeros(len(log_ratios)), "toy runs")


def test_where_load_does_not_matter_the_odds_are_those_of_the_measured_runs() -> None:
    """A flat curve: the chance of meeting a limit is the share of runs whose error stays below it."""
    slo = parse_slo("tpot.mean=1s")
    off = np.linspace(-0.1, 0.5, 99)
    error = StatedError("toy", 0.0, {"tpot": runs_off_by("tpot", off), "e2e": runs_off_by("e2e", 0 * off)})
    flat = LatencyCurve((1.0, 2.0), (1.0, 1.0), (True, True))
    for share in (0.1, 0.5, 0.9):
        limited = Slo("tpot", "mean", math.exp(-0.1 + 0.6 * share))
        sure = probability_met(flat, limited, 1.5, Spread.of((), limited, error))
        assert sure == pytest.approx(share, abs=0.02)
    gaps = parse_slo("itl.mean=1s")  # read as the time per token
    assert Spread.of((), gaps, error).factors.latency == pytest.approx(Spread.of((), slo, error).factors.latency)


def test_slower_runs_than_simulated_move_the_rate_as_well_as_the_latency() -> None:
    full = QueueToy().fluid_requests_per_s(candidate())
    seen, around = verdict(0.8 * full, GENEROUS), curve(GENEROUS)
    at_value = Slo("ttft", "p99", 1.3 * seen.value_s(GENEROUS))
    slow, exact = np.full(40, math.log(1.15)), np.zeros(40)
    odds = [
        confidence(
            seen,
            around,
            at_value,
            StatedError("toy", 0.0, {"ttft": runs_off_by("ttft", t), "e2e": runs_off_by("e2e", s)}),
        ).probability_met
        for t, s in ((exact, exact), (slow, exact), (slow, slow))
    ]
    assert odds[0] > 0.9
    assert odds[0] >= odds[1] > odds[2]
    assert odds[2] < 0.1  # 15 % slower at 80 % load: 92 %, where the queue is far longer than 1.3 times


@pytest.mark.parametrize("better", [0.6, 1.0, 1.5])
def test_a_curve_goes_through_the_verdict_it_is_moved_to(better: float) -> None:
    full = QueueToy().fluid_requests_per_s(candidate())
    seen = verdict(0.8 * full, GENEROUS)
    moved = scaled(curve(GENEROUS), better).through(seen, GENEROUS)
    assert moved.value_s(0.8 * full) == pytest.approx(seen.value_s(GENEROUS))


def test_a_rate_that_is_sure_enough_is_safe() -> None:
    full = QueueToy().fluid_requests_per_s(candidate())
    slo = parse_slo(f"ttft.p99={2 * verdict(0.8 * full, GENEROUS).value_s(GENEROUS)}s")
    seen, around = verdict(0.8 * full, slo), curve(slo)
    pessimistic = scaled(around, 1.9)  # one replica alone does worse than its share of a cluster
    sure = confidence(seen, pessimistic, slo, ERROR).probability_met
    safe = confident_rate_per_s(
        pessimistic.through(seen, slo), slo, 0.95 * full, Spread.of(seen.observations, slo, ERROR), 0.9
    )
    assert sure >= 0.9
    assert safe is not None
    assert safe >= 0.8 * full * 0.98


def shipped(engine: str) -> StatedError:
    return StatedError(engine, 0.05, {g.metric: g for g in load_file().groups if g.engine == engine})


def grown_by_waiting() -> StatedError:
    """An error of the time to first token that is four times as wide where all of it is waiting."""
    scores = tuple(NormalDist().inv_cdf(level) for level in LEVELS)
    group = Group(
        engine="toy", metric="ttft", n=100, centre=0.1, typical=0.1, waiting=0.3, scores=scores, source="toy runs"
    )
    return StatedError("toy", 0.05, {"ttft": group, "e2e": runs_off_by("e2e", np.linspace(-0.1, 0.1, 99))})


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "toy"])
@pytest.mark.parametrize("sure", [0.5, 0.75, 0.9, 0.98])
def test_no_higher_rate_is_surer(engine: str, sure: float) -> None:
    """One run with the allowance comes closer to the limit with every higher rate: a bisection finds the capacity."""
    full = QueueToy().fluid_requests_per_s(candidate())
    allowance = allowance_for(sure, grown_by_waiting() if engine == "toy" else shipped(engine))
    slo = parse_slo("ttft.p95=1s")
    shares = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9)
    seen = [QueueToy().observe(candidate(), Load(full * share, 4000, 0)) for share in shares]
    ratios = [judge([each], [slo], allowance).value_ratio for each in seen]
    assert ratios == sorted(ratios)


@pytest.mark.parametrize("stat", ["mean", "p50", "p95"])
def test_a_queue_makes_the_answer_less_sure(stat: str) -> None:
    """At a higher load the interval is wider, and a limit at the same multiple of the value is less sure."""
    full, error = QueueToy().fluid_requests_per_s(candidate()), grown_by_waiting()
    slo = parse_slo(f"ttft.{stat}=1s")
    around = curve(slo)
    assert list(around.waiting) == sorted(around.waiting)
    assert around.waiting[0] < 0.5 < 0.7 < around.waiting[-1]
    flat = replace(around, values_s=(1.0,) * len(around.values_s), stable=(True,) * len(around.values_s))
    widths, odds = [], []
    for share in (0.2, 0.5, 0.9):
        seen = verdict(share * full, slo)
        limited = replace(slo, limit_s=1.5 * seen.value_s(slo))
        bars = confidence(seen, flat, limited, error)
        widths.append(math.log(bars.high_s / bars.low_s))
        odds.append(bars.probability_met)
    assert widths == sorted(widths)
    assert widths[-1] > 1.2 * widths[0]
    assert odds == sorted(odds, reverse=True)


def test_the_interval_is_that_of_the_share_of_the_statistic_that_waits() -> None:
    """A flat curve and one seed: the ends are the stated factors at the waiting share of the verdict."""
    full, error, slo = QueueToy().fluid_requests_per_s(candidate()), grown_by_waiting(), parse_slo("ttft.mean=1s")
    seen = judge([QueueToy().observe(candidate(), Load(0.5 * full, 4000, 0))], [slo])
    share = seen.waiting_share(slo)
    assert 0.25 < share < 0.42  # M/D/1 at half load waits a third of the time
    flat = LatencyCurve((0.1 * full, 2 * full), (1.0, 1.0), (True, True), (share, share))
    bars = confidence(seen, flat, slo, error)
    expected = error.factors("ttft", np.array([20.5, 180.5]) / 201, share) * seen.value_s(slo)
    assert (bars.low_s, bars.high_s) == pytest.approx(tuple(expected.tolist()), rel=1e-6)


def test_one_verdict_has_the_allowance_of_its_waiting_share() -> None:
    full, error, slo = QueueToy().fluid_requests_per_s(candidate()), grown_by_waiting(), parse_slo("ttft.mean=1s")
    seen = QueueToy().observe(candidate(), Load(0.8 * full, 4000, 0))
    plain, sure = judge([seen], [slo]), judge([seen], [slo], allowance_for(0.9, error))
    factor = float(error.factors("ttft", np.array([0.9]), plain.waiting_share(slo))[0])
    assert 0.6 < plain.waiting_share(slo) < 0.75  # M/D/1 at 80 % load waits two thirds of the time
    assert sure.value_ratio == pytest.approx(factor * plain.value_ratio)
    unknown = judge([replace(seen, queue_s=None)], [slo], allowance_for(0.9, error))
    assert unknown.value_ratio > sure.value_ratio
