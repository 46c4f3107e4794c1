"""A table over one, two or three axes, read by multilinear interpolation and extrapolated by the slope at its ends.

`scipy.interpolate.RegularGridInterpolator` gives the same values in the same time (39 against 44 us for one point of a
60 x 40 table with 12 channels), but importing it takes 0.33 s, and a run needs no other part of scipy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray, bracket

#: Number of rows that are read at once: what a processor core keeps in its cache.
BLOCK_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class MultilinearTable:
    """A table of channels at the nodes of ascending axes.

    Most channels of a table are 0 at all nodes, and others are equal: only the distinct ones are stored.

    Attributes:
        axes: The nodes of each axis. Shape (nodes,) each.
        columns: The distinct channels that are not 0 everywhere. Shape (columns, nodes, ...).
        sources: Each channel that is not 0 everywhere, with its column: (channel, column).
        n_channels: The number of all channels.
    """

    axes: tuple[FloatArray, ...]
    columns: FloatArray
    sources: tuple[tuple[int, int], ...]
    n_channels: int

    @classmethod
    def of(cls, axes: tuple[FloatArray, ...], values: FloatArray) -> MultilinearTable:
        """Return the table with these values at its nodes. Shape of `values`: (nodes, ..., channels)."""
        *sizes, n_channels = values.shape
        each = np.ascontiguousarray(values.reshape(math.prod(sizes), n_channels).T)
        bits = each.view(np.int64)  # equal columns are equal bit for bit
        kept: list[int] = []
        sources = []
        for channel in range(n_channels):
            if each[channel].any():
                column = next((i for i, k in enumerate(kept) if np.array_equal(bits[k], bits[channel])), len(kept))
                if column == len(kept):
                    kept.append(channel)
                sources.append((channel, column))
        columns = each[kept].reshape(len(kept), *sizes)  # a copy, so that nothing else of `values` is kept
        return cls(axes, columns, tuple(sources), n_channels)

    @property
    def is_zero(self) -> bool:
        """Return whether every channel is 0 at all nodes."""
        return not self.sources

    def at_nodes(self, *where: int | slice) -> FloatArray:
        """Return all channels at some nodes, given by one index or slice per axis; the last axes may be left out.

        Shape (selected nodes, ..., channels).
        """
        return self._all_channels(self.columns[:, *where])

    def between_nodes(self, low: int, high: int, share: float, *where: int | slice) -> FloatArray:
        """Return all channels at a share of the way between two nodes of the first axis, at nodes of the other axes.

        Shape (selected nodes, ..., channels).
        """
        return self._all_channels((1.0 - share) * self.columns[:, low, *where] + share * self.columns[:, high, *where])

    def _all_channels(self, columns: FloatArray) -> FloatArray:
        """Return all channels for the stored columns. Shape (columns, ...) gives (..., channels)."""
        found = np.zeros((*columns.shape[1:], self.n_channels))
        for channel, column in self.sources:
            found[..., channel] = columns[column]
        return found

    def at(self, *coordinates: FloatArray) -> FloatArray:
        """Return the interpolated channels at one coordinate array per axis. Shape (rows, channels)."""
        cells = [bracket(axis, np.asarray(x, dtype=np.float64)) for axis, x in zip(self.axes, coordinates, strict=True)]
        n_columns, *sizes = self.columns.shape
        total = np.zeros((n_columns, len(cells[0][0])))
        if self.is_zero:
            return self._all_channels(total)
        nodes = self.columns.reshape(n_columns, math.prod(sizes))
        for first in range(0, total.shape[1], BLOCK_ROWS):
            rows = slice(first, first + BLOCK_ROWS)
            block = total[:, rows]
            sides = [
                ((low[rows], 1.0 - share[rows]), (np.minimum(low[rows] + 1, size - 1), share[rows]))
                for (low, share), size in zip(cells, sizes, strict=True)
            ]
            for corner in product(*sides):
                where, weight = corner[0]
                for (low, share), size in zip(corner[1:], sizes[1:], strict=True):
                    where, weight = where * size + low, weight * share
                part = nodes.take(where, axis=1, mode="clip")  # no node is outside; other modes are slower
                part *= weight
                block += part
        return self._all_channels(total)


def spaced(low: float, high: float, count: int, keep: tuple[float, ...] = ()) -> FloatArray:
    """Return whole numbers from `low` to `high` in nearly equal ratios, with every small number and those in `keep`.

    They ascend. Shape (nodes,).
    """
    nodes = np.round(np.geomspace(max(low, 1.0), max(high, low, 1.0), count)).tolist()
    inside = [k for k in keep if low <= k <= high]
    return np.array(sorted({*nodes, float(low), float(high), *inside}))  # np.unique would import numpy.ma: 0.04 s
