"""The terms of the price of steps: which tables a batch reads at which coordinates, and for which operators."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from catalogs.arrays import FloatArray, IntArray
from simulator.costs.interpolation import MultilinearTable
from simulator.costs.pricing import N_CLASSES
from simulator.layers.operator_call import OperatorCall

Rows = IntArray | slice


@dataclass(frozen=True)
class DecodeTables:
    """Channels by (decodes, mean context): for equal contexts, and per token of the longest context above the mean."""

    even: MultilinearTable
    skew: MultilinearTable

    def at(self, decodes: FloatArray, mean: FloatArray, longest: FloatArray) -> FloatArray:
        """Return the channels of decode attention. Shape (rows, channels).

        Args:
            decodes: Decodes on a rank. Shape (rows,).
            mean: Mean context. Shape (rows,).
            longest: Longest context. Shape (rows,).
        """
        return self.even.at(decodes, mean) + (longest - mean)[:, None] * self.skew.at(decodes, mean)

    def seconds(self, decodes: int, first: int) -> tuple[list[float], list[float]]:
        """Return (seconds, seconds per token of skew) at context nodes `first` and `first` + 1, for decodes on a rank.

        Both lists have two entries.
        """
        axis = self._decodes
        low = bisect_right(axis, decodes, 1, len(axis) - 1) - 1 if len(axis) > 1 else 0
        high = min(low + 1, len(axis) - 1)
        share = (decodes - axis[low]) / (axis[high] - axis[low]) if high > low else 0.0
        even, skew = (
            table.between_nodes(low, high, share, slice(first, first + 2))[:, :N_CLASSES].sum(axis=1).tolist()
            for table in (self.even, self.skew)
        )
        return even, skew

    @cached_property
    def _decodes(self) -> list[float]:
        """Return the decodes at the nodes: a list is searched faster than an array."""
        nodes: list[float] = self.even.axes[0].tolist()
        return nodes


class Term(NamedTuple):
    """The place where some of many batches read one of the tables. The price of a batch is the sum of its terms.

    Attributes:
        table: The name of an attribute of `StepTables`.
        rows: The batches that read it. Shape (n,), or a slice.
        coordinates: One array per axis of the table. Shape (n,) each.
    """

    table: str
    rows: Rows
    coordinates: tuple[FloatArray, ...]


class RankTerms(NamedTuple):
    """Terms of batches whose data-parallel ranks hold unequal shares. The step waits for the slowest rank.

    Attributes:
        own: The dense parts and the attention of each rank.
        shared: The experts and the logits of all ranks together.
    """

    own: list[list[Term]]
    shared: list[Term]


class OperatorGroup(NamedTuple):
    """The operators that some of many steps run, and how often each step runs them.

    Attributes:
        rows: The steps that run them. Shape (n,).
        times: Executions in each of those steps. Shape (n,).
        lines: The operators.
    """

    rows: IntArray
    times: FloatArray
    lines: list[OperatorCall]
