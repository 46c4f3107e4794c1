"""Compute the duration of an engine step; a deployment is compiled once, and millions of its steps are evaluated.

Compiling prices the operators of `simulator.layers` at a few hundred nodes and keeps the results in plain Python
lists. The duration of a step is then

    device_s = all tokens (padded to a CUDA graph) + logits + decode attention + prefill attention
    cycle_s  = max(device_s, host_s) + gap     if the engine schedules ahead
             = device_s + host_s + gap         if it does not

The host launches a step kernel by kernel when the step runs outside CUDA graphs: beyond the captured sizes, or with
prefill where the engine captures decodes only. The device time of such a step is at least the launch time
(`StepTables.launch_s`).

An engine that runs a step in several passes (llama.cpp) reads its weights once in each pass. Every pass beyond the
first costs as much as the weights cost a step of one token. A run of decode steps contains it as a constant.

There is no term for gaps between kernels. The operator tables were measured in graph replay or as whole layers and
already contain these gaps (predicted decode steps of a real Llama-2-70B on four H100 are 3 % short, which is host
time).

Decode attention is piecewise linear in the mean context for every number of decodes, plus a term that is linear in the
distance of the longest context above the mean. Every decode grows by one token a step, so this distance stays
constant, and a run of decode steps is an arithmetic series up to the next breakpoint (`decode_segment`).

A `BatchShape` describes the batch of the whole replica. Data-parallel ranks share it evenly (a single prompt is on one
rank, and the others wait for it) unless their shares are given (`ranks_segment`). Context-parallel ranks share every
prompt. In a pipeline each batch in flight is a shape of its own. Its time is the sum over all stages and the sends
between them; how it divides among the stages is up to the replica (simulator/engine/replica.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from math import ceil, inf

import numpy as np

from simulator.core.batch import (
    Batch,
    BatchShape,
    Encoding,
    TowerWork,
    mean_chunk_tokens,
    mean_prior_tokens,
)
from simulator.core.mypyc_modules import mypyc_attr
from simulator.core.step_log import StepLog
from simulator.core.step_timer import ENDLESS, Segment, no_less, slowest
from simulator.costs.partition import RankCounts
from simulator.costs.pricing import N_CLASSES
from simulator.costs.tables import StepTables, graph_limit
from simulator.costs.totals import StepTotals, total

Cell = tuple[float, float, float, float, float, float]

#: Linear pieces along the mean context; None where no step was in the piece yet.
Cells = list[Cell | None]


@mypyc_attr(allow_interpreted_subclasses=True)
class StepCost:
    """Seconds per engine step of one deployment. Use `compile_step_cost` to build one."""

    def __init__(self, tables: StepTables) -> None:
        self.tables = tables
        host = tables.engine.host
        self._overlaps = tables.engine.async_scheduling and tables.engine.overlaps_host
        self._host_s, self._host_per_sequence_s = host.step_s, host.step_s_per_sequence
        self._gap_s = host.step_gap_s + tables.pieces_s
        self._launch_s, self._decode_launch_s = tables.launch_s, tables.decode_launch_s
        self._graphed = graph_limit(tables.resolved)
        self._graphed_prefill = self._graphed if tables.engine.graphs_with_prefill else 0
        partition = tables.partition
        self._counts, self._rank_counts = partition.rank_counts, partition.within_rank.rank_counts
        self._eager_group_tokens = partition.eager_group_tokens
        self._prompt_ranks = partition.prompt_ranks
        self._rank, self._logits = tables.seconds("rank"), tables.seconds("logits")
        self._grouped = not tables.group.is_zero  # whether there are experts
        self._group = tables.seconds("group") if self._grouped else array("d", (0.0, 0.0))  # No step has a group time.
        self._pass_s = float(tables.one_token()[:N_CLASSES].sum())  # each pass beyond the first
        # Decode-only steps by number of decodes; see `_row`
        self._rows: dict[int, tuple[float, Cells, float, float, int]] = {}
        self._alone: dict[int, Cells] = {}  # attention in steps without prompts, by decodes on a rank
        # The same in steps with prompts
        self._mixed: dict[int, Cells] = self._alone if tables.mixed is tables.decode else {}
        self._contexts: list[float] = tables.decode.even.axes[1].tolist()
        self._bounds = self._contexts[1:-1]  # between the cells, of which the first and the last have no outer bound
        # Seconds of prefill attention by (tokens of a chunk, tokens before it), by node of the number of chunks.
        self._prefill: dict[int, list[list[float]]] = {}
        self._chunks, self._chunk_tokens, self._prior = (a.tolist() for a in tables.prefill.axes)
        self._chunk_bounds, self._prior_bounds = self._chunk_tokens[1:-1], self._prior[1:-1]  # as `_bounds`
        # Prefill planes and their weights, by number of chunks.
        self._planes: dict[float, list[tuple[list[list[float]], float]]] = {}
        graphed = np.arange(min(len(tables.padded), self._graphed + 1), dtype=np.float64)
        padded = tables.group_tokens(graphed, np.zeros_like(graphed)).astype(np.int64).tolist()
        self._graphed_group = [_read(self._group, tokens) for tokens in padded]  # by scheduled tokens, before padding

    def totals(self, log: StepLog) -> StepTotals:
        """Return seconds by operator class, joules and calibration coverage, summed over the steps of a log."""
        return total(self.tables, log)

    def cycle_s(self, shape: BatchShape) -> float:
        """Return the seconds from the start of this step to the start of the next."""
        if shape.ranks:
            return self.ranks_segment(shape.ranks)[0]
        n = shape.decodes
        if not shape.prefill_tokens and shape.logits == n and n and shape.passes == 1:
            return self.decode_segment(n, shape.decode_context_sum, shape.decode_context_max)[0]
        device = self._batch_s(shape)
        return self._cycle(device, n + shape.prefill_chunks)

    def output_s(self, shape: BatchShape) -> float:
        """Return the seconds of the output projection and of sampling, which `cycle_s` includes."""
        return _read(self._logits, self._counts(shape)[2])

    def encoding_s(self, encoding: Encoding) -> float:
        """Return the seconds by which encoding these items makes a step longer."""
        return sum([tower.seconds(getattr(encoding, tower.name)) for tower in self.tables.towers])

    def step_s(self, shape: BatchShape) -> float:
        """Return the seconds of a step with the items that it encodes, if it is a batch that has any."""
        moves = shape.moves if isinstance(shape, Batch) else None
        encoding = None if moves is None else moves.encoding
        return self.cycle_s(shape) + (0.0 if encoding is None else self.encoding_s(encoding))

    def encoding_total_s(self, log: StepLog) -> float:
        """Return the seconds of encoding images, videos and audio in all steps of a log."""
        return sum(
            [
                tower.seconds(TowerWork(0, int(units), int(patches), pairs))
                for tower in self.tables.towers
                for units, patches, pairs in zip(*(column.tolist() for column in tower.counts(log)), strict=True)
                if units
            ]
        )

    def decode_segment(self, decodes: int, context_sum: float, context_max: float) -> tuple[float, float, int]:
        """Return (t0, slope, steps): step j (0-based, j < steps) of a decode-only batch takes t0 + slope * j seconds.

        Every decode grows by one token a step. t0 equals `cycle_s` of the same shape, bit for bit.
        """
        row = self._rows.get(decodes)
        if row is None:
            row = self._row(decodes)
        mean = context_sum / decodes
        k = bisect_right(self._bounds, mean)
        base, grow, skew, skew_grow, start, end = row[1][k] or self._attention_cell(row[1], row[4], k, False)
        beyond, above = mean - start, context_max - mean
        device = row[0] + (base + grow * beyond + above * (skew + skew_grow * beyond))
        slope = grow + above * skew_grow
        steps = ENDLESS if end == inf else ceil(end - mean)
        least, after = row[2], row[3]
        # As `no_less` (simulator/core/step_timer.py), written out to save a call for every run of steps.
        if device >= least:
            if slope < 0.0:
                steps = min(steps, int((device - least) / -slope) + 1)
            return device + after, slope, steps
        if slope > 0.0:
            steps = min(steps, ceil((least - device) / slope))
        return least + after, 0.0, steps

    def ranks_segment(self, ranks: Sequence[BatchShape | None]) -> Segment:
        """Return (t0, slope, steps) for data-parallel ranks with unequal shares of the batch.

        The exchange of tokens in each layer waits for the attention and the dense parts of the slowest rank. The
        experts that follow compute the tokens of all ranks. CUDA graphs pad every rank to the widest one and run only
        if every rank can use them.

        Args:
            ranks: The share of each rank; None stands for a dummy batch. If any rank has a prompt, the result covers
                one step.
        """
        device, slope, steps, eager, sequences = self._ranks_device(ranks)
        return no_less(device, slope, steps, *self._host_bounds(eager, sequences))

    def _host_bounds(self, eager: bool, sequences: int) -> tuple[float, float]:
        """Return (minimum device seconds, added seconds) of a step, because of what the host does for it.

        Args:
            eager: Whether the step runs outside CUDA graphs.
            sequences: The largest number of sequences on a rank.
        """
        least, after = self._decode_launch_s if eager else 0.0, self._gap_s
        host = self._host_s + self._host_per_sequence_s * sequences
        return (max(least, host), after) if self._overlaps else (least, after + host)

    def _ranks_device(self, ranks: Sequence[BatchShape | None]) -> tuple[float, float, int, bool, int]:
        """Return (device seconds, slope, steps, runs outside CUDA graphs, largest number of sequences on a rank)."""
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
        """Return the segment of one rank's attention, with the seconds of its dense parts added."""
        n, decodes, chunks = shape.decodes, counts[4], counts[5]
        if chunks:
            if n:
                mean = shape.decode_context_sum / n
                dense += self._decode_attention_s(decodes, mean, shape.decode_context_max, True)
            return dense + self._prefill_attention_s(chunks, shape.chunk_tokens, shape.prior_tokens), 0.0, 1
        cells = self._alone.get(decodes) or self._attention_cells(decodes, False)
        mean = shape.decode_context_sum / n
        k = bisect_right(self._bounds, mean)
        base, grow, skew, skew_grow, start, end = cells[k] or self._attention_cell(cells, decodes, k, False)
        beyond, above = mean - start, shape.decode_context_max - mean
        seconds = dense + (base + grow * beyond + above * (skew + skew_grow * beyond))
        return seconds, grow + above * skew_grow, ENDLESS if end == inf else ceil(end - mean)

    def _cycle(self, device: float, sequences: int) -> float:
        """Combine device time and host time into the duration of a step."""
        host = self._host_s + self._host_per_sequence_s * -(-sequences // self._prompt_ranks)
        if self._overlaps:
            return (device if device >= host else host) + self._gap_s
        return device + host + self._gap_s

    def _batch_s(self, shape: BatchShape) -> float:
        """Return the device seconds of a batch that the ranks share evenly."""
        tokens, batch_tokens, logits, further, decodes, chunks = self._counts(shape)
        seconds = 0.0
        if decodes:
            mean = shape.decode_context_sum / shape.decodes
            seconds = self._decode_attention_s(decodes, mean, shape.decode_context_max, chunks > 0)
        if chunks:
            prompts, pairs, n = shape.prefill_tokens, shape.prefill_pairs, shape.prefill_chunks
            prior = mean_prior_tokens(prompts, pairs, n)
            seconds += self._prefill_attention_s(chunks, mean_chunk_tokens(prompts, n), prior)
        rank, read = self._rank, self._logits  # as `_read`, without its calls where the tables reach
        seconds += (rank[tokens] if tokens < len(rank) else _read(rank, tokens)) + (
            read[logits] if logits < len(read) else _read(read, logits)
        )
        if further:
            seconds += further * self._pass_s
        if self._grouped:
            seconds += self._group_s(tokens, batch_tokens)
        least = self._launch_s if chunks else self._decode_launch_s
        if seconds < least and tokens > (self._graphed_prefill if chunks else self._graphed):
            return least
        return seconds

    def _group_s(self, tokens: int, batch_tokens: int) -> float:
        """Return the seconds of an expert group.

        Args:
            tokens: Tokens of the widest rank.
            batch_tokens: Tokens of all ranks together.
        """
        if tokens < len(self._graphed_group):
            return self._graphed_group[tokens]
        return _read(self._group, self._eager_group_tokens(tokens, batch_tokens))

    def _attention_cells(self, decodes: int, mixed: bool) -> Cells:
        """Return the linear pieces of decode attention on one rank, of which none is compiled yet.

        Args:
            decodes: Decodes on one rank.
            mixed: Whether the step also contains prompts.
        """
        cells: Cells = [None] * (len(self._contexts) - 1)
        (self._mixed if mixed else self._alone)[decodes] = cells
        return cells

    def _attention_cell(self, cells: Cells, decodes: int, k: int, mixed: bool) -> Cell:
        """Compile piece `k` of `cells`: most runs stay within a few of them.

        The piece is (seconds, slope, skew seconds, skew slope, first context, last context).
        """
        base, skew = (self.tables.mixed if mixed else self.tables.decode).seconds(decodes, k)
        start, end = self._contexts[k], self._contexts[k + 1]
        width = end - start
        grow, skew_grow = (base[1] - base[0]) / width, (skew[1] - skew[0]) / width
        cell = cells[k] = base[0], grow, skew[0], skew_grow, start, end if k < len(cells) - 1 else inf
        return cell

    def _decode_attention_s(self, decodes: int, mean: float, longest: float, mixed: bool) -> float:
        cells = (self._mixed if mixed else self._alone).get(decodes) or self._attention_cells(decodes, mixed)
        k = bisect_right(self._bounds, mean)
        base, grow, skew, skew_grow, start, _ = cells[k] or self._attention_cell(cells, decodes, k, mixed)
        beyond = mean - start
        return base + grow * beyond + (longest - mean) * (skew + skew_grow * beyond)

    def _prefill_attention_s(self, chunks: float, each: float, prior: float) -> float:
        planes = self._planes.get(chunks)
        if planes is None:
            i = bisect_right(self._chunks, chunks, 1, len(self._chunks) - 1) - 1
            a = (chunks - self._chunks[i]) / (self._chunks[i + 1] - self._chunks[i])
            both = (i, 1.0 - a), (i + 1, a)
            planes = self._planes[chunks] = [(self._prefill_plane(node), u) for node, u in both if u]
        lengths, priors = self._chunk_tokens, self._prior
        j, k = bisect_right(self._chunk_bounds, each), bisect_right(self._prior_bounds, prior)
        b = (each - lengths[j]) / (lengths[j + 1] - lengths[j])
        c = (prior - priors[k]) / (priors[k + 1] - priors[k])
        total = 0.0
        for plane, u in planes:
            low, high = plane[j], plane[j + 1]
            total += u * (
                (1.0 - b) * (low[k] + c * (low[k + 1] - low[k])) + b * (high[k] + c * (high[k + 1] - high[k]))
            )
        return total

    def _prefill_plane(self, node: int) -> list[list[float]]:
        """Return the seconds of prefill attention at a node of the number of chunks: few steps need more than two.

        The lists are by tokens of a chunk, and within these by tokens before it.
        """
        plane = self._prefill.get(node)
        if plane is None:
            plane = self._prefill[node] = self.tables.prefill.at_nodes(node)[..., :N_CLASSES].sum(axis=-1).tolist()
        return plane

    def _row(self, decodes: int) -> tuple[float, Cells, float, float, int]:
        """Return what a decode-only step of one size needs.

        This is (seconds without attention, attention cells, minimum seconds, added seconds, decodes on a rank).
        """
        tokens, batch_tokens, logits, _, own, _ = self._counts(BatchShape(decodes=decodes, logits=decodes))
        offset = _read(self._rank, tokens) + _read(self._logits, logits) + self._group_s(tokens, batch_tokens)
        each = -(-decodes // self._prompt_ranks)  # every data-parallel rank schedules its own decodes
        cells = self._alone.get(own) or self._attention_cells(own, False)
        row = self._rows[decodes] = (offset, cells, *self._host_bounds(tokens > self._graphed, each), own)
        return row


class EncoderCost(StepCost):
    """Seconds per step of a replica of an encoder pool, which runs only the towers.

    The host prepares the next step while the towers run, if the engine schedules ahead: a step takes the longer of
    both. Otherwise the host's time comes on top, as in steps of a language model.
    """

    def cycle_s(self, shape: BatchShape) -> float:
        """Return the seconds of a step beyond those in which it encodes (`encoding_s`)."""
        host = self._host_s + self._host_per_sequence_s * (shape.decodes + shape.prefill_chunks)
        if not self._overlaps:
            return host + self._gap_s
        moves = shape.moves if isinstance(shape, Batch) else None
        encoding = None if moves is None else moves.encoding
        return max(host - (0.0 if encoding is None else self.encoding_s(encoding)), 0.0) + self._gap_s


def _read(values: Sequence[float], index: int) -> float:
    """Return an entry, extrapolated linearly past the end (token budgets may be raised after compiling)."""
    if index < len(values):
        return values[index]
    return values[-1] + (values[-1] - values[-2]) * (index - len(values) + 1)
