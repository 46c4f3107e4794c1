"""Seconds on a regular grid of heads, sequences and length, with holes where a run did not fit memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from calibration.cost import INTERPOLATED, MEASURED, ROOFLINE, Array


@dataclass(frozen=True, slots=True)
class Grid:
    """Axes ascending; seconds (heads, sequences, length) with NaN where not measured."""

    heads: Array
    sequences: Array
    length: Array
    seconds: npt.NDArray[np.float64]
    _filled: npt.NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_filled", np.stack([_fill(plane, self.length) for plane in self.seconds]))

    def at(self, heads: float, sequences: Array, length: Array) -> tuple[Array, Array]:
        """(seconds, origin). Beyond an axis: heads and sequences in proportion above, flat below; length along its last
        slope."""
        h, h_share, h_out = _bracket(np.log(self.heads), np.log(np.asarray(heads)))
        s, s_share, s_out = _bracket(np.log(self.sequences), np.log(np.maximum(sequences, 1.0)))
        total = np.zeros_like(length)
        for dh, wh in ((0, 1.0 - h_share), (1, h_share)):
            for ds, ws in ((0, 1.0 - s_share), (1, s_share)):
                total = total + wh * ws * np.log(self._along_length(h + dh, s + ds, length))
        hole = self._touches_hole(h, s, length)
        node = (h_share % 1 == 0) & (s_share % 1 == 0) & np.isin(length, self.length)
        origin = np.where(h_out | s_out | hole, ROOFLINE, np.where(node, MEASURED, INTERPOLATED))
        return np.exp(total), origin

    def _along_length(self, h: Array, s: Array, length: Array) -> Array:
        i = np.clip(np.searchsorted(self.length, length, side="right") - 1, 0, len(self.length) - 2)
        low, high = self._filled[h, s, i], self._filled[h, s, i + 1]
        share = np.maximum((length - self.length[i]) / (self.length[i + 1] - self.length[i]), 0.0)
        return np.asarray(low + share * (high - low), dtype=np.float64)

    def _touches_hole(self, h: Array, s: Array, length: Array) -> npt.NDArray[np.bool_]:
        """Whether the nodes around are not all measured, or the length is beyond the axis."""
        i = np.clip(np.searchsorted(self.length, length, side="left"), 0, len(self.length) - 1)
        missing = np.isnan(self.seconds[h, s, i]) | np.isnan(
            self.seconds[h, np.minimum(s + 1, len(self.sequences) - 1), i]
        )
        return np.asarray(missing | (length > self.length[-1]), dtype=np.bool_)

    def pair_s(self, heads: float) -> float:
        """Marginal seconds per query-key pair of the longest prompts of one sequence: the part quadratic in length."""
        slopes = []
        for plane in self.seconds:
            known = np.flatnonzero(~np.isnan(plane[0]))[-2:]
            (l1, l2), (t1, t2) = self.length[known], plane[0][known]
            slopes.append(max((t2 - t1 * l2 / l1) / (l2 * l2 / 2 - l1 * l2 / 2), 1e-16))
        return float(np.exp(np.interp(np.log(heads), np.log(self.heads), np.log(slopes))))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        axes = {"heads": self.heads, "sequences": self.sequences, "length": self.length}
        return {**axes, "seconds": self.seconds.astype(np.float32)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Grid:
        return cls(*(np.asarray(arrays[n], dtype=np.float64) for n in ("heads", "sequences", "length", "seconds")))

    @classmethod
    def fit(cls, heads: Array, sequences: Array, length: Array, seconds: Array) -> Grid:
        """The grid spanned by the points' distinct values; repeated points take their median."""
        axes = [np.unique(a) for a in (heads, sequences, length)]
        cells = np.ravel_multi_index(
            tuple(np.searchsorted(a, v) for a, v in zip(axes, (heads, sequences, length), strict=True)),
            tuple(len(a) for a in axes),
        )
        flat = np.full(int(np.prod([len(a) for a in axes])), np.nan)
        for cell in np.unique(cells):
            flat[cell] = np.median(seconds[cells == cell])
        return cls(axes[0], axes[1], axes[2], flat.reshape([len(a) for a in axes]))


def _bracket(axis: Array, x: Array) -> tuple[Any, Array, Any]:
    """(lower node, share of the way to the next, outside?); outside above the share exceeds 1 with the slope of a
    proportion, below it is 0."""
    i = np.clip(np.searchsorted(axis, x, side="right") - 1, 0, len(axis) - 2)
    share = np.maximum((x - axis[i]) / (axis[i + 1] - axis[i]), 0.0)
    return i, share, (x > axis[-1] + 1e-9) | (x < axis[0] - 1e-9)


def _fill(plane: npt.NDArray[np.float64], length: Array) -> npt.NDArray[np.float64]:
    """Holes of one (sequences, length) plane: growth along length of the next smaller batch, else proportional."""
    out = plane.copy()
    for s in range(out.shape[0]):
        for i in range(out.shape[1]):
            if np.isnan(out[s, i]):
                out[s, i] = _guess(out, s, i, length)
    return out


def _guess(plane: npt.NDArray[np.float64], s: int, i: int, length: Array) -> float:
    if s > 0 and i > 0:
        return float(plane[s, i - 1] * max(plane[s - 1, i] / plane[s - 1, i - 1], 1.0))
    if i > 0:
        return float(plane[s, i - 1] * length[i] / length[i - 1])
    later = plane[s][~np.isnan(plane[s])]
    return float(later[0]) if len(later) else float(2.0 * plane[s - 1, i])
