"""The capacity from a line: exact without noise, and hardly moved by the jumps of a percentile that rises slowly."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from planner.evaluation.capacity import find_capacity
from planner.studies.fitted_capacity import RateRatio, fitted_capacity

TOLERANCE = 0.03


@dataclass(frozen=True)
class Run:
    requests_per_s: float
    ratio: float

    @property
    def met(self) -> bool:
        return self.ratio <= 1


def power_law(
    capacity: float, slope: float, jumps: float = 0.0, seed: int = 0, overload: float = math.inf
) -> Callable[[float], RateRatio]:
    """A value that rises with a power of the rate, with jumps of its logarithm that depend on the rate alone."""

    def probe(rate: float) -> Run:
        if rate >= overload:
            return Run(rate, math.inf)
        jump = random.Random(f"{seed} {rate!r}").gauss(0.0, jumps)
        return Run(rate, (rate / capacity) ** slope * math.exp(jump))

    return probe


FLOOR = Run(0.01, 0.2)


@pytest.mark.parametrize("slope", [0.2, 0.45, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("guess", [0.4, 0.98, 1.0, 2.5])
def test_without_noise_the_capacity_is_where_the_value_reaches_its_limit(slope: float, guess: float) -> None:
    found = fitted_capacity(power_law(1.3, slope), 1.3 * guess, FLOOR, TOLERANCE)
    assert found.requests_per_s == pytest.approx(1.3, rel=1e-6)
    assert found.slope == pytest.approx(slope, rel=1e-6)
    near = math.sqrt(found.low_per_s * found.high_per_s)
    assert found.ratio_at(near) == pytest.approx((near / 1.3) ** slope, rel=1e-6)
    assert found.ratio_at(100.0) is None


def test_where_the_value_rises_slowly_the_line_is_several_times_as_certain_as_a_bisection() -> None:
    """The values are those of p99 of 2,000 requests of Llama-3.1-405B near its capacity: slope 0.45, jumps of 2 %."""
    probes = [power_law(1.3, 0.45, 0.02, seed) for seed in range(200)]
    fitted = [math.log(fitted_capacity(p, 1.3, FLOOR, TOLERANCE).requests_per_s / 1.3) for p in probes]
    bisected = [math.log(find_capacity(p, 1.3, FLOOR, TOLERANCE).requests_per_s / 1.3) for p in probes]
    spread = [math.sqrt(sum(x * x for x in errors) / len(errors)) for errors in (fitted, bisected)]
    assert spread[0] < 0.03
    assert spread[1] > 1.5 * spread[0]
    assert abs(sum(fitted) / len(fitted)) < 0.01


def test_the_capacity_is_below_the_lowest_unstable_rate() -> None:
    """The value alone would allow 1.3, but the queue grows from 1.0 on."""
    for guess in (0.5, 0.95, 1.2, 2.0):
        found = fitted_capacity(power_law(1.3, 0.45, overload=1.0), guess, FLOOR, TOLERANCE)
        assert found.requests_per_s == pytest.approx(1.0, rel=TOLERANCE)
        assert found.requests_per_s < 1.0
        assert found.ratio_at(found.requests_per_s) is None


def test_an_unstable_rate_just_above_the_crossing_does_not_bend_the_line() -> None:
    found = fitted_capacity(power_law(1.0, 0.45, overload=1.2), 1.0, FLOOR, TOLERANCE)
    assert found.requests_per_s == pytest.approx(1.0, rel=0.01)


def test_no_rate_is_simulated_twice() -> None:
    seen: list[float] = []
    probe = power_law(1.3, 0.45, 0.02)

    def noted(rate: float) -> RateRatio:
        seen.append(rate)
        return probe(rate)

    fitted_capacity(noted, 1.0, FLOOR, TOLERANCE)
    assert len(seen) == len(set(seen)) <= 9


def test_a_value_that_does_not_rise_has_a_capacity_between_the_two_rates() -> None:
    """The value is lower around the capacity than below it: the capacity lies between a met and a missed rate."""

    def probe(rate: float) -> RateRatio:
        return Run(rate, 0.99 if 0.9 < rate < 1.1 else 1.2 if rate < 0.9 else 1.01)

    found = fitted_capacity(probe, 1.0, FLOOR, TOLERANCE)
    assert 1.0 <= found.requests_per_s <= 1.4
