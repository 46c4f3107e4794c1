"""Operators of engine steps against the roofline: what each computes and moves, how long it takes, what bounds it.

The engine steps that a stage takes: all decodes at once, or prompts cut as an engine cuts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from calibration.operators.operators import Collective
from calibration.operators.roofline import bytes_moved, compute_s, flops, link_bytes, memory_s, roofline_s
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator
from simulator.core.batch import BatchShape
from simulator.costs.pricing import INTERPOLATED_S, MEASURED_S, N_CLASSES, Pricer
from simulator.layers.operator_call import OperatorCall
from simulator.layers.step import StepCalls

#: An operator that takes this many times its roofline time is bound by neither arithmetic nor bytes: it is short, and
#: what a kernel costs whatever it does (launch, waves that do not fill the device, waiting for other ranks) decides.
FIXED_COST_FACTOR: Final = 4.0

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
    """One operator of a step (or of many), all its executions on one rank together; SI units.

    bytes: through device memory; of a collective, what the rank sends. limit: what its roofline time is of. seconds:
    by the calibration; measured_s and interpolated_s are the parts of it that rest on measured rows.
    """

    name: str
    kind: str  # operator class of a time breakdown
    layers: int  # executions in one step
    limit: str  # "compute" | "memory" | "link"
    count: float  # executions in all
    flops: float
    bytes: float
    roofline_s: float
    seconds: float
    measured_s: float
    interpolated_s: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def bound(self) -> str:
        """What it waits for: its roofline's limit, or where it is far from the roofline, its fixed cost."""
        return FIXED if self.seconds > FIXED_COST_FACTOR * self.roofline_s else self.limit

    @property
    def efficiency(self) -> float:
        """Share of the roofline it reaches."""
        return self.roofline_s / self.seconds if self.seconds else 0.0


SUMMED: Final = ("count", "flops", "bytes", "roofline_s", "seconds", "measured_s", "interpolated_s")


def operator_rows(lines: Iterable[OperatorCall], pricer: Pricer, weights: FloatArray = ONE_STEP) -> list[OperatorRow]:
    """Each line priced by the calibration and by the roofline; what takes no time is left out.

    weights: how many steps each entry of the lines' (broadcast) shape stands for; sums are over all of them.
    """
    return [row for line in lines for row in _rows(line, pricer, np.asarray(weights, dtype=np.float64))]


def _rows(line: OperatorCall, pricer: Pricer, weights: FloatArray) -> Iterator[OperatorRow]:
    """One row for each limit that the line meets anywhere."""
    channels = pricer.price([line], weights.shape, at_nodes=True)
    columns = _columns(line, pricer.hardware.accelerator)
    columns += [channels[..., :N_CLASSES].sum(axis=-1), channels[..., MEASURED_S], channels[..., INTERPOLATED_S]]
    for limit, here in _limits(line, pricer.hardware.accelerator, weights.shape):
        part = weights * here
        sums = [float((np.broadcast_to(c, part.shape) * part).sum()) for c in columns]
        if sums[SUMMED.index("seconds")] > 0:
            yield OperatorRow(line.name, line.kind, line.count, limit, *sums)


def _columns(line: OperatorCall, unit: Accelerator) -> list[FloatArray]:
    """count, flops, bytes and roofline seconds of one step."""
    op, n = line.op, float(line.count)
    moved = link_bytes(op) if isinstance(op, Collective) else bytes_moved(op, unit)
    return [np.asarray(n), n * flops(op), n * moved, n * roofline_s(op, unit)]


def _limits(line: OperatorCall, unit: Accelerator, shape: tuple[int, ...]) -> list[tuple[str, FloatArray]]:
    """(limit, 1 where it is the limit)."""
    if isinstance(line.op, Collective):
        return [(LINK, np.ones(shape))]
    computes = np.broadcast_to(compute_s(line.op, unit) > memory_s(line.op, unit), shape).astype(np.float64)
    return [(COMPUTE, computes), (MEMORY, 1.0 - computes)]


def together(rows: Iterable[OperatorRow], by_layers: bool = False) -> list[OperatorRow]:
    """Rows of one name added up, the longest first; the limit is that of most of their time. by_layers: groups of
    layers of different size stay apart."""
    groups: dict[tuple[str, int], list[OperatorRow]] = {}
    for row in rows:
        groups.setdefault((row.name, row.layers if by_layers else 0), []).append(row)
    return sorted(map(_sum, groups.values()), key=lambda r: -r.seconds)


def _sum(rows: Sequence[OperatorRow]) -> OperatorRow:
    longest = max(rows, key=lambda r: r.seconds)
    sums = [sum(getattr(r, name) for r in rows) for name in SUMMED]
    layers = sum({r.layers for r in rows})
    return OperatorRow(longest.name, longest.kind, layers, longest.limit, *sums)


def seconds_by_bound(rows: Iterable[OperatorRow]) -> dict[str, float]:
    """Seconds by what bounds each row, the largest first."""
    found: dict[str, float] = {}
    for row in rows:
        found[row.bound] = found.get(row.bound, 0.0) + row.seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def origin_shares(rows: Sequence[OperatorRow]) -> dict[str, float]:
    """Of the rows' time: measured, interpolated, roofline only (all 0 for no time)."""
    total = sum(r.seconds for r in rows)
    if not total:
        return dict.fromkeys(("measured_fraction", "interpolated_fraction", "roofline_fraction"), 0.0)
    measured = sum(r.measured_s for r in rows) / total
    between = sum(r.interpolated_s for r in rows) / total
    rest = max(1.0 - measured - between, 0.0)
    return {"measured_fraction": measured, "interpolated_fraction": between, "roofline_fraction": rest}


def operator_document(row: OperatorRow) -> dict[str, Any]:
    """The row as JSON, what follows from it included."""
    return asdict(row) | {"flops_per_byte": row.intensity, "bound": row.bound, "roofline_share": row.efficiency}


Priced = tuple[FloatArray, list[OperatorCall]]  # how many steps each entry stands for, and what runs in them


@dataclass(frozen=True, slots=True)
class SampledSteps:
    """shapes: the different steps; counts: how many there are of each."""

    shapes: tuple[BatchShape, ...]
    counts: tuple[int, ...]

    @property
    def n(self) -> int:
        return sum(self.counts)

    @property
    def tokens(self) -> int:
        """Of all steps."""
        return sum(s.tokens * n for s, n in zip(self.shapes, self.counts, strict=True))

    def seconds(self, cycle_s: Callable[[BatchShape], float]) -> float:
        """Of all steps, by the time of one."""
        return sum(cycle_s(s) * n for s, n in zip(self.shapes, self.counts, strict=True))

    def rows(self, lines: StepCalls, pricer: Pricer) -> list[OperatorRow]:
        """The operators of all steps, unpadded."""
        return [row for weights, here in self._priced(lines) for row in operator_rows(here, pricer, weights)]

    def _priced(self, lines: StepCalls) -> list[Priced]:
        tokens = self._column("tokens")
        found = [(self._weights, lines.rank(tokens, True) + lines.group(tokens * lines.shard.dp, True))]
        ending, prompts, decodes = (self._only(name) for name in ("logits", "prefill_chunks", "decodes"))
        if ending.shapes:
            found.append((ending._weights, lines.logits(ending._column("logits"))))
        if prompts.shapes:
            chunks, new = prompts._column("prefill_chunks"), prompts._column("prefill_tokens")
            prior = prompts._column("prefill_pairs") / new - new / chunks / 2
            found.append((prompts._weights, lines.prefill(chunks, new / chunks, prior)))
        if decodes.shapes:
            n = decodes._column("decodes")
            counts = (n, decodes._column("decode_context_sum") / n, decodes._column("decode_context_max"))
            found.append((decodes._weights, lines.decode(*counts)))
        return found

    def _only(self, count: str) -> SampledSteps:
        """Those that have some."""
        here = [(s, n) for s, n in zip(self.shapes, self.counts, strict=True) if getattr(s, count)]
        return SampledSteps(tuple(s for s, _ in here), tuple(n for _, n in here))

    def _column(self, name: str) -> FloatArray:
        return np.array([getattr(s, name) for s in self.shapes], dtype=np.float64)

    @property
    def _weights(self) -> FloatArray:
        return np.array(self.counts, dtype=np.float64)


def decode_step(sequences: int, context: int) -> SampledSteps:
    """One token for each of so many sequences of so many tokens."""
    return SampledSteps((BatchShape(0, 0.0, 0, sequences, sequences * context, context, sequences),), (1,))


@dataclass(frozen=True, slots=True)
class StepSelection:
    """How an engine cuts prompts: a step takes so many tokens of so many prompts at most; the last of them is cut where
    the budget ends, or (not chunked) waits, and a prompt beyond the budget runs alone."""

    budget_tokens: int
    seats: int
    chunked: bool = True


def prefill_steps(prompts: int, tokens: int, cut: StepSelection) -> SampledSteps:
    """Prompts of equal length, first come first served."""
    budget_tokens = cut.budget_tokens if cut.chunked else max(cut.budget_tokens // tokens, 1) * tokens
    found: Counter[tuple[int, float, int, int]] = Counter()
    left, done = prompts, 0  # prompts not complete; tokens of the first of them that are
    while left:
        room, chunks, new, pairs, ended = budget_tokens, 0, 0, 0.0, 0
        while room and left > ended and chunks < cut.seats:
            take = min(tokens - done, room)
            pairs += take * (done + take / 2)
            new, room, chunks = new + take, room - take, chunks + 1
            done += take
            if done == tokens:
                ended, done = ended + 1, 0
        left -= ended
        found[new, pairs, chunks, ended] += 1
    shapes = tuple(BatchShape(new, pairs, chunks, logits=ended) for new, pairs, chunks, ended in found)
    return SampledSteps(shapes, tuple(found.values()))
