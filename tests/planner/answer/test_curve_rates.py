"""The rates of a latency curve: where they lie, and how many of them neighbouring curves share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.answer.curve_rates import GRID_STEP, higher_rates, lower_rates

rates = st.floats(1e-4, 1e5)
factors = st.floats(1.0, 3.0)


@given(rates, factors, factors)
def test_the_higher_rates_reach_beyond_the_slowest_steps_and_just_beyond_those_that_decide(
    rate: float, one: float, other: float
) -> None:
    speed, slowest = sorted((one, other))
    found = higher_rates(rate, speed, slowest)
    assert list(found) == sorted(set(found))
    assert found[0] > 1.01 * rate
    assert found[0] <= 1.0201 * GRID_STEP * rate
    assert found[-1] >= 0.999 * rate * slowest
    assert found[-1] <= 1.0201 * GRID_STEP * rate * slowest
    if slowest > 1:
        assert any(rate * speed < each <= 1.0201 * rate * speed for each in found)


@given(rates)
def test_one_lower_rate_is_close_and_two_are_far_below(rate: float) -> None:
    far, middle, near = lower_rates(rate)
    assert rate / GRID_STEP / 1.0201 <= near < rate
    assert 0.8 * rate / GRID_STEP**2 * 0.999 <= middle <= 0.8001 * rate
    assert 0.45 * rate / GRID_STEP**6 * 0.999 <= far <= 0.4501 * rate


@pytest.mark.parametrize("rate", [0.03, 1.0, 1.7, 1234.5])
def test_the_curve_of_a_lower_rate_needs_few_new_rates(rate: float) -> None:
    """Of five steps of 3 % downwards, each adds its own rate and its deciding one, and all together few of the grid."""
    seen: set[float] = set()
    for i in range(6):
        each = rate / 1.03**i
        seen |= {each, *lower_rates(each), *higher_rates(each, 1.12, 1.25)}
    assert len(seen) <= 7 + 5 * 2 + 6
    apart = {r for i in range(6) for r in (rate / 1.03**i * k for k in (0.3, 0.7, 0.88, 1.0, 1.08, 1.12, 1.25))}
    assert len(apart) > 1.5 * len(seen)  # without a grid
