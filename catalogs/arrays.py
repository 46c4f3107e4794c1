"""Array types that all packages share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


FloatArray = npt.NDArray[np.float64]


BoolArray = npt.NDArray[np.bool_]


def bracket(axis: FloatArray, x: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the node below each coordinate and the share of the way from it to the next node.

    `axis` has shape (n,) and ascends; `x` and both results have one shape. A share below 0 or above 1 extrapolates the
    first or last interval. An axis with one node gives node 0 and share 0.
    """
    if len(axis) == 1:
        return np.zeros(np.shape(x), dtype=np.int64), np.zeros(np.shape(x))
    below = np.searchsorted(axis, x, side="right") - 1
    low = np.minimum(np.maximum(below, 0), len(axis) - 2)  # np.clip takes three times as long for a few numbers
    return low, (x - axis[low]) / (axis[low + 1] - axis[low])
