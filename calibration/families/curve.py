"""A measured curve of seconds against size, interpolated linearly.

Time is a floor plus bytes over a rate, so linear interpolation is exact, whereas log-log interpolation is 2 to 4 % high
between powers of two (held-out all-reduce sizes: 2.1 to 2.6 % median error against 3.2 to 4.2 %).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
        beyond = np.maximum(x - self.size[-1], 0.0) * self._last_slope()
        return np.interp(x, self.size, self.seconds) + beyond, origin_at(self.size, x)

    def _last_slope(self) -> float:
        """Return the seconds per unit of size past the last node.

        This is the slope of the last two nodes, limited to between half of and the whole mean rate at the last node.
        """
        mean = float(self.seconds[-1] / self.size[-1])
        if len(self.size) < 2:
            return mean
        rise = float((self.seconds[-1] - self.seconds[-2]) / (self.size[-1] - self.size[-2]))
        return min(max(rise, 0.5 * mean), mean)


def origin_at(nodes: FloatArray, size: FloatArray) -> FloatArray:
    """Return the origin of values that a curve gives at `size`, in its shape: at a node, between nodes, or beyond."""
    right = np.clip(np.searchsorted(nodes, size), 0, len(nodes) - 1)
    near = np.minimum(np.abs(nodes[right] / size - 1), np.abs(nodes[np.maximum(right - 1, 0)] / size - 1))
    inside = np.where(near < NODE_TOLERANCE, MEASURED, INTERPOLATED)
    return np.where(size > nodes[-1] * (1 + NODE_TOLERANCE), ROOFLINE, inside)


def pack(family: str, curves: list[MonotoneCurve]) -> dict[str, npt.NDArray[np.float64]]:
    """Return three arrays that hold the curves of a family: node counts, then all sizes and all seconds end to end."""
    return {
        f"{family}_nodes": np.array([len(c.size) for c in curves], dtype=np.float64),
        f"{family}_size": np.concatenate([c.size for c in curves]),
        f"{family}_seconds": np.concatenate([c.seconds for c in curves]),
    }


def unpack(family: str, arrays: Mapping[str, npt.NDArray[Any]]) -> list[MonotoneCurve]:
    """Return the curves of a family in the arrays of `pack`."""
    nodes, size, seconds = (np.asarray(arrays[f"{family}_{n}"], np.float64) for n in ("nodes", "size", "seconds"))
    ends = np.cumsum(nodes).astype(int)
    return [MonotoneCurve(size[b - int(n) : b], seconds[b - int(n) : b]) for n, b in zip(nodes, ends, strict=True)]
