"""The interpolation grid: exact at nodes, linear between, clamped outside, honest about what was measured."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.families.grid import InterpolationGrid
from calibration.operators.cost import INTERPOLATED, MEASURED, ROOFLINE

AXES = [np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0])]


def plane(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return 1.0 + 2.0 * x - 3.0 * y


def _points() -> tuple[np.ndarray, np.ndarray]:
    x, y = (a.ravel() for a in np.meshgrid(*AXES, indexing="ij"))
    return np.stack([x, y], axis=1), plane(x, y)


def test_a_plane_is_reproduced_and_origins_say_where() -> None:
    grid = InterpolationGrid.from_points(AXES, *_points())
    value, origin = grid.at([np.array([1.0, 2.0, 9.0]), np.array([2.0, 1.0, 2.0])])
    assert value == pytest.approx([plane(1, 2), plane(2, 1), plane(3, 2)])
    assert origin.tolist() == [MEASURED, INTERPOLATED, ROOFLINE]


def test_holes_are_interpolated_and_not_called_measured() -> None:
    points, values = _points()
    hole = 2  # (1, 0): bracketed along x
    grid = InterpolationGrid.from_points(AXES, np.delete(points, hole, 0), np.delete(values, hole))
    value, origin = grid.at([np.array([1.0]), np.array([0.0])])
    assert value == pytest.approx(plane(1, 0))
    assert origin[0] == ROOFLINE
    assert grid.at([np.array([1.0]), np.array([2.0])])[1][0] == MEASURED


def test_corners_nobody_bracketed_take_the_nearest_value() -> None:
    grid = InterpolationGrid.from_points(AXES, np.array([[0.0, 0.0]]), np.array([5.0]))
    assert (grid.values == 5.0).all()
    assert grid.measured.sum() == 1


def test_several_points_of_a_node_are_averaged() -> None:
    grid = InterpolationGrid.from_points(
        [np.array([0.0, 1.0])], np.array([[0.0], [0.1], [1.0]]), np.array([1.0, 3.0, 7.0])
    )
    assert grid.values.tolist() == [2.0, 7.0]


def test_stored_and_read_back() -> None:
    grid = InterpolationGrid.from_points(AXES, *_points())
    again = InterpolationGrid.from_arrays("g", grid.to_arrays("g"))
    assert np.allclose(again.values, grid.values, rtol=1e-3)
    assert (again.measured == grid.measured).all()
    assert all(np.allclose(a, b) for a, b in zip(again.axes, grid.axes, strict=True))


def test_scalar_coordinates_give_scalars() -> None:
    value, origin = InterpolationGrid.from_points(AXES, *_points()).at([np.float64(0.5), np.float64(1.0)])
    assert np.shape(value) == np.shape(origin) == ()
    assert float(value) == pytest.approx(plane(0.5, 1.0))
