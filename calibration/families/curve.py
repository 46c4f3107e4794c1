"""A measured curve of seconds against size, interpolated linearly.

Time is a floor plus bytes over a rate, so linear interpolation is exact, whereas log-log interpolation is 2 to 4 % high
between powers of two (held-out all-reduce sizes: 2.1 to 2.6 % median error against 3.2 to 4.2 %).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibration.operators.cost import INTERPOLATED, MEASURED, ROOFLINE
from catalogs.arrays import FloatArray

#: A size within this relative distance of a node counts as that node.
NODE_TOLERANCE = 1e-6


def isotonic(values: FloatArray) -> FloatArray:
    """Return the non-decreasing sequence nearest to `values` in least squares.

    `values` and the result have shape (n,). scipy is imported here because only fits need it: a run loads no scipy.
    """
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values).x, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class MonotoneCurve:
    """A non-decreasing curve of seconds at ascending sizes, both of shape (n,).

    It is flat below the first node and continues with the last slope above the last node.
    """

    size: FloatArray
    seconds: FloatArray

    @classmethod
    def fit(cls, size: npt.ArrayLike, seconds: npt.ArrayLike) -> MonotoneCurve:
        """Fit the nodes to points of shape (n,): the median of equal sizes, then isotonic regression against noise."""
        x, y = np.asarray(size, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        nodes = np.unique(x)
        medians = np.array([np.median(y[x == n]) for n in nodes])
        return cls(nodes, np.exp(isotonic(np.log(medians))))

    def at(self, size: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) in the shape of `size`; sizes below 1 count as 1."""
        x = np.maximum(np.asarray(size, dtype=np.float64), 1.0)
        inside = np.interp(x, self.size, self.seconds)
        beyond = np.maximum(x - self.size[-1], 0.0) * self.last_slope()
        return inside + beyond, np.where(x > self.size[-1] * (1 + NODE_TOLERANCE), ROOFLINE, self._at_node(x))

    def last_slope(self) -> float:
        """Return the seconds per unit of size past the last node.

        This is the slope of the last two nodes, limited to between half of and the whole mean rate at the last node.
        """
        mean = float(self.seconds[-1] / self.size[-1])
        if len(self.size) < 2:
            return mean
        rise = float((self.seconds[-1] - self.seconds[-2]) / (self.size[-1] - self.size[-2]))
        return min(max(rise, 0.5 * mean), mean)

    def _at_node(self, x: FloatArray) -> FloatArray:
        right = np.clip(np.searchsorted(self.size, x), 0, len(self.size) - 1)
        left = np.maximum(right - 1, 0)
        near = np.minimum(np.abs(self.size[right] / x - 1), np.abs(self.size[left] / x - 1))
        return np.where(near < NODE_TOLERANCE, MEASURED, INTERPOLATED)


def pack(curves: list[MonotoneCurve]) -> dict[str, npt.NDArray[np.float64]]:
    """Return three arrays that hold the curves: node counts, then all sizes and all seconds end to end."""
    return {
        "nodes": np.array([len(c.size) for c in curves], dtype=np.float64),
        "size": np.concatenate([c.size for c in curves]) if curves else np.zeros(0),
        "seconds": np.concatenate([c.seconds for c in curves]) if curves else np.zeros(0),
    }


def unpack(nodes: npt.NDArray[np.float64], size: FloatArray, seconds: FloatArray) -> list[MonotoneCurve]:
    """Return the curves in the arrays of `pack`."""
    ends = np.cumsum(nodes).astype(int)
    starts = np.concatenate([[0], ends[:-1]])
    return [MonotoneCurve(np.asarray(size[a:b]), np.asarray(seconds[a:b])) for a, b in zip(starts, ends, strict=True)]
