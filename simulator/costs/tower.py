"""The tables behind the price of encoding images, videos and audio: the operators of a tower, priced at nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from calibration.operators.cost import CostSource
from catalogs.arrays import FloatArray
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.models.media_items import TowerName
from simulator.core.batch import TowerWork
from simulator.core.step_log import StepLog
from simulator.costs.interpolation import MultilinearTable, spaced
from simulator.costs.partition import BatchRows
from simulator.costs.pricing import N_CHANNELS, N_CLASSES, Pricer
from simulator.costs.terms import Term
from simulator.layers.operator_call import OperatorCall
from simulator.layers.towers import TowerCalls

#: Nodes of the patches of a rank. A judgement: the time is nearly proportional to them.
PATCH_NODES: Final = 64

#: Nodes of the sequences of a rank. A judgement: the time is nearly proportional to them.
TILE_NODES: Final = 24

#: Patches of the smallest image that the tables cover; more tiles of fewer patches are extrapolated.
LEAST_PATCHES: Final = 64

#: Nodes of the patches of a tile, whose square the time follows: 15 % between neighbours is 0.5 % of error.
EACH_NODES: Final = 60


@dataclass(frozen=True, slots=True)
class TowerTables:
    """Channels (see `simulator.costs.pricing`) of the operators of a tower on its busiest rank.

    Attributes:
        calls: The operators.
        patches: By patches on the rank.
        attention: By sequences (images, tiles, frames or chunks) on the rank, and the patches of each.
        launch_s: The minimum seconds of a pass, which the host launches kernel by kernel.
    """

    calls: TowerCalls
    patches: MultilinearTable
    attention: MultilinearTable
    launch_s: float
    _known: dict[TowerWork, float] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def build_all(cls, resolved: ResolvedDeployment, source: CostSource, pricer: Pricer) -> tuple[TowerTables, ...]:
        """Price the towers that the replicas of a deployment run."""
        run = resolved.towers if resolved.runs_towers else ()
        return tuple(cls._build(TowerCalls.of(tower, resolved, source), resolved, pricer) for tower in run)

    @classmethod
    def _build(cls, calls: TowerCalls, resolved: ResolvedDeployment, pricer: Pricer) -> TowerTables:
        largest, budget = resolved.largest_item(calls.tower), resolved.encoder_budget
        most = budget * largest.tiles * largest.patches / largest.embeddings
        nodes = spaced(1, max(most, 2.0), PATCH_NODES)
        tiles = spaced(1, max(2.0, most // LEAST_PATCHES), TILE_NODES)
        each = spaced(1, max(2, largest.patches), EACH_NODES)
        n, s = (a.copy() for a in np.broadcast_arrays(tiles[:, None], each[None, :]))
        own = np.concatenate([np.zeros((1, N_CHANNELS)), pricer.price(calls.patches(nodes), nodes.shape)])
        none = np.zeros((1, len(each), N_CHANNELS))
        full = np.concatenate([none, pricer.price(calls.attention(n, s), n.shape)])
        unit = resolved.hardware.accelerator
        host_s = resolved.engine.launch_s(False, unit) if unit.kind == "gpu" else 0.0
        zero = np.zeros(1)
        return cls(
            calls,
            MultilinearTable.of((np.concatenate([zero, nodes]),), own),
            MultilinearTable.of((np.concatenate([zero, tiles]), each), full),
            host_s * calls.launches,
        )

    @property
    def name(self) -> TowerName:
        """Return which of the model's towers it is."""
        return self.calls.tower.name

    @property
    def tables(self) -> tuple[str, str]:
        """Return the names of the two tables in terms."""
        return f"{self.name}_patches", f"{self.name}_attention"

    def counts(self, rows: BatchRows | StepLog) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the units, the patches and the pairs of each row. Each array has shape (rows,)."""
        units, patches, pairs = (getattr(rows, f"{self.name}_{count}") for count in ("units", "patches", "pairs"))
        return units, patches, pairs

    def terms(self, batches: BatchRows) -> list[Term]:
        """Return the terms of the batches that encode items.

        The tiles of a step count as equal ones with the same patches and the same sum of squares.
        """
        some = np.flatnonzero(self.counts(batches)[1])
        if not len(some):
            return []
        units, all_patches, pairs = (column[some] for column in self.counts(batches))
        each = pairs / all_patches
        patches = all_patches * self.calls.busiest_share(units)
        of_patches, attention = self.tables
        return [Term(of_patches, some, (patches,)), Term(attention, some, (patches / each, each))]

    def read(self, term: Term) -> FloatArray:
        """Return the channels of a term. Shape (rows of the term, N_CHANNELS)."""
        table = self.patches if term.table == self.tables[0] else self.attention
        return table.at(*term.coordinates)

    def operators(self, term: Term) -> list[OperatorCall]:
        """Return the operators that a term's table was priced from, at the term's coordinates."""
        if term.table == self.tables[0]:
            return self.calls.patches(*term.coordinates)
        return self.calls.attention(*term.coordinates)

    def seconds(self, work: TowerWork) -> float:
        """Return the seconds of a pass over these items; the result is cached."""
        if not work.patches:
            return 0.0
        found = self._known.get(work)
        if found is None:
            each = np.array([work.pairs / work.patches])
            patches = work.patches * np.asarray(self.calls.busiest_share(np.array([float(work.units)])))
            channels = self.patches.at(patches) + self.attention.at(patches / each, each)
            found = self._known[work] = max(float(channels[:, :N_CLASSES].sum()), self.launch_s)
        return found
