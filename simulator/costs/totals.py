"""What a whole run cost: seconds by operator class, joules, and how well the times are known. One pass over the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from calibration.power.model import capped_w
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator
from simulator.core.step_log import RankStepLog, StepLog, with_share
from simulator.costs.pricing import INTERPOLATED_S, JOULES, MEASURED_S, N_CHANNELS, N_CLASSES
from simulator.costs.tables import DraftTables, StepTables, graph_limit
from simulator.layers.operator_call import CLASSES

#: Accelerator power between kernels while the host is busy, as a share of the way from idle to TDP: clocks stay up and
#: no unit works. An assumption (an H100 in P0 with a context draws some 110-130 W against 70 W idle).
GAP_POWER_SHARE: Final = 0.08

#: Relative error assumed of operator times that rest on the uncalibrated roofline: our own default, not a measurement.
ROOFLINE_ERROR: Final = 0.3

#: Rows evaluated at once, to bound memory.
CHUNK_ROWS: Final = 65536


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Sums over every simulated step of a log."""

    seconds: dict[str, float]  # by class of `layers.CLASSES`, and "host": what the steps took beyond the device
    joules_per_accelerator: float  # while steps ran; idle time between them is the caller's, at `idle_w`
    idle_w: float
    measured_fraction: float  # of device time; the three add up to 1 (0 for an empty log)
    interpolated_fraction: float
    roofline_fraction: float
    expected_error: float  # relative, of device time
    rank_wait_s: float = 0.0  # of the device time: that a data-parallel rank waits for the slowest, mean over ranks

    @property
    def busy_s(self) -> float:
        return sum(self.seconds.values())


def total(tables: StepTables, log: StepLog) -> StepTotals:
    """Totals of a log; rows that stand for several steps are read at their middle step, exact where time is linear.

    Kernels may ask for more than the board's limit for microseconds; the mean of a row may not. In a pipeline every
    accelerator works for its stage's share of a row.
    """
    sums, host, joules, waits = np.zeros(N_CHANNELS), 0.0, 0.0, 0.0
    for part in priced(tables, log):
        sums += part.device.sum(axis=0)
        host += float(part.host_s.sum())
        joules += float(part.joules.sum())
        waits += float(part.rank_wait_s.sum())
    return replace(_totals(tables, sums, host, joules), rank_wait_s=waits)


@dataclass(frozen=True, slots=True)
class PricedRows:
    """What rows of a log took of one accelerator; arrays of one entry a row, of all its steps. Of data-parallel ranks:
    the time of the slowest, the energy of the mean."""

    device: FloatArray  # (rows, N_CHANNELS)
    host_s: FloatArray  # beyond the device
    joules: FloatArray
    rank_wait_s: FloatArray


def priced(tables: StepTables, log: StepLog) -> Iterator[PricedRows]:
    """The rows of a log in order, some at a time."""
    share = 1.0 / tables.resolved.layout.pipeline_parallel
    unit = tables.resolved.hardware.accelerator
    rows, shares = log.table(), log.shares if isinstance(log, RankStepLog) else None
    for first in range(0, len(rows), CHUNK_ROWS):
        here = slice(first, first + CHUNK_ROWS)
        batch = _Rows(rows[here])
        if shares is None:
            device, lags = step_channels(tables, batch), np.zeros(len(batch.steps))
        else:
            device, lags, _ = ranked_channels(tables, rows[here], shares[here])
        device *= batch.steps[:, None]
        lags *= batch.steps
        waits = np.maximum(batch.total_s - device[:, :N_CLASSES].sum(axis=1), 0.0)
        asked_j = device[:, JOULES] + (waits + lags) * gap_w(unit)
        joules = np.minimum(asked_j, batch.total_s * capped_w(unit))
        yield PricedRows(device * share, waits * share, joules * share, lags * share)


def speculative_seconds(tables: StepTables, log: StepLog) -> FloatArray:
    """Of every row: what drafting took, on the device, or on the host where drafts are looked up."""
    rows = _Rows(log.table())
    if tables.draft is not None and isinstance(log, RankStepLog):
        ranks = [_Rows(with_share(log.table(), log.shares[:, i])) for i in range(log.n_ranks)]
        return np.asarray(_ranked_draft(tables.draft, ranks)[0][:, :N_CLASSES].sum(axis=1) * rows.steps)
    if tables.draft is not None:
        return np.asarray(draft_channels(tables.draft, rows)[:, :N_CLASSES].sum(axis=1) * rows.steps)
    host = tables.engine.host
    each = host.ngram_s_per_sequence + host.ngram_s_per_token * rows.mean_context
    return np.asarray(rows.decodes * each * rows.steps / tables.prompt_split)


def gap_w(unit: Accelerator) -> float:
    """Of an accelerator between kernels."""
    return unit.idle_w + GAP_POWER_SHARE * (unit.tdp_w - unit.idle_w)


def _totals(tables: StepTables, sums: FloatArray, host: float, joules: float) -> StepTotals:
    unit = tables.resolved.hardware.accelerator
    seconds = dict(zip(CLASSES, (float(s) for s in sums[:N_CLASSES]), strict=True))
    device = sum(seconds.values())
    measured, interpolated = (float(sums[c]) / device if device else 0.0 for c in (MEASURED_S, INTERPOLATED_S))
    roofline = max(1.0 - measured - interpolated, 0.0) if device else 0.0
    return StepTotals(
        seconds | {"host": host},
        joules,
        unit.idle_w,
        measured,
        interpolated,
        roofline,
        _expected_error(tables, seconds, roofline),
    )


def _expected_error(tables: StepTables, seconds: dict[str, float], roofline: float) -> float:
    """Held-out error of each class's worst family and the roofline's own, weighted by time, added in quadrature."""
    device = sum(seconds.values())
    if not device:
        return 0.0
    terms = [roofline * ROOFLINE_ERROR]
    for kind, families in tables.pricer.families.items():
        worst = max(tables.pricer.source.relative_error(f) for f in families)
        if np.isfinite(worst):
            terms.append(worst * seconds[kind] / device)
    return float(np.sqrt(np.sum(np.square(terms))))


class _Rows:
    """Columns of a log table, by name."""

    def __init__(self, table: FloatArray) -> None:
        (_, self.steps, self.prefill_tokens, self.pairs, self.chunks, self.decodes, *rest) = table.T
        context_sum, context_max, self.logits, _, _, self.total_s, self.passes, _, _ = rest
        middle = (self.steps - 1.0) / 2.0
        self.mean_context = context_sum / np.maximum(self.decodes, 1.0) + middle
        self.max_context = context_max + middle

    def newest(self, of_prompts: bool) -> _Rows:
        """A further pass over the newest token of every sequence: decodes, and with `of_prompts` prompts as well."""
        found = copy(self)
        chunks = self.chunks * of_prompts
        ends = self.pairs / np.maximum(self.prefill_tokens, 1.0) + 0.5 * self.prefill_tokens / np.maximum(chunks, 1.0)
        found.decodes = found.logits = self.decodes + chunks
        found.mean_context = (self.mean_context * self.decodes + ends * chunks) / np.maximum(found.decodes, 1.0)
        found.max_context = np.where(chunks > 0, np.maximum(self.max_context, ends), self.max_context)
        found.chunks = found.prefill_tokens = found.pairs = np.zeros_like(self.chunks)
        found.passes = np.ones_like(self.passes)
        return found


def step_channels(tables: StepTables, rows: _Rows) -> FloatArray:
    """Channels of the middle step of every row, shape (rows, N_CHANNELS); the same numbers `StepCost` adds up."""
    device = _pass_channels(tables, rows)
    return device if tables.draft is None else device + draft_channels(tables.draft, rows)


def draft_channels(draft: DraftTables, rows: _Rows) -> FloatArray:
    """The same of drafting alone."""
    device = _pass_channels(draft.first, rows)
    if draft.passes:
        newest = rows.newest(draft.after_prompts)
        device += draft.passes * (newest.decodes > 0)[:, None] * _pass_channels(draft.again, newest)
    return device


def _pass_channels(tables: StepTables, rows: _Rows) -> FloatArray:
    split = tables.split
    parts = np.clip(rows.chunks, 1.0, tables.prompt_split)
    tokens = np.ceil(rows.decodes / split) * tables.queries
    tokens += np.ceil(rows.prefill_tokens / (parts * tables.context_ranks))
    graphed = tokens <= graph_limit(tables.resolved)
    ran = _ran(tables, tokens)
    dp = tables.group_ranks
    group = np.where(graphed, dp * ran, np.minimum(dp * tokens, rows.decodes * tables.queries + rows.prefill_tokens))
    scored = rows.logits + rows.decodes * (tables.scored - 1)
    device = tables.rank.at(ran) + tables.group.at(group) + tables.logits.at(np.ceil(scored / split))
    further = rows.passes - 1.0
    if further.any():
        device += further[:, None] * tables.one_token()
    _add_decode(tables, rows, tables.split, device)
    _add_prefill(tables, rows, parts, device)
    return device


def ranked_channels(
    tables: StepTables, rows: FloatArray, shares: FloatArray
) -> tuple[FloatArray, FloatArray, npt.NDArray[np.int64]]:
    """Channels of the middle step of every row where ranks hold unequal shares (rows, ranks, 7), the seconds a rank
    waits in it for the slowest, mean over ranks, and which that is; the same numbers as `StepCost.ranks_segment`.
    Shapes (rows, N_CHANNELS), of the slowest rank but with the mean joules, (rows,) and (rows,)."""
    ranks = [_Rows(with_share(rows, shares[:, i])) for i in range(shares.shape[1])]
    device, lags, place = _ranked(tables, ranks)
    if tables.draft is not None:
        drafting, waits = _ranked_draft(tables.draft, ranks)
        device, lags = device + drafting, lags + waits
    return device, lags, place


def _ranked_draft(draft: DraftTables, ranks: Sequence[_Rows]) -> tuple[FloatArray, FloatArray]:
    """Channels of drafting where ranks hold unequal shares, and what a rank waits in it, mean over ranks."""
    device, lags, _ = _ranked(draft.first, ranks)
    if draft.passes:
        newest = [rank.newest(draft.after_prompts) for rank in ranks]
        more, waits, _ = _ranked(draft.again, newest)
        some = draft.passes * (sum(rank.decodes for rank in newest) > 0)
        device, lags = device + some[:, None] * more, lags + some * waits
    return device, lags


def _ranked(tables: StepTables, ranks: Sequence[_Rows]) -> tuple[FloatArray, FloatArray, npt.NDArray[np.int64]]:
    own, queries, n = tables.split // tables.prompt_split, tables.queries, len(ranks[0].steps)
    tokens = np.stack(
        [np.ceil(r.decodes / own) * queries + np.ceil(r.prefill_tokens / tables.context_ranks) for r in ranks]
    )
    widest = tokens.max(axis=0)
    graphed = widest <= graph_limit(tables.resolved)
    slowest, slowest_s = np.zeros((n, N_CHANNELS)), np.full(n, -1.0)
    mean_s, joules = np.zeros(n), np.zeros(n)
    place = np.zeros(n, dtype=np.int64)
    for i, (rank, held) in enumerate(zip(ranks, tokens, strict=True)):
        device = tables.rank.at(_ran(tables, np.where(graphed, widest, held)))
        _add_decode(tables, rank, own, device)
        _add_prefill(tables, rank, np.ones(n), device)
        seconds = device[:, :N_CLASSES].sum(axis=1)
        later = seconds > slowest_s
        slowest[later], slowest_s[later], place[later] = device[later], seconds[later], i
        mean_s += seconds / len(ranks)
        joules += device[:, JOULES] / len(ranks)
    slowest[:, JOULES] = joules
    dp, held = tables.group_ranks, sum(rank.decodes * queries + rank.prefill_tokens for rank in ranks)
    group = np.where(graphed, dp * _ran(tables, widest), np.minimum(dp * widest, held))
    scored = tables.scored - 1
    logits = np.max([np.ceil((rank.logits + rank.decodes * scored) / own) for rank in ranks], axis=0)
    return slowest + tables.group.at(group) + tables.logits.at(logits), slowest_s - mean_s, place


def _ran(tables: StepTables, tokens: FloatArray) -> FloatArray:
    """Tokens that run where so many were scheduled."""
    padded = tables.padded
    ran: FloatArray = np.where(
        tokens < len(padded), padded[np.minimum(tokens, len(padded) - 1).astype(np.int64)], tokens
    )
    return ran


def _add_decode(tables: StepTables, rows: _Rows, split: int, device: FloatArray) -> None:
    for held, mine in ((tables.decode, rows.chunks == 0), (tables.mixed, rows.chunks > 0)):
        some = np.flatnonzero((rows.decodes > 0) & mine)
        n = np.ceil(rows.decodes[some] / split)
        device[some] += held.at(n, rows.mean_context[some], rows.max_context[some])


def _add_prefill(tables: StepTables, rows: _Rows, parts: FloatArray, device: FloatArray) -> None:
    some = np.flatnonzero(rows.chunks)
    each = rows.prefill_tokens[some] / rows.chunks[some]
    prior = rows.pairs[some] / rows.prefill_tokens[some] - each / 2.0
    device[some] += tables.prefill.at(rows.chunks[some] / parts[some], each, prior)
