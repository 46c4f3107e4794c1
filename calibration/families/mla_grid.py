"""Seconds on a regular grid of heads, sequences and length, with holes where a run did not fit in memory.

It differs from `InterpolationGrid`, which clamps: past its ends time grows with the last slope, and a hole in one row
is filled from the next smaller batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from calibration.families.curve import isotonic
from calibration.operators.cost import INTERPOLATED, MEASURED, ROOFLINE
from catalogs.arrays import FloatArray, bracket


@dataclass(frozen=True, slots=True)
class MlaGrid:
    """A grid of seconds, shape (heads, sequences, length), NaN where not measured; axes ascend."""

    heads: FloatArray
    sequences: FloatArray
    length: FloatArray
    seconds: npt.NDArray[np.float64]
    _filled: npt.NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        filled = np.stack([_fill(plane, self.sequences, self.length) for plane in self.seconds])
        object.__setattr__(self, "_filled", filled)

    def at(self, heads: float, sequences: FloatArray, length: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) in the shape of `length`.

        Interpolation is linear along every axis, because work is affine in each of them (log-log interpolation was 3 to
        8 % too high between powers of two). Above an axis the last slope continues; below it time is flat.
        """
        h, h_share, h_out = _bracket(self.heads, np.asarray(heads))
        s, s_share, s_out = _bracket(self.sequences, np.maximum(sequences, 1.0))
        total = np.zeros_like(length)
        for dh, wh in ((0, 1.0 - h_share), (1, h_share)):
            for ds, ws in ((0, 1.0 - s_share), (1, s_share)):
                total = total + wh * ws * self._along_length(h + dh, s + ds, length)
        up = np.minimum(s + (s_share > 0), len(self.sequences) - 1)
        hole = self._touches_hole(h, s, length) | self._touches_hole(h, up, length)
        node = (h_share % 1 == 0) & (s_share % 1 == 0) & np.isin(length, self.length)
        origin = np.where(h_out | s_out | hole, ROOFLINE, np.where(node, MEASURED, INTERPOLATED))
        return np.maximum(total, 1e-6), origin

    def _along_length(self, h: FloatArray, s: FloatArray, length: FloatArray) -> FloatArray:
        i, share = bracket(self.length, length)
        low, high = self._filled[h, s, i], self._filled[h, s, i + 1]
        share = np.maximum(share, 0.0)
        high = np.where(share > 1.0, np.maximum(high, low), high)  # noise must not extrapolate below zero
        return np.asarray(low + share * (high - low), dtype=np.float64)

    def _touches_hole(self, h: FloatArray, s: FloatArray, length: FloatArray) -> npt.NDArray[np.bool_]:
        """Return whether the node at or above the length was not measured, or the length is beyond the axis."""
        i = np.clip(np.searchsorted(self.length, length, side="left"), 0, len(self.length) - 1)
        return np.asarray(np.isnan(self.seconds[h, s, i]) | (length > self.length[-1]), dtype=np.bool_)

    def pair_s(self, heads: float) -> float:
        """Return the seconds per query-key pair.

        They are the curvature in length of the smallest batch over its last two doublings.
        """
        if len(self.length) < 3:
            return 0.0
        last = len(self.length) - 1
        half = min(int(np.argmin(np.abs(self.length - self.length[last] / 2))), last - 1)
        quarter = max(min(int(np.argmin(np.abs(self.length - self.length[last] / 4))), half - 1), 0)
        half = max(half, quarter + 1)
        l0, l1, l2 = self.length[[quarter, half, last]]
        t0, t1, t2 = (self._filled[:, 0, i] for i in (quarter, half, last))
        curvature = 2.0 * ((t2 - t1) / (l2 - l1) - (t1 - t0) / (l1 - l0)) / (l2 - l0)
        slopes = np.maximum(curvature / self.sequences[0], 1e-16)
        return float(np.exp(np.interp(np.log(heads), np.log(self.heads), np.log(slopes))))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays to store, the inverse of `from_arrays`."""
        axes = {"heads": self.heads, "sequences": self.sequences, "length": self.length}
        return {**axes, "seconds": self.seconds.astype(np.float32)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], prefix: str = "") -> MlaGrid:
        """Return the grid in stored arrays with names that start with `prefix`."""
        names = ("heads", "sequences", "length", "seconds")
        return cls(*(np.asarray(arrays[prefix + name], dtype=np.float64) for name in names))

    @classmethod
    def fit(cls, heads: FloatArray, sequences: FloatArray, length: FloatArray, seconds: FloatArray) -> MlaGrid:
        """Return the grid spanned by the distinct values of points.

        All arguments have shape (n,), and repeated points take their median. More or longer sequences never take less
        time: rows that fall by noise of a few per cent are pooled along both axes.
        """
        points = (heads, sequences, length)
        axes = [np.unique(a) for a in points]
        grid = np.full([len(a) for a in axes], np.nan)
        cells = np.ravel_multi_index([np.searchsorted(a, v) for a, v in zip(axes, points, strict=True)], grid.shape)
        for cell in np.unique(cells):
            grid.flat[cell] = np.median(seconds[cells == cell])
        return cls(axes[0], axes[1], axes[2], np.exp(_rising(np.log(grid))))


def _rising(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return (heads, sequences, length) values made non-decreasing along the last two axes; NaN stays NaN."""

    def line(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        known, out = ~np.isnan(values), values.copy()
        out[known] = isotonic(values[known])
        return out

    for axis in (1, 2):
        values = np.apply_along_axis(line, axis, values)
    for axis in (1, 2):
        values = np.where(np.isnan(values), np.nan, np.fmax.accumulate(values, axis=axis))
    return values


def _bracket(axis: FloatArray, x: FloatArray) -> tuple[Any, FloatArray, Any]:
    """Return (lower node, share of the way to the next, whether it is outside the axis).

    The share exceeds 1 above the axis and is 0 below it.
    """
    low, share = bracket(axis, x)
    return low, np.maximum(share, 0.0), (x > axis[-1] + 1e-9) | (x < axis[0] - 1e-9)


def _fill(plane: npt.NDArray[np.float64], sequences: FloatArray, length: FloatArray) -> npt.NDArray[np.float64]:
    """Return one (sequences, length) plane with its holes filled.

    A row with some nodes grows along length as the nearest smaller batch does, else in proportion to length; before its
    first node it is flat. A row without nodes is interpolated linearly between its neighbours.
    """
    out = plane.copy()
    known = [int(s) for s in np.flatnonzero(~np.isnan(plane).all(axis=1))]
    for n, s in enumerate(known):
        smaller = out[known[n - 1]] if n else length
        first = int(np.flatnonzero(~np.isnan(out[s]))[0])
        out[s, :first] = out[s, first]
        for i in range(first + 1, len(length)):
            if np.isnan(out[s, i]):
                out[s, i] = out[s, i - 1] * max(smaller[i] / smaller[i - 1], 1.0)
    for i in range(len(length)):
        out[:, i] = np.interp(sequences, sequences[known], out[known, i])
    return out
