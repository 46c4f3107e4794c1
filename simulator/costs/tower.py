"""The tables behind the price of encoding images: the operators of a vision tower, priced at nodes of its work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from calibration.operators.cost import CostSource
from catalogs.arrays import FloatArray
from catalogs.deployments.resolved import ResolvedDeployment
from simulator.core.batch import Encoding
from simulator.costs.interpolation import MultilinearTable, spaced
from simulator.costs.partition import BatchRows
from simulator.costs.pricing import N_CHANNELS, N_CLASSES, Pricer
from simulator.costs.terms import Term
from simulator.layers.operator_call import OperatorCall
from simulator.layers.vision import TowerCalls

#: The names of the tables in terms.
TOWER_TABLES: Final = ("tower_patches", "tower_attention")

PATCH_NODES: Final = 64

TILE_NODES: Final = 24

#: Patches of the smallest image that the tables cover; more tiles of fewer patches are extrapolated.
LEAST_PATCHES: Final = 64

#: Nodes of the patches of a tile, whose square the time follows: 15 % between neighbours is 0.5 % of error.
EACH_NODES: Final = 60


@dataclass(frozen=True, slots=True)
class TowerTables:
    """Channels (see `simulator.costs.pricing`) of the operators of a vision tower on its busiest rank.

    Attributes:
        calls: The operators.
        patches: By patches on the rank.
        attention: By images or tiles on the rank, and the patches of each.
        launch_s: The minimum seconds of a pass, which the host launches kernel by kernel.
    """

    calls: TowerCalls
    patches: MultilinearTable
    attention: MultilinearTable
    launch_s: float
    _known: dict[Encoding, float] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def build(cls, resolved: ResolvedDeployment, source: CostSource, pricer: Pricer) -> TowerTables | None:
        """Price the tower of a deployment; None if it runs none."""
        calls = TowerCalls.of(resolved, source)
        if calls is None:
            return None
        largest, budget = calls.tower.largest, resolved.encoder_budget
        most = budget * calls.tower.patches_per_embedding
        nodes = spaced(1, most, PATCH_NODES)
        tiles = spaced(1, max(2, most // LEAST_PATCHES), TILE_NODES)
        each = spaced(1, max(2, largest.patches), EACH_NODES)
        n, s = (a.copy() for a in np.broadcast_arrays(tiles[:, None], each[None, :]))
        own = np.concatenate([np.zeros((1, N_CHANNELS)), pricer.price(calls.patches(nodes), nodes.shape)])
        none = np.zeros((1, len(each), N_CHANNELS))
        full = np.concatenate([none, pricer.price(calls.attention(n, s), n.shape)])
        host_s = resolved.engine.host.kernel_launch_s if resolved.hardware.accelerator.kind == "gpu" else 0.0
        zero = np.zeros(1)
        return cls(
            calls,
            MultilinearTable((np.concatenate([zero, nodes]),), own),
            MultilinearTable((np.concatenate([zero, tiles]), each), full),
            host_s * calls.launches,
        )

    def terms(self, batches: BatchRows) -> list[Term]:
        """Return the terms of the batches that encode images.

        The tiles of a step count as equal ones with the same patches and the same sum of squares.
        """
        some = np.flatnonzero(batches.encoder_patches)
        if not len(some):
            return []
        rows = batches.only(some)
        share = self.calls.busiest_share(rows.encoder_tiles)
        each = rows.encoder_pairs / rows.encoder_patches
        patches = rows.encoder_patches * share
        return [
            Term("tower_patches", some, (patches,)),
            Term("tower_attention", some, (patches / each, each)),
        ]

    def read(self, term: Term) -> FloatArray:
        """Return the channels of a term. Shape (rows of the term, N_CHANNELS)."""
        table = self.patches if term.table == "tower_patches" else self.attention
        return table.at(*term.coordinates)

    def operators(self, term: Term) -> list[OperatorCall]:
        """Return the operators that a term's table was priced from, at the term's coordinates."""
        if term.table == "tower_patches":
            return self.calls.patches(*term.coordinates)
        return self.calls.attention(*term.coordinates)

    def seconds(self, encoding: Encoding) -> float:
        """Return the seconds of a pass over these images; the result is cached."""
        found = self._known.get(encoding)
        if found is None:
            each = np.array([encoding.pairs / encoding.patches])
            patches = encoding.patches * np.asarray(self.calls.busiest_share(np.array([float(encoding.tiles)])))
            channels = self.patches.at(patches) + self.attention.at(patches / each, each)
            found = self._known[encoding] = max(float(channels[:, :N_CLASSES].sum()), self.launch_s)
        return found
