"""Least-squares fits of physical terms to times, with non-negative weights and relative errors."""

from __future__ import annotations

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

    by = values if sizes is None else sizes
    relative = terms / by[:, None]
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-30)
    found: FloatArray = nnls(relative / scale, values / by)[0] / scale
    return found
