"""Multilinear tables: exact at their nodes, linear between and beyond them, and the same for few rows and many."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from catalogs.arrays import bracket
from simulator.costs.interpolation import BLOCK_ROWS, MultilinearTable
from simulator.costs.pricing import N_CHANNELS, N_CLASSES
from simulator.costs.terms import DecodeTables

AXES = (np.array([0.0, 1.0, 4.0]), np.array([2.0, 3.0]), np.array([1.0, 5.0, 6.0, 9.0]))


def table(n_axes: int, seed: int = 0) -> MultilinearTable:
    """A table of random values in five channels."""
    axes = AXES[:n_axes]
    return MultilinearTable.of(axes, np.random.default_rng(seed).random((*map(len, axes), 5)))


def anywhere(n_axes: int, n: int) -> list[np.ndarray]:
    """Points inside and outside the axes."""
    rng = np.random.default_rng(1)
    return [rng.uniform(axis[0] - 1.0, axis[-1] + 1.0, n) for axis in AXES[:n_axes]]


@pytest.mark.parametrize("n_axes", [1, 2, 3])
def test_the_nodes_have_their_values(n_axes: int) -> None:
    some = table(n_axes)
    nodes = [grid.ravel() for grid in np.meshgrid(*some.axes, indexing="ij")]
    np.testing.assert_array_equal(some.at(*nodes), some.at_nodes().reshape(-1, 5))


@pytest.mark.parametrize("n_axes", [1, 2, 3])
def test_the_values_are_those_of_scipy(n_axes: int) -> None:
    some, points = table(n_axes), anywhere(n_axes, 500)
    other = RegularGridInterpolator(some.axes, some.at_nodes(), bounds_error=False, fill_value=None)
    np.testing.assert_allclose(some.at(*points), other(np.column_stack(points)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n_axes", [1, 2, 3])
def test_a_row_does_not_depend_on_the_others(n_axes: int) -> None:
    some, points = table(n_axes), anywhere(n_axes, 2 * BLOCK_ROWS + 3)
    together = some.at(*points)
    for row in (0, BLOCK_ROWS - 1, BLOCK_ROWS, 2 * BLOCK_ROWS + 2):
        np.testing.assert_array_equal(some.at(*(x[row : row + 1] for x in points))[0], together[row])
    assert some.at(*(x[:0] for x in points)).shape == (0, 5)


def test_an_axis_with_one_node_does_not_matter() -> None:
    values = np.arange(6.0).reshape(3, 1, 2)
    some = MultilinearTable.of((AXES[0], np.array([7.0])), values)
    np.testing.assert_array_equal(some.at(np.array([1.0, 2.5]), np.array([0.0, 99.0])), [[2.0, 3.0], [3.0, 4.0]])


def dense(axes: tuple[np.ndarray, ...], values: np.ndarray, points: list[np.ndarray]) -> np.ndarray:
    """The sum over the corners of each point's cell, in every channel."""
    cells = [bracket(axis, x) for axis, x in zip(axes, points, strict=True)]
    total = np.zeros((len(points[0]), values.shape[-1]))
    for corner in product((0, 1), repeat=len(axes)):
        weight = np.ones(len(total))
        for side, (_, share) in zip(corner, cells, strict=True):
            weight = weight * (share if side else 1.0 - share)
        total += values[tuple(low + side for side, (low, _) in zip(corner, cells, strict=True))] * weight[:, None]
    return total


@pytest.mark.parametrize("n_axes", [1, 2, 3])
@pytest.mark.parametrize("absent", [(), (0, 3), (1, 2, 4), range(5)])
@pytest.mark.parametrize("repeated", [False, True])
def test_channels_without_a_column_are_read_as_if_they_had_one(
    n_axes: int, absent: Sequence[int], repeated: bool
) -> None:
    axes, points = AXES[:n_axes], anywhere(n_axes, BLOCK_ROWS + 7)
    values = np.random.default_rng(2).normal(size=(*map(len, axes), 5))
    if repeated:
        values[..., 4] = values[..., 3] = values[..., 0]
    values[..., list(absent)] = 0.0
    some = MultilinearTable.of(axes, values)
    np.testing.assert_array_equal(some.at(*points), dense(axes, values, points))
    np.testing.assert_array_equal(some.at_nodes(), values)
    np.testing.assert_array_equal(some.at_nodes(1), values[1])
    np.testing.assert_array_equal(some.at_nodes(slice(1, 3)), values[1:3])
    np.testing.assert_array_equal(some.at_nodes(1)[..., :3].sum(axis=-1), values[..., :3].sum(axis=-1)[1])
    assert some.is_zero == (not values.any())


def test_only_distinct_channels_are_kept() -> None:
    values = np.zeros((3, 2, 4, 5))
    values[..., 1], values[1, 1, 1, 3], values[..., 4] = 2.0, -1.0, 2.0
    some = MultilinearTable.of(AXES, values)
    assert some.columns.shape == (2, 3, 2, 4)
    assert some.columns.base is None or some.columns.base.nbytes == some.columns.nbytes
    assert MultilinearTable.of(AXES, np.zeros_like(values)).columns.nbytes == 0


def test_the_seconds_of_decode_attention_are_those_of_its_tables() -> None:
    rng = np.random.default_rng(0)
    contexts = AXES[2]
    for decodes in (AXES[0], AXES[0][1:2]):
        even, skew = (MultilinearTable.of((decodes, contexts), rng.random((len(decodes), 4, N_CHANNELS))) for _ in "es")
        tables = DecodeTables(even, skew)
        for n, first in ((0, 0), (1, 1), (3, 2), (9, 2)):
            points = np.full(2, float(n)), contexts[first : first + 2]
            for own_s, each in zip(tables.seconds(n, first), (even, skew), strict=True):
                expected = each.at(*points)[:, :N_CLASSES].sum(axis=1)
                np.testing.assert_allclose(own_s, expected, rtol=1e-14, atol=1e-14)
