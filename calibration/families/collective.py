"""Collectives: measured seconds by message size, for each kind, number of ranks and launch mode.

All-reduce tables were measured through the engine's own dispatch (custom kernel for small messages, symmetric memory or
NCCL for large ones), so the curve includes the engine's size rule. Other kinds are NCCL. Unmeasured cases are derived:

- Rank counts between measured ones: linear in log ranks and log seconds.
- More ranks than measured: wire time grows as the ring's share, the floor with log2(ranks). Ranks are those of one
  node; the simulator, which knows the nodes, adds the network time (simulator/costs/pricing.py).
- Messages larger than those measured over these ranks, where two ranks were measured at them: wire time of two ranks,
  by the ring's share. That is so where the rows of more ranks are of a host that slows copies between peers
  (rows/physics_check.py): both all-reduces and NCCL's of the public L40S tables move 19 GB/s between two of them, and
  4 and 2 GB/s among four and eight.
- Over PCIe, a ring of more than two ranks crosses bridges of the host (PCIE_SHARE).
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
from calibration.families.grid import groups_by
from calibration.operators.cost import INTERPOLATED, ROOFLINE, broadcast
from calibration.operators.operators import Collective
from calibration.operators.roofline import link_name
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator
from catalogs.units import KIB

if TYPE_CHECKING:
    import pandas as pd


Key = tuple[str, bool, int]  # kind, graph, ranks

#: The fewest ranks of a collective.
PAIR: Final = 2

#: A curve that ends at less than this fraction of the messages of two ranks goes on as two ranks do.
EARLY: Final = 64.0

#: Share of the rate of two ranks that eight reach over PCIe, and its root four: in the public tables of eight RTX PRO
#: 6000 on PCIe 5, two ranks move 38 GB/s, four 30 (0.78) and eight 24 (0.63).
PCIE_SHARE: Final = 0.63

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
    measured_to: dict[Key, float] = field(default_factory=dict)  # bytes, where a curve goes on as two ranks do
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
            return self._at((kind, mode, ranks), x)
        if ranks > known[-1]:
            return self._beyond(kind, x, ranks, mode, known[-1])
        below = max(r for r in known if r < ranks) if ranks > known[0] else known[0]
        above = min(r for r in known if r > ranks)
        (low, o_low), (high, o_high) = (self._at((kind, mode, r), x) for r in (below, above))
        share = math.log(ranks / below) / math.log(above / below) if above > below else 0.0
        return low ** (1 - share) * high**share, np.maximum(np.maximum(o_low, o_high), INTERPOLATED)

    def _at(self, key: Key, size: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) of one curve in the shape of `size`."""
        seconds, origin = self.curves[key].at(size)
        return seconds, np.where(size > self.measured_to.get(key, math.inf), ROOFLINE, origin)

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
        wire = (seconds - floor) * wire_ratio(ranks, largest, self.fitted_on)
        total = floor * math.log2(ranks) / math.log2(largest) + wire
        return total, np.full_like(total, ROOFLINE)

    def notice(self, op: Collective) -> str | None:
        """Return a notice where messages of this kind over these ranks go on as those of two ranks, else None."""
        limit = self.measured_to.get((op.kind, op.graph, op.ranks))
        if limit is None:
            return None
        kind, name = op.kind.replace("_", "-"), self.fitted_on.accelerator.name
        return (
            f"{kind} over {op.ranks} {name}: above {limit / KIB:g} KiB derived from two of them, because the public "
            "rows are of a host that slows copies between peers (as with IOMMU or ACS on)"
        )

    def joined(self, lender: CollectiveModel) -> CollectiveModel:
        """Return the model with the kinds that it lacks from a model of the same accelerator."""
        known = {kind for kind, _, _ in self.curves}
        lent = {key: curve for key, curve in lender.curves.items() if key[0] not in known}
        return CollectiveModel({**lent, **self.curves}, self.fitted_on, {**lender.measured_to, **self.measured_to})

    def to_parts(self) -> Parts:
        """Return readable facts and arrays that `from_parts` reads."""
        keys = sorted(self.curves)
        facts = {
            "curves": [self._record(key) for key in keys],
            "fitted_on": self.fitted_on.to_facts(),
            "axes": "size in bytes, seconds",
        }
        return facts, pack(self.family, [self.curves[k] for k in keys])

    def _record(self, key: Key) -> dict[str, Any]:
        kind, graph, ranks = key
        limit = {"measured_to": self.measured_to[key]} if key in self.measured_to else {}
        return {"kind": kind, "graph": graph, "ranks": ranks, **limit}

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> CollectiveModel:
        """Return the model in facts and arrays."""
        records = {(str(c["kind"]), bool(c["graph"]), int(c["ranks"])): c for c in facts["curves"]}
        limits = {key: float(c["measured_to"]) for key, c in records.items() if "measured_to" in c}
        curves = dict(zip(records, unpack("collective", arrays), strict=True))
        return cls(curves, FittedOn.from_facts(facts["fitted_on"]), limits)

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> CollectiveModel:
        """Fit one monotone curve per (kind, graph, ranks); one that ends early goes on as two ranks do."""
        curves = {
            (str(kind), bool(graph), int(ranks)): MonotoneCurve.fit(part.message_bytes, part.seconds)
            for (kind, graph, ranks), part in groups_by(rows, "kind", "graph", "ranks")
        }
        fitted_on, limits = FittedOn.of(accelerator), {}
        for (kind, graph, ranks), curve in curves.items():
            pair = curves.get((kind, graph, PAIR))
            if ranks > PAIR and pair is not None and curve.size[-1] * EARLY < pair.size[-1]:
                limits[kind, graph, ranks] = float(curve.size[-1])
                curves[kind, graph, ranks] = continued(curve, pair, wire_ratio(ranks, PAIR, fitted_on))
        return cls(curves, fitted_on, limits)


def wire_ratio(ranks: int, fewer: int, measured_on: FittedOn) -> float:
    """Return the wire time of a ring of `ranks` over that of `fewer` ranks of the measured accelerator."""
    ring = ((ranks - 1) / ranks) / ((fewer - 1) / fewer)
    if not link_name(measured_on.accelerator.name).startswith("pcie"):
        return ring
    return float(ring * PCIE_SHARE ** (-math.log2(ranks / fewer) / 2.0))


def continued(curve: MonotoneCurve, pair: MonotoneCurve, ratio: float) -> MonotoneCurve:
    """Return a curve that goes on past its last node with `ratio` times the wire time of the curve of two ranks."""
    further = pair.size[pair.size > curve.size[-1]]
    start = float(pair.at(curve.size[-1:])[0][0])
    added = curve.seconds[-1] + ratio * (pair.at(further)[0] - start)
    return MonotoneCurve(np.append(curve.size, further), np.append(curve.seconds, added))
