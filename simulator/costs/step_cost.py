"""What a step costs: compiled once per deployment, read millions of times.

Compiling prices the operators of `layers` on a few hundred nodes and keeps plain Python lists. A step's time is then

    device_s = all tokens (padded to a CUDA graph) + logits + decode attention + prefill attention
    cycle_s  = max(device_s, host_s) + gap     where the engine schedules ahead
             = device_s + host_s + gap         where it does not

A step outside CUDA graphs (beyond the captured sizes; with prefill, where an engine captures decodes only) is launched
kernel by kernel, and its device_s is no less than that takes the host (`launches`).

An engine that runs a step in several parts (llama.cpp) reads its weights once in each: every pass beyond the first
costs what the weights cost a step of one token. It adds to a decode run as a constant.

There is no term for gaps between kernels: the operator tables were timed in graph replay or as whole layers and hold
them (decode steps of a real Llama-2-70B on four H100 come out 3 % short, which is host time).

Decode attention is piecewise linear in the mean context, for every number of decodes, plus a term linear in how far the
longest context lies above the mean. While every decode grows by one token a step that distance stays, so a run of
decode steps is an arithmetic series up to the next breakpoint (`decode_segment`).

Ranks: a `BatchShape` is what the whole replica holds. Data-parallel ranks share it evenly (a lone prompt sits on one
rank, which the others wait for), unless their shares are given (`ranks_segment`); context-parallel ranks share every
prompt. In a pipeline each batch in flight is a shape of its own; its time is that of all stages and the sends between
them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil, inf

import numpy as np

from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog
from simulator.core.step_timer import ENDLESS, Segment, no_less, slowest
from simulator.costs.partition import RankCounts
from simulator.costs.pricing import N_CLASSES
from simulator.costs.tables import DecodeTables, StepTables, graph_limit
from simulator.costs.totals import StepTotals, total

Cell = tuple[float, float, float, float, float, float]


class StepCost:
    """Seconds per engine step of one deployment. Build with `compile`."""

    def __init__(self, tables: StepTables) -> None:
        self.tables = tables
        host = tables.engine.host
        self._overlaps = tables.engine.async_scheduling
        self._host_s, self._host_per_sequence_s = host.step_s, host.step_s_per_sequence
        self._gap_s = host.step_gap_s
        self._launch_s = tables.launch_s
        self._graphed = graph_limit(tables.resolved)
        self._graphed_prefill = self._graphed if tables.engine.graphs_with_prefill else 0
        partition = tables.partition
        self._counts, self._rank_counts = partition.rank_counts, partition.within_rank.rank_counts
        self._eager_group_tokens = partition.eager_group_tokens
        self._prompt_ranks = partition.prompt_ranks
        self._rank = tables.rank_seconds()
        self._group = tables.group_seconds()
        self._logits = tables.logits_seconds()
        self._pass_s = float(tables.one_token()[:N_CLASSES].sum())  # of every pass beyond the first
        # Decode-only steps: everything but attention, attention, least time, what is added to either
        self._rows: dict[int, tuple[float, list[Cell], float, float]] = {}
        self._alone: dict[int, list[Cell]] = {}  # attention of decodes in steps without prompts, by decodes on a rank
        self._mixed: dict[int, list[Cell]] = {}  # the same in steps with prompts
        self._contexts: list[float] = tables.decode.contexts.tolist()
        self._last_cell = len(self._contexts) - 2
        self._prefill = tables.prefill.values[..., :N_CLASSES].sum(axis=-1).tolist()
        self._chunks, self._chunk_tokens, self._prior = (a.tolist() for a in tables.prefill.axes)
        self._planes: dict[float, list[tuple[list[list[float]], float]]] = {}  # of prefill, with weights, by chunks
        graphed = np.arange(min(len(tables.padded), self._graphed + 1), dtype=np.float64)
        padded = tables.group_tokens(graphed, np.zeros_like(graphed)).astype(np.int64).tolist()
        self._graphed_group = [_read(self._group, tokens) for tokens in padded]  # by tokens that a graph pads

    def totals(self, log: StepLog) -> StepTotals:
        """Seconds by operator class, joules and calibration coverage of everything in the log."""
        return total(self.tables, log)

    def cycle_s(self, shape: BatchShape) -> float:
        """Seconds from the start of this step to the start of the next."""
        if shape.ranks:
            return self.ranks_segment(shape.ranks)[0]
        n = shape.decodes
        if not shape.prefill_tokens and shape.logits == n and n and shape.passes == 1:
            return self.decode_segment(n, shape.decode_context_sum, shape.decode_context_max)[0]
        device = self._batch_s(shape)
        return self._cycle(device, n + shape.prefill_chunks)

    def decode_segment(self, decodes: int, context_sum: int, context_max: int) -> tuple[float, float, int]:
        """(t0, slope, steps): step j (0-based, j < steps) of this decode-only batch takes t0 + slope * j seconds.

        Every decode grows by one token a step. t0 is `cycle_s` of the same shape, bit for bit.
        """
        row = self._rows.get(decodes)
        if row is None:
            row = self._row(decodes)
        mean = context_sum / decodes
        k = bisect_right(self._contexts, mean) - 1
        k = 0 if k < 0 else k if k < self._last_cell else self._last_cell
        base, grow, skew, skew_grow, start, end = row[1][k]
        beyond, above = mean - start, context_max - mean
        device = row[0] + (base + grow * beyond + above * (skew + skew_grow * beyond))
        slope = grow + above * skew_grow
        steps = ENDLESS if end == inf else ceil(end - mean)
        least, after = row[2], row[3]
        if device >= least:
            if slope < 0.0:
                steps = min(steps, int((device - least) / -slope) + 1)
            return device + after, slope, steps
        if slope > 0.0:
            steps = min(steps, ceil((least - device) / slope))
        return least + after, 0.0, steps

    def ranks_segment(self, ranks: Sequence[BatchShape | None]) -> Segment:
        """The same of data-parallel ranks with these shares (None: a dummy batch); 1 step where one has a prompt.

        Each layer's exchange of tokens waits for the slowest rank's attention and dense parts; what follows it is the
        expert group's, for the tokens of all. Graphs pad every rank to the widest, and run only where all can.
        """
        device, slope, steps, eager, sequences = self._ranks_device(ranks)
        least = self._launch_s if eager else 0.0
        host, after = self._host_s + self._host_per_sequence_s * sequences, self._gap_s
        if self._overlaps:
            least = host if host > least else least
        else:
            after += host
        return no_less(device, slope, steps, least, after)

    def _ranks_device(self, ranks: Sequence[BatchShape | None]) -> tuple[float, float, int, bool, int]:
        """(device seconds, slope, steps) of that, whether it runs outside graphs, and the most sequences of a rank."""
        of = self._rank_counts
        chunked, most, logits, tokens, sequences = False, 0, 0, 0, 0
        held: list[tuple[BatchShape, RankCounts]] = []
        for shape in ranks:
            if shape is None:
                continue
            counts = of(shape)
            held.append((shape, counts))
            own, all_own, rows, _, _, chunks = counts
            if chunks:
                chunked = True
            most = own if own > most else most
            logits = rows if rows > logits else logits
            tokens += all_own
            n = shape.decodes + shape.prefill_chunks
            sequences = n if n > sequences else sequences
        dense = _read(self._rank, most)
        padded = most <= self._graphed
        device, slope, steps = slowest(
            [self._rank_segment(s, each, dense if padded else _read(self._rank, each[0])) for s, each in held]
        )
        device += _read(self._logits, logits)
        device += self._group_s(most, tokens)
        return device, slope, steps, most > (self._graphed_prefill if chunked else self._graphed), sequences

    def _rank_segment(self, shape: BatchShape, counts: RankCounts, dense: float) -> Segment:
        """Attention of one rank's share, and its dense parts."""
        n, decodes, chunks = shape.decodes, counts[4], counts[5]
        if chunks:
            if n:
                cells = self._mixed.get(decodes) or self._attention_cells(decodes, True)
                dense += self._decode_attention_s(cells, shape.decode_context_sum / n, shape.decode_context_max)
            return dense + self._prefill_attention_s(chunks, shape.chunk_tokens, shape.prior_tokens), 0.0, 1
        cells = self._alone.get(decodes) or self._attention_cells(decodes, False)
        mean = shape.decode_context_sum / n
        k = bisect_right(self._contexts, mean) - 1
        base, grow, skew, skew_grow, start, end = cells[0 if k < 0 else k if k < self._last_cell else self._last_cell]
        beyond, above = mean - start, shape.decode_context_max - mean
        seconds = dense + (base + grow * beyond + above * (skew + skew_grow * beyond))
        return seconds, grow + above * skew_grow, ENDLESS if end == inf else ceil(end - mean)

    def _cycle(self, device: float, sequences: int) -> float:
        host = self._host_s + self._host_per_sequence_s * -(-sequences // self._prompt_ranks)
        if self._overlaps:
            return (device if device >= host else host) + self._gap_s
        return device + host + self._gap_s

    def _batch_s(self, shape: BatchShape) -> float:
        """Device seconds of any batch."""
        tokens, batch_tokens, logits, further, decodes, chunks = self._counts(shape)
        seconds = 0.0
        if decodes:
            known = self._mixed if chunks else self._alone
            cells = known.get(decodes) or self._attention_cells(decodes, chunks > 0)
            mean = shape.decode_context_sum / shape.decodes
            seconds = self._decode_attention_s(cells, mean, shape.decode_context_max)
        if chunks:
            seconds += self._prefill_attention_s(chunks, shape.chunk_tokens, shape.prior_tokens)
        seconds += _read(self._rank, tokens) + _read(self._logits, logits)
        if further:
            seconds += further * self._pass_s
        seconds += self._group_s(tokens, batch_tokens)
        if seconds < self._launch_s and tokens > (self._graphed_prefill if chunks else self._graphed):
            return self._launch_s
        return seconds

    def _group_s(self, tokens: int, batch_tokens: int) -> float:
        """Experts of a group whose widest rank holds `tokens`, and whose ranks hold `batch_tokens` together."""
        if tokens < len(self._graphed_group):
            return self._graphed_group[tokens]
        return _read(self._group, self._eager_group_tokens(tokens, batch_tokens))

    def _attention_cells(self, decodes: int, mixed: bool) -> list[Cell]:
        """Compile attention of `decodes` on a rank along their mean context; mixed: in a step with prompts."""
        known = self._mixed if mixed else self._alone
        known[decodes] = self._cells(self.tables.mixed if mixed else self.tables.decode, decodes)
        return known[decodes]

    def _decode_attention_s(self, cells: list[Cell], mean: float, longest: float) -> float:
        k = bisect_right(self._contexts, mean) - 1
        k = 0 if k < 0 else k if k < self._last_cell else self._last_cell
        base, grow, skew, skew_grow, start, _ = cells[k]
        beyond = mean - start
        return base + grow * beyond + (longest - mean) * (skew + skew_grow * beyond)

    def _prefill_attention_s(self, chunks: float, each: float, prior: float) -> float:
        planes = self._planes.get(chunks)
        if planes is None:
            i, a = _cell(self._chunks, chunks)
            both = (self._prefill[i], 1.0 - a), (self._prefill[i + 1], a)
            planes = self._planes[chunks] = [(plane, u) for plane, u in both if u]
        j, b = _cell(self._chunk_tokens, each)
        k, c = _cell(self._prior, prior)
        total = 0.0
        for plane, u in planes:
            low, high = plane[j], plane[j + 1]
            total += u * (
                (1.0 - b) * (low[k] + c * (low[k + 1] - low[k])) + b * (high[k] + c * (high[k + 1] - high[k]))
            )
        return total

    def _row(self, decodes: int) -> tuple[float, list[Cell], float, float]:
        """(everything but attention, attention cells along the mean context, least time, what is added) of a
        decode-only step."""
        tokens, batch_tokens, logits, _, own, _ = self._counts(BatchShape(decodes=decodes, logits=decodes))
        offset = _read(self._rank, tokens) + _read(self._logits, logits) + self._group_s(tokens, batch_tokens)
        least = self._launch_s if tokens > self._graphed else 0.0
        each = -(-decodes // self._prompt_ranks)  # every data-parallel rank schedules its own
        host, after = self._host_s + self._host_per_sequence_s * each, self._gap_s
        if self._overlaps:
            least = max(least, host)
        else:
            after += host
        row = self._rows[decodes] = (offset, self._alone.get(own) or self._attention_cells(own, False), least, after)
        return row

    def _cells(self, tables: DecodeTables, decodes: int) -> list[Cell]:
        """Compile attention of `decodes` on a rank into pieces along the mean context.

        Each is (time, slope, the same two of the skew term, first and last context).
        """
        base, skew = tables.seconds(decodes)
        contexts = self._contexts
        cells: list[Cell] = []
        for k in range(self._last_cell + 1):
            width = contexts[k + 1] - contexts[k]
            end = contexts[k + 1] if k < self._last_cell else inf
            grow, skew_grow = (base[k + 1] - base[k]) / width, (skew[k + 1] - skew[k]) / width
            cells.append((base[k], grow, skew[k], skew_grow, contexts[k], end))
        return cells


def _read(values: list[float], index: int) -> float:
    """An entry of a list over 0..len-1, continued straight past its end (budgets raised after compiling)."""
    if index < len(values):
        return values[index]
    return values[-1] + (values[-1] - values[-2]) * (index - len(values) + 1)


def _cell(axis: list[float], x: float) -> tuple[int, float]:
    i, last = bisect_right(axis, x) - 1, len(axis) - 2
    i = 0 if i < 0 else i if i < last else last
    start = axis[i]
    return i, (x - start) / (axis[i + 1] - start)
