"""Exact polynomials through integer samples on a lattice, by Newton's forward differences.

Point (i, j, ...) of the lattice is i steps above the base in the first size, j in the second. The points needed for a
set of samples are those of a lower set of indices: those that the differences along axes, in pairs, and then in larger
groups of sizes show to matter. The differences at the base are the coefficients of products of binomials, so a
polynomial of the found degree passes exactly through all points; that it is the true one is verified at others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product
from math import comb, prod
from typing import Final

import numpy as np

from catalogs.arrays import BoolArray, IntArray
from catalogs.networks.polynomials import Polynomial

#: A point: steps above the base in each size.
Index = tuple[int, ...]

#: The highest degree in one size that is looked for.
MOST_DEGREE: Final = 3


@dataclass(frozen=True)
class Axis:
    """One size on the lattice: its name, its value at the base, and the step."""

    name: str
    base: int
    step: int

    @cached_property
    def binomials(self) -> tuple[Polynomial, ...]:
        """The binomial coefficients of the steps over 0, 1, ..., as polynomials in the size."""
        steps = (Polynomial.name(self.name) - self.base) * Fraction(1, self.step)
        found = [Polynomial.of(1)]
        for k in range(MOST_DEGREE):
            found.append(found[-1] * (steps - k) * Fraction(1, k + 1))
        return tuple(found)


class DegreeTooHigh(Exception):
    """A value is no polynomial of low degree in a size: the axis, and the position of one such value."""

    def __init__(self, axis: Axis, position: int) -> None:
        super().__init__(axis.name)
        self.axis = axis
        self.position = position


def points_needed(axes: Sequence[Axis], sample: Callable[[Index], IntArray]) -> list[Index]:
    """Return the lower set of points that determines every value.

    `sample` returns the values at a point, shape (n_values,), the same values in the same order at every point.

    Raises:
        DegreeTooHigh: A value has a higher degree than `MOST_DEGREE` in one size.
    """

    def at(steps: Mapping[int, int]) -> Index:
        return tuple(steps.get(i, 0) for i in range(len(axes)))

    degrees = np.stack([_degrees(i, axes, sample, at) for i in range(len(axes))])
    chosen = [at({}), *(at({i: k}) for i, row in enumerate(degrees) for k in range(1, row.max(initial=0) + 1))]
    joined: dict[Index, BoolArray] = {(i,): degrees[i] > 0 for i in range(len(axes))}
    for size in range(2, len(axes) + 1):
        for group in combinations(range(len(axes)), size):
            candidates = np.logical_and.reduce([joined[part] for part in combinations(group, size - 1)])
            joined[group] = candidates
            if not candidates.any():
                continue
            difference = np.zeros(degrees.shape[1], dtype=np.int64)
            for steps in product((0, 1), repeat=size):
                difference += (-1) ** (size - sum(steps)) * sample(at(dict(zip(group, steps, strict=True))))
            mixed = candidates & (difference != 0)
            joined[group] = mixed
            limits = {tuple(map(int, row)) for row in np.unique(degrees[list(group)][:, mixed], axis=1).T}
            wanted = {steps for limit in limits for steps in product(*(range(1, k + 1) for k in limit))}
            chosen += [at(dict(zip(group, steps, strict=True))) for steps in sorted(wanted)]
    return chosen


def _degrees(
    i: int, axes: Sequence[Axis], sample: Callable[[Index], IntArray], at: Callable[[Mapping[int, int]], Index]
) -> IntArray:
    """Return the degree of every value in the size of one axis: differences of one order more are zero."""
    rows = [sample(at({i: k})) for k in range(3)]
    while True:
        degrees = _degree(np.stack(rows))
        unknown = degrees < 0
        if not unknown.any():
            return degrees
        if len(rows) > MOST_DEGREE + 1:
            raise DegreeTooHigh(axes[i], int(np.argmax(unknown)))
        rows.append(sample(at({i: len(rows)})))


def _degree(rows: IntArray) -> IntArray:
    """Return the lowest degree of which a further difference is zero, shape (n,), -1 where all differ; rows (k, n)."""
    degrees = np.full(rows.shape[1], -1, dtype=np.int64)
    differences = np.diff(rows, axis=0)
    for degree in range(len(rows) - 1):
        settled = (degrees < 0) & ~differences.any(axis=0)
        degrees[settled] = degree
        differences = np.diff(differences, axis=0)
    return degrees


class Fit:
    """Polynomials through the values at a lower set of points."""

    def __init__(self, axes: Sequence[Axis], points: Iterable[Index]) -> None:
        self.axes = tuple(axes)
        self.points = tuple(dict.fromkeys(points))
        self._known: dict[tuple[int, ...], Polynomial] = {}
        self._products = [
            prod((axis.binomials[k] for axis, k in zip(self.axes, point, strict=True)), start=Polynomial.of(1))
            for point in self.points
        ]
        place = {point: i for i, point in enumerate(self.points)}
        self._weights: list[list[tuple[int, int]]] = []
        for point in self.points:
            weights = []
            for lower in product(*(range(k + 1) for k in point)):
                sign = (-1) ** (sum(point) - sum(lower))
                weights.append((place[lower], sign * prod(map(comb, point, lower))))
            self._weights.append(weights)

    def polynomial(self, values: Sequence[int]) -> Polynomial:
        """Return the polynomial with these values at the points, in their order."""
        key = tuple(values)
        if key not in self._known:
            differences = [sum(weight * key[i] for i, weight in weights) for weights in self._weights]
            terms = (
                (monomial, coefficient * difference)
                for difference, basis in zip(differences, self._products, strict=True)
                if difference
                for monomial, coefficient in basis.terms
            )
            self._known[key] = Polynomial.from_terms(terms)
        return self._known[key]
