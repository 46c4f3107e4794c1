"""The noise of a capacity: that of the objective's value between seeds, over the slope of its latency curve."""

from __future__ import annotations

import math

import numpy as np
import pytest

from catalogs.statistics import student_t_quantile
from planner.answer.capacity_noise import LEAST_NOTICED, RANGE_LEVEL, capacity_noise, capacity_notices
from planner.evaluation.observation import Load, Observation
from planner.evaluation.verdict import Verdict, judge
from planner.problem.slo import Slo

SLO = Slo("ttft", "mean", 2.0)

CAPACITY_PER_S = 10.0


def verdict(rate_per_s: float, slope: float, seeds: tuple[float, ...]) -> Verdict:
    """The mean is the limit at the capacity, rises with a power of the rate, and has a factor for each seed."""
    values_s = [SLO.limit_s * (rate_per_s / CAPACITY_PER_S) ** slope * seed for seed in seeds]
    loads = [Load(rate_per_s, 4, number) for number in range(len(seeds))]
    runs = [Observation(load, {"ttft": np.full(4, v)}, 4, 0.0) for load, v in zip(loads, values_s, strict=True)]
    return judge(runs, [SLO])


def noise_of(slope: float, seeds: tuple[float, ...]) -> float:
    around = [verdict(CAPACITY_PER_S * k, slope, (1.0, 1.0)) for k in (0.3, 0.7, 0.88, 1.0, 1.08)]
    return capacity_noise(SLO, verdict(CAPACITY_PER_S, slope, seeds), around)


@pytest.mark.parametrize("slope", [0.4, 1.0, 5.0])
def test_the_noise_of_the_value_over_the_slope(slope: float) -> None:
    """Two seeds at factors e^-0.05 and e^0.05: a standard error of 0.05, with one degree of freedom."""
    found = noise_of(slope, (math.exp(-0.05), math.exp(0.05)))
    assert found == pytest.approx(student_t_quantile(1, (1 + RANGE_LEVEL) / 2) * 0.05 / slope)


def test_equal_seeds_and_one_seed_have_no_noise() -> None:
    assert noise_of(0.4, (1.0, 1.0, 1.0)) == 0.0
    assert noise_of(0.4, (1.1,)) == 0.0


def test_a_value_that_does_not_rise_tells_nothing_about_the_capacity() -> None:
    assert noise_of(0.0, (0.99, 1.01)) == math.inf


def test_the_notice_names_the_objective_where_the_capacity_is_uncertain() -> None:
    seeds = (0.9, 0.97, 1.03, 1.1)
    for slope in (0.3, 3.0):
        around = [verdict(CAPACITY_PER_S * k, slope, (1.0, 1.0)) for k in (0.7, 1.08)]
        found = capacity_notices(SLO, verdict(CAPACITY_PER_S, slope, seeds), around)
        assert bool(found) == (noise_of(slope, seeds) > LEAST_NOTICED) == (slope < 1)
        assert all(notice.startswith("ttft.mean rises slowly") for notice in found)
