"""The operators of engine steps against the roofline: their arithmetic, bytes and duration, and what bounds them.

The roofline of an accelerator gives two limits, arithmetic and bytes. An operator that takes many times its roofline
time is bound by its fixed cost. A collective is bound by the links regardless of its size, because it waits for other
accelerators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from calibration.operators.cost import evidence_shares
from calibration.operators.flops_and_bytes import bytes_moved, flops
from calibration.operators.operators import Collective
from calibration.operators.roofline import compute_s, link_bytes, memory_s, roofline_s
from catalogs.arrays import FloatArray
from simulator.costs.counterfactual import FIXED_COST_FACTOR
from simulator.costs.partition import BatchRows
from simulator.costs.pricing import N_CLASSES, Pricer
from simulator.costs.tables import StepTables
from simulator.costs.terms import Term
from simulator.costs.totals import ranked_pass
from simulator.layers.operator_call import OperatorCall

COMPUTE, MEMORY, LINK, FIXED = "compute", "memory", "link", "fixed cost"

BOUND_WORDS: Final = {
    COMPUTE: "arithmetic",
    MEMORY: "memory bandwidth",
    LINK: "link between accelerators",
    FIXED: "fixed cost per kernel",
}

ONE_STEP: Final = np.ones(())


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """All executions of one operator on one rank, in one step or in many; SI units.

    Attributes:
        name: The name of the operator.
        kind: The operator class of a time breakdown.
        layers: Executions in one step.
        limit: The side of the roofline that sets its roofline time: "compute", "memory" or "link".
        count: Executions in total.
        flops: Arithmetic operations.
        bytes: Bytes through device memory; for a collective, the bytes that the rank sends.
        roofline_s: Seconds by the roofline.
        seconds: Seconds by the calibration.
        measured_s: The part of `seconds` that rests on measured rows.
        interpolated_s: The part of `seconds` that rests on interpolation between measured rows.
        borrowed_s: The part of `seconds` that rests on rows of another accelerator.
    """

    name: str
    kind: str
    layers: int
    limit: str
    count: float
    flops: float
    bytes: float
    roofline_s: float
    seconds: float
    measured_s: float
    interpolated_s: float
    borrowed_s: float

    @property
    def intensity(self) -> float:
        """Return the arithmetic operations per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def bound(self) -> str:
        """Return the limit of its roofline, or its fixed cost if it is far from the roofline."""
        return FIXED if self.limit != LINK and self.seconds > FIXED_COST_FACTOR * self.roofline_s else self.limit

    def scaled(self, factor: float) -> OperatorRow:
        """Return the same operator with all sums over executions multiplied by `factor`."""
        return replace(self, **{name: factor * getattr(self, name) for name in SUMMED})

    @property
    def efficiency(self) -> float:
        """Return the share of the roofline that the operator reaches."""
        return self.roofline_s / self.seconds if self.seconds else 0.0


#: The parts of the seconds of a row by their evidence; the rest is from the roofline.
EVIDENCE_S: Final = ("measured_s", "interpolated_s", "borrowed_s")

#: The fields of a row that are sums over executions.
SUMMED: Final = ("count", "flops", "bytes", "roofline_s", "seconds", *EVIDENCE_S)


def step_operators(tables: StepTables, ranks: Sequence[BatchRows], weights: FloatArray) -> list[OperatorRow]:
    """Price the operators that steps run on one rank, those of drafting included, as their tables were priced.

    Args:
        tables: The tables of the deployment.
        ranks: The batches of the steps: one entry if all ranks have equal shares, otherwise one for each data-parallel
            rank, of which the slowest is priced.
        weights: The number of steps that each batch represents. Shape (rows,).
    """
    found = []
    for model, batches, n_passes in _model_passes(tables, ranks):
        for term in _terms(model, batches):
            for group in model.operators(term):
                times = weights[group.rows] * n_passes[group.rows] * group.times
                found += operator_rows(group.lines, model.pricer, times)
    return found


def step_seconds(tables: StepTables, batches: BatchRows) -> tuple[FloatArray, FloatArray]:
    """Return (roofline seconds, calibrated seconds) of the operators of each step, if all ranks have equal shares.

    They are the sums of `step_operators` for each step alone, in one pass over the operators. Shape (rows,) each.
    """
    limit_s, seconds = np.zeros(len(batches)), np.zeros(len(batches))
    for model, ranks, n_passes in _model_passes(tables, [batches]):
        for term in model.terms(ranks[0]):
            for group in model.operators(term):
                times = n_passes[group.rows] * group.times
                for line in group.lines:
                    own_s = _seconds(model.pricer, line, times.shape)[1]
                    own_limit_s = line.count * roofline_s(line.op, model.pricer.hardware.accelerator)
                    seconds[group.rows] += times * own_s
                    limit_s[group.rows] += times * np.where(own_s > 0, own_limit_s, 0.0)
    return limit_s, seconds


def _seconds(pricer: Pricer, line: OperatorCall, shape: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Return the channels of an operator, shape `shape` + (channels,), and their seconds, shape `shape`."""
    channels = pricer.price([line], shape, at_nodes=True)
    return channels, channels[..., :N_CLASSES].sum(axis=-1)


def _model_passes(
    tables: StepTables, ranks: Sequence[BatchRows]
) -> Iterator[tuple[StepTables, Sequence[BatchRows], FloatArray]]:
    """Yield (tables, batches, passes in each step) of the target model and of its drafter; passes: shape (rows,)."""
    draft, once = tables.draft, np.ones(len(ranks[0]))
    yield tables, ranks, once
    if draft is not None:
        yield draft.first, ranks, once
    if draft is not None and draft.passes:
        newest = [rank.newest(draft.after_prompts) for rank in ranks]
        some = np.sum([rank.decodes for rank in newest], axis=0) > 0
        yield draft.again, newest, draft.passes * some


def _terms(tables: StepTables, ranks: Sequence[BatchRows]) -> Iterator[Term]:
    """Yield the terms of a pass on one rank; on the slowest if the ranks have unequal shares."""
    if len(ranks) == 1:
        yield from tables.terms(ranks[0])
        return
    found, slowest = tables.rank_terms(ranks), ranked_pass(tables, ranks).slowest
    for i, own in enumerate(found.own):
        for term in own:
            rows = np.arange(len(slowest))[term.rows]
            here = slowest[rows] == i
            yield Term(term.table, rows[here], tuple(x[here] for x in term.coordinates))
    yield from found.shared


def operator_rows(lines: Iterable[OperatorCall], pricer: Pricer, weights: FloatArray = ONE_STEP) -> list[OperatorRow]:
    """Price each operator by the calibration and by the roofline; leave out operators that take no time.

    Args:
        lines: Operators with counts of the shape of `weights`.
        pricer: The calibration.
        weights: The number of steps that each entry represents; sums are over all of them. Shape (n,), or () for one
            step.
    """
    return [row for line in lines for row in _rows(line, pricer, np.asarray(weights, dtype=np.float64))]


def _rows(line: OperatorCall, pricer: Pricer, weights: FloatArray) -> Iterator[OperatorRow]:
    """Yield one row for each bound of the operator in any of the steps."""
    op, n, unit = line.op, line.count * np.asarray(line.parts, dtype=np.float64), pricer.hardware.accelerator
    channels, seconds = _seconds(pricer, line, weights.shape)
    limit_s = n * roofline_s(op, unit)
    far = np.broadcast_to(seconds > FIXED_COST_FACTOR * limit_s, weights.shape)
    if isinstance(op, Collective):
        moved, masks = link_bytes(op), [(LINK, np.ones(weights.shape, dtype=np.bool_))]
    else:
        computes = np.broadcast_to(compute_s(op, unit) > memory_s(op, unit), weights.shape)
        masks = [
            (limit, part)
            for limit, here in ((COMPUTE, computes), (MEMORY, ~computes))
            for part in (here & ~far, here & far)
        ]
        moved = bytes_moved(op, unit)
    weights = weights * line.runs
    columns = (np.asarray(n), n * flops(op), n * moved, limit_s, seconds, *pricer.evidence_s(channels))
    for limit, mask in masks:
        part = weights * mask
        sums = [float((np.broadcast_to(column, part.shape) * part).sum()) for column in columns]
        if sums[SUMMED.index("seconds")] > 0:
            yield OperatorRow(line.name, line.kind, line.count, limit, *sums)


def together(rows: Iterable[OperatorRow], by_layers: bool = False) -> list[OperatorRow]:
    """Return the sums of rows of the same name, the longest first; the limit is that of most of their time.

    With `by_layers`, groups of layers of different size remain separate rows.
    """
    groups: dict[tuple[str, int], list[OperatorRow]] = {}
    for row in rows:
        groups.setdefault((row.name, row.layers if by_layers else 0), []).append(row)
    found = []
    for group in groups.values():
        longest = max(group, key=lambda row: row.seconds)
        sums: dict[str, Any] = {name: sum(getattr(row, name) for row in group) for name in SUMMED}
        found.append(replace(longest, layers=sum({row.layers for row in group}), **sums))
    return sorted(found, key=lambda row: -row.seconds)


def seconds_by_bound(rows: Iterable[OperatorRow]) -> dict[str, float]:
    """Return the seconds by bound, the largest first."""
    found: dict[str, float] = {}
    for row in rows:
        found[row.bound] = found.get(row.bound, 0.0) + row.seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def origin_shares(rows: Sequence[OperatorRow]) -> dict[str, float]:
    """Return the shares of the rows' time that are measured, interpolated, borrowed or roofline only.

    All are 0 for no time.
    """
    parts_s = (sum(getattr(row, name) for row in rows) for name in EVIDENCE_S)
    return evidence_shares(parts_s, sum(row.seconds for row in rows))


def operator_document(row: OperatorRow) -> dict[str, Any]:
    """Return the row as JSON, including derived values."""
    return asdict(row) | {"flops_per_byte": row.intensity, "bound": row.bound, "roofline_share": row.efficiency}
