"""A table over one, two or three axes, read by multilinear interpolation; past its ends it goes on straight."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class MultilinearTable:
    """values has one dimension per axis and, last, one entry per channel; axes ascend."""

    axes: tuple[FloatArray, ...]
    values: FloatArray

    def at(self, *coordinates: FloatArray) -> FloatArray:
        """Rows x channels at one coordinate array per axis (all of one length)."""
        cells = [_locate(axis, np.asarray(x, dtype=np.float64)) for axis, x in zip(self.axes, coordinates, strict=True)]
        total = np.zeros((len(cells[0][0]), self.values.shape[-1]))
        for corner in product((0, 1), repeat=len(cells)):
            weight = np.ones(len(total))
            for (_, share), side in zip(cells, corner, strict=True):
                weight = weight * (share if side else 1.0 - share)
            where = tuple(
                np.minimum(low + side, len(axis) - 1)
                for (low, _), side, axis in zip(cells, corner, self.axes, strict=True)
            )
            total += weight[:, None] * self.values[where]
        return total

    def row(self, x: float) -> FloatArray:
        """Of a table over two axes, what `at` gives at x and every node of the second axis, in a tenth of the time."""
        axis = self.axes[0]
        (low,), (share,) = _locate(axis, np.array([x]))
        high = min(int(low) + 1, len(axis) - 1)
        return np.ascontiguousarray((1.0 - share) * self.values[low] + share * self.values[high])


def _locate(axis: FloatArray, x: FloatArray) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Lower node and share of the way to the next; a share outside 0..1 extrapolates."""
    if len(axis) == 1:
        return np.zeros(len(x), dtype=np.int64), np.zeros(len(x))
    low = np.clip(np.searchsorted(axis, x, side="right") - 1, 0, len(axis) - 2)
    return low, (x - axis[low]) / (axis[low + 1] - axis[low])


def spaced(low: float, high: float, count: int, keep: tuple[float, ...] = ()) -> FloatArray:
    """Whole numbers from low to high in about equal ratios, every small one among them, and those in `keep`."""
    nodes = np.unique(np.round(np.geomspace(max(low, 1.0), max(high, low, 1.0), count)))
    inside = [k for k in keep if low <= k <= high]
    return np.unique(np.concatenate([nodes, [float(low), float(high)], inside]))
