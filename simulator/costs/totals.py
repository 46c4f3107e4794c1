"""Totals of a run, computed in one pass over its log: seconds by operator class, joules and calibration coverage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from calibration.operators.cost import ROOFLINE_ERROR, evidence_shares
from calibration.power.model import capped_w
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator
from simulator.core.step_log import COLUMNS, StepLog
from simulator.costs.partition import BatchRows
from simulator.costs.pricing import JOULES, N_CHANNELS, N_CLASSES
from simulator.costs.tables import DraftTables, StepTables
from simulator.costs.terms import Term
from simulator.layers.operator_call import CLASSES

#: Power of an accelerator between kernels, as a share of the range from idle power to TDP: clocks stay high while no
#: unit works. H100 boards of 700 W at high clocks with a loaded process and nothing to do read 109 to 145 W, 133 in the
#: mean of seven (NCCL issue 1550, gpu-burn issue 114), where the catalog's idle power is 115.
GAP_POWER_SHARE: Final = 0.03

#: Number of rows evaluated at once, which bounds memory.
CHUNK_ROWS: Final = 65536

_STEPS: Final = COLUMNS.index("steps")

_TOTAL_S: Final = COLUMNS.index("total_s")


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Sums over all simulated steps of a log."""

    seconds: dict[str, float]  # by class of `CLASSES`; "host" is the time of the steps beyond the device
    joules_per_accelerator: float  # during steps; the caller adds the idle time between them, at `idle_w`
    idle_w: float
    measured_fraction: float  # share of device time; the four fractions add up to 1 (0 for an empty log)
    interpolated_fraction: float
    borrowed_fraction: float  # from tables of another accelerator
    roofline_fraction: float
    expected_error: float  # relative error of the device time
    rank_wait_s: float = 0.0  # part of the device time that a rank waits for the slowest, mean over ranks

    @property
    def busy_s(self) -> float:
        """Return the seconds of all classes, including the host."""
        return sum(self.seconds.values())


def total(tables: StepTables, log: StepLog) -> StepTotals:
    """Return the totals of a log.

    A row that covers several steps is evaluated at its middle step, which is exact where time is linear. Kernels may
    exceed the power limit of the board for microseconds, but the mean power of a row may not. In a pipeline every
    accelerator works for its stage's share of a row. In the rest it computes other batches, or waits if only one is in
    flight (`ResolvedDeployment.batches_in_flight`).
    """
    sums, host, joules, waits = np.zeros(N_CHANNELS), 0.0, 0.0, 0.0
    for part in priced(tables, log):
        sums += part.device.sum(axis=0)
        host += float(part.host_s.sum())
        joules += float(part.joules.sum())
        waits += float(part.rank_wait_s.sum())
    seconds = dict(zip(CLASSES, sums[:N_CLASSES].tolist(), strict=True))
    device = sum(seconds.values())
    shares = evidence_shares(tables.pricer.evidence_s(sums), device)
    return StepTotals(
        seconds=seconds | {"host": host},
        joules_per_accelerator=joules,
        idle_w=tables.resolved.hardware.accelerator.idle_w,
        expected_error=_expected_error(tables, seconds, shares),
        rank_wait_s=waits,
        **shares,
    )


@dataclass(frozen=True, slots=True)
class PricedRows:
    """Seconds and joules of one accelerator for rows of a log, each summed over the steps of the row.

    For data-parallel ranks, times are those of the slowest rank and energy is the mean over ranks.

    Attributes:
        device: Channels. Shape (rows, N_CHANNELS).
        host_s: Seconds beyond the device time. Shape (rows,).
        joules: Shape (rows,).
        rank_wait_s: Seconds that a rank waits for the slowest, mean over ranks. Shape (rows,).
    """

    device: FloatArray
    host_s: FloatArray
    joules: FloatArray
    rank_wait_s: FloatArray


def priced(tables: StepTables, log: StepLog) -> Iterator[PricedRows]:
    """Yield the priced rows of a log in order, in chunks of at most CHUNK_ROWS."""
    share, mine = 1.0 / tables.resolved.batches_in_flight, 1.0 / tables.resolved.layout.pipeline_parallel
    unit = tables.resolved.hardware.accelerator
    for rows, shares in log.chunks(CHUNK_ROWS):
        steps, total_s = rows[:, _STEPS], rows[:, _TOTAL_S]
        if not log.n_ranks:
            device, lags = step_channels(tables, BatchRows.of_log(rows)), np.zeros(len(steps))
        else:
            device, lags, _ = ranked_channels(tables, BatchRows.of_ranks(rows, shares))
        device *= steps[:, None]
        lags *= steps
        waits = np.maximum(total_s - device[:, :N_CLASSES].sum(axis=1), 0.0)
        others_s = (share - mine) * device[:, :N_CLASSES].sum(axis=1)  # the batch is on the accelerators of others
        needed_j = device[:, JOULES] * mine + ((waits + lags) * share + others_s) * gap_w(unit)
        joules = np.minimum(needed_j, total_s * (capped_w(unit) * share))
        yield PricedRows(device * share, waits * share, joules, lags * share)


def speculative_seconds(tables: StepTables, log: StepLog) -> FloatArray:
    """Return the seconds of drafting in every row, on the device, or on the host for n-gram lookup. Shape (rows,)."""
    table, steps = log.table(), log.steps
    if tables.draft is not None and log.n_ranks:
        drafting, _ = _ranked_draft(tables.draft, BatchRows.of_ranks(table, log.shares))
        return np.asarray(drafting[:, :N_CLASSES].sum(axis=1) * steps)
    batches = BatchRows.of_log(table)
    if tables.draft is not None:
        return np.asarray(draft_channels(tables.draft, batches)[:, :N_CLASSES].sum(axis=1) * steps)
    host = tables.engine.host
    each = host.ngram_s_per_sequence + host.ngram_s_per_token * batches.mean_context
    return np.asarray(batches.decodes * each * steps / tables.partition.prompt_ranks)


def gap_w(unit: Accelerator) -> float:
    """Return the watts of an accelerator between kernels."""
    return unit.idle_w + GAP_POWER_SHARE * (unit.tdp_w - unit.idle_w)


def _expected_error(tables: StepTables, seconds: dict[str, float], shares: dict[str, float]) -> float:
    """Return the expected relative error of the device time.

    The held-out error of each class's worst operator family and the error of what the roofline or another accelerator
    prices are weighted by time and added in quadrature.
    """
    device = sum(seconds.values())
    if not device:
        return 0.0
    borrowed_error = tables.pricer.source.borrowed_error or 0.0
    terms = [shares["roofline_fraction"] * ROOFLINE_ERROR + shares["borrowed_fraction"] * borrowed_error]
    for kind, families in tables.pricer.families.items():
        worst = max(tables.pricer.source.relative_error(f) for f in families)
        if np.isfinite(worst):
            terms.append(worst * seconds[kind] / device)
    return float(np.sqrt(np.sum(np.square(terms))))


def step_channels(tables: StepTables, batches: BatchRows) -> FloatArray:
    """Return the channels of every batch, the same numbers that `StepCost` adds up. Shape (rows, N_CHANNELS)."""
    device = _pass_channels(tables, batches)
    return device if tables.draft is None else device + draft_channels(tables.draft, batches)


def draft_channels(draft: DraftTables, batches: BatchRows) -> FloatArray:
    """Return the channels of drafting alone. Shape (rows, N_CHANNELS)."""
    device = _pass_channels(draft.first, batches)
    if draft.passes:
        newest = batches.newest(draft.after_prompts)
        device += draft.passes * (newest.decodes > 0)[:, None] * _pass_channels(draft.again, newest)
    return device


def _pass_channels(tables: StepTables, batches: BatchRows) -> FloatArray:
    return _add(np.zeros((len(batches), N_CHANNELS)), tables, tables.terms(batches))


def _add(device: FloatArray, tables: StepTables, terms: Iterable[Term]) -> FloatArray:
    """Add the channels of the terms to `device` and return it. Shape of both: (batches, N_CHANNELS)."""
    for term in terms:
        if isinstance(term.rows, slice):  # all rows: an indexed sum would copy the array once more
            device += tables.read(term)
        else:
            device[term.rows] += tables.read(term)
    return device


class RankedChannels(NamedTuple):
    """The channels of steps in which data-parallel ranks hold unequal shares.

    Attributes:
        device: Channels of the slowest rank, but with the mean joules. Shape (rows, N_CHANNELS).
        wait_s: Seconds that a rank waits for the slowest, mean over ranks. Shape (rows,).
        slowest: Index of the slowest rank. Shape (rows,).
    """

    device: FloatArray
    wait_s: FloatArray
    slowest: npt.NDArray[np.int64]


def ranked_channels(tables: StepTables, ranks: Sequence[BatchRows]) -> RankedChannels:
    """Return the channels of steps with the given shares of the ranks, the same numbers as `StepCost.ranks_segment`."""
    found = ranked_pass(tables, ranks)
    if tables.draft is None:
        return found
    drafting, waits = _ranked_draft(tables.draft, ranks)
    return RankedChannels(found.device + drafting, found.wait_s + waits, found.slowest)


def _ranked_draft(draft: DraftTables, ranks: Sequence[BatchRows]) -> tuple[FloatArray, FloatArray]:
    """Return (channels of drafting, mean seconds that a rank waits in it) where ranks hold unequal shares."""
    device, lags, _ = ranked_pass(draft.first, ranks)
    if draft.passes:
        newest = [rank.newest(draft.after_prompts) for rank in ranks]
        more, waits, _ = ranked_pass(draft.again, newest)
        some = draft.passes * (np.sum([rank.decodes for rank in newest], axis=0) > 0)
        device, lags = device + some[:, None] * more, lags + some * waits
    return device, lags


def ranked_pass(tables: StepTables, ranks: Sequence[BatchRows]) -> RankedChannels:
    """Return the channels of one model's pass over steps whose ranks hold unequal shares."""
    n, terms = len(ranks[0]), tables.rank_terms(ranks)
    slowest, slowest_s = np.zeros((n, N_CHANNELS)), np.full(n, -1.0)
    mean_s, joules = np.zeros(n), np.zeros(n)
    place = np.zeros(n, dtype=np.int64)
    for i, own in enumerate(terms.own):
        device = _add(np.zeros((n, N_CHANNELS)), tables, own)
        seconds = device[:, :N_CLASSES].sum(axis=1)
        later = seconds > slowest_s
        slowest[later], slowest_s[later], place[later] = device[later], seconds[later], i
        mean_s += seconds / len(ranks)
        joules += device[:, JOULES] / len(ranks)
    slowest[:, JOULES] = joules
    return RankedChannels(_add(slowest, tables, terms.shared), slowest_s - mean_s, place)
