"""Least-squares fits of physical terms to times, with non-negative weights and relative errors."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray


def nonnegative(terms: npt.NDArray[Any], values: npt.NDArray[Any], sizes: npt.NDArray[Any] | None = None) -> FloatArray:
    """Return the weights, shape (k,), of the columns of `terms`, shape (n, k), that best give `values`, shape (n,).

    The sum of squares of error / size is least. `sizes`, shape (n,) and positive, default to the values themselves,
    which makes errors relative. Columns are scaled before the fit, since seconds per FLOP and per call differ by ten
    powers of ten (scipy.optimize.nnls).
    """
    from scipy.optimize import nnls

    relative, scale, wanted = _scaled(terms, values, sizes)
    found: FloatArray = nnls(relative, wanted)[0] / scale
    return found


def nonnegative_of_few(terms: npt.NDArray[Any], values: npt.NDArray[Any]) -> FloatArray:
    """Return the weights of `nonnegative` for a few columns, without SciPy, which the base installation lacks.

    Shapes: terms (n, k), values (n,), weights (k,). The best weights are those of plain least squares on the columns
    whose weights are not zero, so every set of columns is tried, the smaller ones first.
    """
    relative, scale, wanted = _scaled(terms, values, None)
    n = relative.shape[1]
    best, least = np.zeros(n), float(wanted @ wanted)
    for columns in (list(c) for size in range(1, n + 1) for c in combinations(range(n), size)):
        weights = np.linalg.lstsq(relative[:, columns], wanted, rcond=None)[0]
        error = wanted - relative[:, columns] @ weights
        if weights.min() >= 0.0 and float(error @ error) < least * (1 - 1e-12):
            best, least = np.zeros(n), float(error @ error)
            best[columns] = weights
    found: FloatArray = best / scale
    return found


def _scaled(
    terms: npt.NDArray[Any], values: npt.NDArray[Any], sizes: npt.NDArray[Any] | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the columns over the sizes and over their largest value, these largest values, and values over sizes.

    Shapes: terms (n, k), values and sizes (n,); the results (n, k), (k,) and (n,).
    """
    by = values if sizes is None else sizes
    relative = terms / by[:, None]
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-30)
    return relative / scale, scale, values / by
