"""Values at scattered points: measured ones are reproduced, others lie between them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.families.scattered import FAR, ScatteredValues
from calibration.operators.cost import INTERPOLATED, MEASURED, ROOFLINE

POINTS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=30, unique=True)


@settings(max_examples=60, deadline=None)
@given(POINTS, st.tuples(st.floats(-5, 25), st.floats(-5, 25)))
def test_points_are_reproduced_and_all_else_lies_between_the_extremes(
    points: list[tuple[int, int]], other: tuple[float, float]
) -> None:
    at = np.array(points, dtype=float)
    values = np.sin(at[:, 0]) + at[:, 1] / 10
    table = ScatteredValues.of(at, values)
    again, origin = table.at(at)
    assert np.allclose(again, values, atol=1e-9)
    assert (origin == MEASURED).all()
    between, _ = table.at(np.array([other]))
    assert values.min() - 1e-9 <= between[0] <= values.max() + 1e-9


def test_half_way_between_two_points_is_their_mean_and_far_away_is_said() -> None:
    table = ScatteredValues.of(np.array([[0.0], [1.0]]), np.array([1.0, 3.0]))
    values, origin = table.at(np.array([[0.5], [1.0 + 2 * FAR]]))
    assert values[0] == 2.0
    assert origin.tolist() == [INTERPOLATED, ROOFLINE]


def test_equal_points_are_averaged_and_parts_are_read_back() -> None:
    table = ScatteredValues.of(np.array([[2.0, 1.0], [2.0, 1.0], [0.0, 0.0]]), np.array([1.0, 2.0, 5.0]))
    again = ScatteredValues.from_arrays("t", table.to_arrays("t"))
    assert again.at(np.array([[2.0, 1.0]]))[0][0] == 1.5
    assert len(again.points) == 2
