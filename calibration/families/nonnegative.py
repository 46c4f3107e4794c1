"""Physical terms fitted to times: no weight is negative, and an error counts by what it is a share of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray


def nonnegative(terms: npt.NDArray[Any], values: npt.NDArray[Any], sizes: npt.NDArray[Any] | None = None) -> FloatArray:
    """Weights (k,) of the columns of `terms` (n, k) that give `values` (n,); squares of error / size are least.

    `sizes` (n,), positive, are the values themselves where not given: errors are then relative. Columns are scaled
    before they are fitted, since seconds per FLOP and per call differ by ten powers of ten (scipy.optimize.nnls).
    """
    from scipy.optimize import nnls

    by = values if sizes is None else sizes
    relative = terms / by[:, None]
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-30)
    found: FloatArray = nnls(relative / scale, values / by)[0] / scale
    return found
