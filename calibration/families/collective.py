"""Collectives: measured seconds by message size, for each kind, number of ranks and launch mode.

All-reduce tables were measured through the engine's own dispatch (custom kernel for small messages, symmetric memory or
NCCL for large ones), so the curve includes the engine's size rule. Other kinds are NCCL. Unmeasured cases are derived:

- Rank counts between measured ones: linear in log ranks and log seconds.
- More ranks than measured: wire time grows as the ring's share, the floor with log2(ranks). Ranks are those of one
  node; the simulator, which knows the nodes, adds the network time (simulator/costs/pricing.py).
- All-gather and reduce-scatter: half an all-reduce, because a ring all-reduce is both in sequence. All-to-all: an
  all-gather. send_recv of M bytes: an all-gather of 2 M between two ranks, in which each rank sends M.

Eager all-reduce seconds are of back-to-back launches, so below about 1 MB they are the launch time of the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from calibration.families.base import FittedOn, Parts
from calibration.families.curve import MonotoneCurve, pack, unpack
from calibration.families.grid import by
from calibration.operators.cost import INTERPOLATED, ROOFLINE, broadcast
from calibration.operators.operators import Collective
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


Key = tuple[str, bool, int]  # kind, graph, ranks

#: The kind that stands in for one without rows, and the factor on its seconds.
STANDS_FOR: Final = {
    "send_recv": ("all_gather", 1.0),
    "all_to_all": ("all_gather", 1.0),
    "all_gather": ("all_reduce", 0.5),
    "reduce_scatter": ("all_reduce", 0.5),
}


@dataclass(frozen=True, slots=True)
class CollectiveModel:
    """Curves of seconds against message bytes by (kind, graph, ranks)."""

    curves: dict[Key, MonotoneCurve]
    fitted_on: FittedOn
    family: str = field(default="collective", init=False)

    MIN_RANKS: ClassVar[int] = 2

    def cost(self, op: Collective, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) in the shape of the message sizes.

        Raises:
            InputError: The collective has fewer than two ranks.
        """
        if op.ranks < self.MIN_RANKS:
            raise InputError("a collective needs at least two ranks", op.ranks, "2")
        (size,) = broadcast(op.message_bytes)
        seconds, origin = self._measured(op.kind, size, op.ranks, op.graph)
        if self.fitted_on.is_same(accelerator):
            return seconds, origin
        floor, _ = self._measured(op.kind, np.float64(1.0), op.ranks, op.graph)
        moved = floor + (seconds - floor) * self.fitted_on.link_ratio(accelerator)
        return moved, np.full_like(moved, ROOFLINE)

    def _measured(
        self, kind: str, size: FloatArray | np.float64, ranks: int, graph: bool
    ) -> tuple[FloatArray, FloatArray]:
        x = np.asarray(size, dtype=np.float64)
        known, mode = self._ranks_of(kind, graph)
        if not known:
            return self._derived(kind, x, ranks, graph)
        if ranks in known:
            return self.curves[kind, mode, ranks].at(x)
        if ranks > known[-1]:
            return self._beyond(kind, x, ranks, mode, known[-1])
        below = max(r for r in known if r < ranks) if ranks > known[0] else known[0]
        above = min(r for r in known if r > ranks)
        (low, o_low), (high, o_high) = (self.curves[kind, mode, r].at(x) for r in (below, above))
        share = math.log(ranks / below) / math.log(above / below) if above > below else 0.0
        return low ** (1 - share) * high**share, np.maximum(np.maximum(o_low, o_high), INTERPOLATED)

    def _ranks_of(self, kind: str, graph: bool) -> tuple[list[int], bool]:
        """Return the measured rank counts of a kind and their launch mode; the other mode where this one has none."""
        for mode in (graph, not graph):
            if found := sorted(r for k, g, r in self.curves if k == kind and g == mode):
                return found, mode
        return [], graph

    def _derived(self, kind: str, size: FloatArray, ranks: int, graph: bool) -> tuple[FloatArray, FloatArray]:
        if kind not in STANDS_FOR:
            raise InputError("no measured collective stands in for this kind", kind)
        other, factor = STANDS_FOR[kind]
        if kind == "send_recv":
            size, ranks = 2.0 * size, 2
        seconds = factor * self._measured(other, size, ranks, graph)[0]
        return seconds, np.full_like(seconds, ROOFLINE)

    def _beyond(
        self, kind: str, size: FloatArray, ranks: int, mode: bool, largest: int
    ) -> tuple[FloatArray, FloatArray]:
        curve = self.curves[kind, mode, largest]
        seconds, _ = curve.at(size)
        floor = curve.seconds[0]
        wire = (seconds - floor) * ((ranks - 1) / ranks) / ((largest - 1) / largest)
        total = floor * math.log2(ranks) / math.log2(largest) + wire
        return total, np.full_like(total, ROOFLINE)

    def joined(self, lender: CollectiveModel) -> CollectiveModel:
        """Return the model with the kinds that it lacks from a model of the same accelerator."""
        known = {kind for kind, _, _ in self.curves}
        lent = {key: curve for key, curve in lender.curves.items() if key[0] not in known}
        return CollectiveModel({**lent, **self.curves}, self.fitted_on)

    def to_parts(self) -> Parts:
        """Return readable facts and arrays that `from_parts` reads."""
        keys = sorted(self.curves)
        facts = {
            "curves": [{"kind": k, "graph": g, "ranks": r} for k, g, r in keys],
            "fitted_on": self.fitted_on.to_facts(),
            "axes": "size in bytes, seconds",
        }
        return facts, pack(self.family, [self.curves[k] for k in keys])

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> CollectiveModel:
        """Return the model in facts and arrays."""
        keys = [(str(c["kind"]), bool(c["graph"]), int(c["ranks"])) for c in facts["curves"]]
        return cls(dict(zip(keys, unpack("collective", arrays), strict=True)), FittedOn.from_facts(facts["fitted_on"]))

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> CollectiveModel:
        """Fit one monotone curve per (kind, graph, ranks)."""
        curves = {
            (str(kind), bool(graph), int(ranks)): MonotoneCurve.fit(part.message_bytes, part.seconds)
            for (kind, graph, ranks), part in by(rows, "kind", "graph", "ranks")
        }
        return cls(curves, FittedOn.of(accelerator))
