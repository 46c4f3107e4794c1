"""Bins of input and output lengths: at most four of each, at the quartiles of the lengths of the requests.

Quartiles fill the bins of every workload, whatever its lengths are. Fewer bins result where many requests have one
length. Runs that are compared share the bins of all their requests together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import inf
from typing import Final, NamedTuple

import numpy as np

from calibration.complexity.records import LatencyRecords
from catalogs.arrays import FloatArray, IntArray

#: Most bins of each length.
MOST_BINS: Final = 4


class TokenRange(NamedTuple):
    """The lengths of one bin, in tokens: at least `low`, and below `below` (inf: no upper bound)."""

    low: float
    below: float

    @property
    def words(self) -> str:
        """Return the range as text: "all", "under 128", "128 to 511" or "from 512"."""
        if not self.low:
            return "all" if self.below == inf else f"under {self.below:,.0f}"
        if self.below == inf:
            return f"from {self.low:,.0f}"
        return f"{self.low:,.0f}" if self.below - self.low == 1 else f"{self.low:,.0f} to {self.below - 1:,.0f}"


@dataclass(frozen=True, slots=True)
class LengthBins:
    """Bins of input and output lengths.

    Attributes:
        input_edges: The lengths in tokens at which a new bin begins, ascending; the first bin begins at zero.
        output_edges: The same of outputs.
    """

    input_edges: tuple[float, ...]
    output_edges: tuple[float, ...]

    @classmethod
    def of(cls, *records: LatencyRecords, most: int = MOST_BINS) -> LengthBins:
        """Return the bins of all requests of the records together."""
        inputs = np.concatenate([each.input_tokens for each in records])
        outputs = np.concatenate([each.output_tokens for each in records])
        return cls(quantile_edges(inputs, most), quantile_edges(outputs, most))

    @property
    def input_ranges(self) -> tuple[TokenRange, ...]:
        """Return the ranges of input lengths, ascending."""
        return _ranges(self.input_edges)

    @property
    def output_ranges(self) -> tuple[TokenRange, ...]:
        """Return the ranges of output lengths, ascending."""
        return _ranges(self.output_edges)

    @property
    def ranges(self) -> tuple[tuple[TokenRange, TokenRange], ...]:
        """Return the (input, output) ranges of all bins, in the order of `numbers`."""
        return tuple(product(self.input_ranges, self.output_ranges))

    def numbers(self, records: LatencyRecords) -> IntArray:
        """Return the number of the bin of each request, which is its place in `ranges`. Shape (n,)."""
        rows = np.searchsorted(self.input_edges, records.input_tokens, side="right")
        columns = np.searchsorted(self.output_edges, records.output_tokens, side="right")
        return np.asarray(rows * len(self.output_ranges) + columns, dtype=np.int64)


def _ranges(edges: Sequence[float]) -> tuple[TokenRange, ...]:
    return tuple(TokenRange(low, below) for low, below in pairwise((0.0, *edges, inf)))


def quantile_edges(tokens: FloatArray, most: int = MOST_BINS) -> tuple[float, ...]:
    """Return the edges that divide lengths into at most `most` bins of about equal counts, none of them empty.

    Args:
        tokens: Lengths. Shape (n,).
        most: Most bins.
    """
    if not len(tokens):
        return ()
    at = np.quantile(tokens, np.arange(1, most) / most)
    edges = np.unique(np.ceil(at))
    filled = edges[(edges > tokens.min()) & (edges <= tokens.max())]
    kept = list[float]()
    for edge in filled.tolist():
        below = kept[-1] if kept else 0.0
        if ((tokens >= below) & (tokens < edge)).any():
            kept.append(float(edge))
    return tuple(kept)
