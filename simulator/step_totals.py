"""What a whole run cost: seconds by operator class, joules, and how well the times are known. One pass over the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from calibration.power import capped_w
from catalogs.hardware import Accelerator
from simulator.line import CLASSES
from simulator.pricing import INTERPOLATED_S, JOULES, MEASURED_S, N_CHANNELS, N_CLASSES
from simulator.step_log import StepLog
from simulator.step_tables import StepTables, graph_limit
from simulator.table import FloatArray

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

    @property
    def busy_s(self) -> float:
        return sum(self.seconds.values())


def total(tables: StepTables, log: StepLog) -> StepTotals:
    """Totals of a log; rows that stand for several steps are read at their middle step, exact where time is linear.

    Kernels may ask for more than the board's limit for microseconds; the mean of a row may not. In a pipeline every
    accelerator works for its stage's share of a row.
    """
    sums, host, joules = np.zeros(N_CHANNELS), 0.0, 0.0
    for part in priced(tables, log):
        sums += part.device.sum(axis=0)
        host += float(part.host_s.sum())
        joules += float(part.joules.sum())
    return _totals(tables, sums, host, joules)


@dataclass(frozen=True, slots=True)
class PricedRows:
    """What rows of a log took of one accelerator; arrays of one entry a row, of all its steps."""

    device: FloatArray  # (rows, N_CHANNELS)
    host_s: FloatArray  # beyond the device
    joules: FloatArray


def priced(tables: StepTables, log: StepLog) -> Iterator[PricedRows]:
    """The rows of a log in order, some at a time."""
    share = 1.0 / tables.resolved.layout.pipeline_parallel
    unit = tables.resolved.hardware.accelerator
    rows = log.table()
    for first in range(0, len(rows), CHUNK_ROWS):
        batch = _Rows(rows[first : first + CHUNK_ROWS])
        device = step_channels(tables, batch) * batch.steps[:, None]
        waits = np.maximum(batch.total_s - device[:, :N_CLASSES].sum(axis=1), 0.0)
        asked_j = device[:, JOULES] + waits * gap_w(unit)
        joules = np.minimum(asked_j, batch.total_s * capped_w(unit))
        yield PricedRows(device * share, waits * share, joules * share)


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
        context_sum, context_max, self.logits, _, _, self.total_s, self.passes, _ = rest
        middle = (self.steps - 1.0) / 2.0
        self.mean_context = context_sum / np.maximum(self.decodes, 1.0) + middle
        self.max_context = context_max + middle


def step_channels(tables: StepTables, rows: _Rows) -> FloatArray:
    """Channels of the middle step of every row, shape (rows, N_CHANNELS); the same numbers `StepCost` adds up."""
    split, padded = tables.split, tables.padded
    parts = np.clip(rows.chunks, 1.0, tables.prompt_split)
    tokens = np.ceil(rows.decodes / split) + np.ceil(rows.prefill_tokens / (parts * tables.context_ranks))
    graphed = tokens <= graph_limit(tables.resolved)
    ran = np.where(tokens < len(padded), padded[np.minimum(tokens, len(padded) - 1).astype(np.int64)], tokens)
    dp = tables.group_ranks
    group = np.where(graphed, dp * ran, np.minimum(dp * tokens, rows.decodes + rows.prefill_tokens))
    device = tables.rank.at(ran) + tables.group.at(group) + tables.logits.at(np.ceil(rows.logits / split))
    further = rows.passes - 1.0
    if further.any():
        device += further[:, None] * tables.one_token()
    _add_decode(tables, rows, device)
    _add_prefill(tables, rows, parts, device)
    return device


def _add_decode(tables: StepTables, rows: _Rows, device: FloatArray) -> None:
    for held, mine in ((tables.decode, rows.chunks == 0), (tables.mixed, rows.chunks > 0)):
        some = np.flatnonzero((rows.decodes > 0) & mine)
        n = np.ceil(rows.decodes[some] / tables.split)
        device[some] += held.at(n, rows.mean_context[some], rows.max_context[some])


def _add_prefill(tables: StepTables, rows: _Rows, parts: FloatArray, device: FloatArray) -> None:
    some = np.flatnonzero(rows.chunks)
    each = rows.prefill_tokens[some] / rows.chunks[some]
    prior = rows.pairs[some] / rows.prefill_tokens[some] - each / 2.0
    device[some] += tables.prefill.at(rows.chunks[some] / parts[some], each, prior)
