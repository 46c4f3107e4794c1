"""For how long the collectives of a step occupy the links that transfers of KV blocks use as well.

The collectives are those of the operators that the tables of tokens were priced from: all-reduces of tensor ranks and
exchanges with experts. Gathers of attention over context ranks, those of logits, and collectives of drafters are left
out, and so are pipelines, whose stages run different batches at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from calibration.operators.operators import Collective
from catalogs.arrays import FloatArray
from simulator.core.batch import Batch
from simulator.costs.tables import StepTables
from simulator.costs.terms import Term
from simulator.interconnect.collectives import Interconnect

#: The tables over tokens whose operators contain collectives.
_TABLES: Final = ("rank", "group")


@dataclass(frozen=True, slots=True)
class CollectiveLinkUse:
    """The use of one kind of link by the collectives of a deployment's steps.

    Attributes:
        tables: The tables of the deployment.
        nodes: The numbers of tokens of each table. Shape (nodes,) each.
        seconds: The seconds, at the nominal rate of the link, for which a step of each number of tokens occupies it.
        known: A cache of the seconds by tokens on the fullest rank and tokens of the batch.
    """

    tables: StepTables
    nodes: dict[str, FloatArray]
    seconds: dict[str, FloatArray]
    known: dict[tuple[int, int], float] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: StepTables, between_nodes: bool) -> CollectiveLinkUse | None:
        """Return the use of the network cards, or of the links inside a node; None if no collective crosses them."""
        if tables.resolved.layout.pipeline_parallel > 1:
            return None
        nodes = {name: getattr(tables, name).axes[0] for name in _TABLES}
        interconnect = Interconnect(tables.resolved.hardware)
        seconds = {name: _occupied_s(tables, interconnect, name, at, between_nodes) for name, at in nodes.items()}
        return cls(tables, nodes, seconds) if any(s.any() for s in seconds.values()) else None

    def occupied_s(self, batch: Batch) -> float:
        """Return the seconds for which the collectives of a step occupy the link of each rank."""
        partition = self.tables.partition
        if not batch.ranks:
            tokens, batch_tokens, *_ = partition.rank_counts(batch)
        else:  # the fullest rank is the busiest
            counts = [partition.within_rank.rank_counts(rank) for rank in batch.ranks if rank is not None]
            tokens, batch_tokens = max(each[0] for each in counts), sum(each[1] for each in counts)
        seconds = self.known.get((tokens, batch_tokens))
        if seconds is None:
            seconds = self.known[tokens, batch_tokens] = self._read(tokens, batch_tokens)
        return seconds

    def _read(self, tokens: int, batch_tokens: int) -> float:
        most, every = np.array([float(tokens)]), np.array([float(batch_tokens)])
        at = (self.tables.padded_tokens(most), self.tables.group_tokens(most, every))
        found = (np.interp(x, self.nodes[name], self.seconds[name]) for name, x in zip(_TABLES, at, strict=True))
        return sum(float(seconds[0]) for seconds in found)


def _occupied_s(
    tables: StepTables, interconnect: Interconnect, table: str, tokens: FloatArray, between_nodes: bool
) -> FloatArray:
    """Return the seconds for which the collectives of a step occupy the link, for each number of tokens. Shape (n,)."""
    seconds = np.zeros(len(tokens))
    for rows, times, lines in tables.operators(Term(table, slice(None), (tokens,))):
        for line in lines:
            if isinstance(line.op, Collective):
                each = interconnect.occupied_s(line.op, line.stride, line.routing, between_nodes)
                seconds[rows] += times * line.count * line.runs * line.parts * each
    return seconds
