"""The tables behind the price of a step: the operators of a deployment, priced at nodes of what a batch may hold.

This module alone decides which tables a step reads, and at which coordinates. `BatchPartition.rank_counts` counts the
work of a rank, for one batch or for many. `StepTables.terms` turns the counts of many batches into terms, each a table
and its coordinates. `StepCost` compiles the tables into lists over the same counts. Totals add the terms up. The
analysis of a run or of a single step prices the operators at the coordinates of the terms.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from calibration.families.elementwise import SEGMENTED_ROWS
from calibration.operators.cost import CostSource
from catalogs.arrays import FloatArray, IntArray
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.engines.profile import EngineProfile
from simulator.costs.interpolation import MultilinearTable, spaced
from simulator.costs.partition import BatchPartition, BatchRows, EncodedPrompts, RankCountArrays
from simulator.costs.pricing import N_CHANNELS, N_CLASSES, Pricer
from simulator.costs.prompt_clock import prompt_clock
from simulator.costs.terms import DecodeTables, OperatorGroup, RankTerms, Term
from simulator.costs.tower import TowerTables
from simulator.layers.operator_call import OperatorCall
from simulator.layers.shard import Shard
from simulator.layers.step import StepCalls

DecodeLines = Callable[[FloatArray, FloatArray, FloatArray], list[OperatorCall]]

TokenLines = Callable[[FloatArray, bool], list[OperatorCall]]

# Nodes of the tables, in nearly equal ratios (`spaced`): judgements that weigh the time to build the tables against the
# error of reading between nodes. Checked with five times as many on each axis alone: 900 random steps (decodes, prompts
# and both; Llama 3.1 8B on one H100, gpt-oss-120b on four) change by less than 0.03 % in the median, and at most by the
# share that each comment states.

#: Nodes of the tokens of a step outside CUDA graphs: an error of at most 2.6 %.
EAGER_NODES: Final = 200

#: Nodes of the rows of logits: at most 0.2 %.
LOGITS_NODES: Final = 48

#: Nodes of the sequences that decode: at most 0.1 %.
DECODE_NODES: Final = 36

#: Nodes of the mean context of decodes: at most 0.5 %.
CONTEXT_NODES: Final = 56

#: Nodes of the tokens of a prompt chunk: at most 3.4 %.
CHUNK_TOKEN_NODES: Final = 36

#: Nodes of the context before a chunk: at most 0.9 %.
PRIOR_NODES: Final = 14

#: Nodes of the chunks of a step: at most 2.0 %.
CHUNK_NODES: Final = (1, 2, 4, 8, 16, 64, 256, 1024)


@dataclass(frozen=True, slots=True)
class DraftTables:
    """The tables of the drafting that every step runs.

    The drafter makes one pass over all tokens of the step (`first`), which gives the first draft, and `passes` further
    passes over the newest tokens of every sequence, each of which gives one more draft.
    """

    first: StepTables
    again: StepTables
    passes: int
    after_prompts: bool  # whether a step that contains only prompts drafts as well


@dataclass(frozen=True, slots=True)
class StepTables:
    """Channels (see `simulator.costs.pricing`) of the operators of a step, per rank and microbatch.

    Attributes:
        rank: By tokens on an attention rank.
        group: By tokens of the expert group.
        logits: By sequences with logits.
        decode: By decodes and their contexts, in steps without prompts.
        mixed: By decodes and their contexts, in steps with prompts.
        prefill: By (prompt chunks, tokens of a chunk, tokens before the chunk).
        padded: The tokens that run where 0..len-1 are scheduled; from there on, those that are scheduled. Shape
            (tokens,).
        launch_s: The minimum seconds of a step with prompts outside CUDA graphs.
        decode_launch_s: The minimum seconds of a step without prompts outside CUDA graphs.
        pieces_s: The seconds that piecewise CUDA graphs add to every step; 0 where decodes run in whole graphs.
        draft: The tables of proposing drafts; None without a drafter.
        towers: The tables of encoding images, videos and audio; none if no tower runs.
    """

    resolved: ResolvedDeployment
    pricer: Pricer
    lines: StepCalls
    rank: MultilinearTable
    group: MultilinearTable
    logits: MultilinearTable
    decode: DecodeTables
    mixed: DecodeTables
    prefill: MultilinearTable
    padded: IntArray
    launch_s: float
    decode_launch_s: float
    pieces_s: float = 0.0
    draft: DraftTables | None = None
    towers: tuple[TowerTables, ...] = ()

    @property
    def partition(self) -> BatchPartition:
        """Return how the ranks share a batch."""
        shard = self.lines.shard
        kind = EncodedPrompts if shard.model.encodes_prompt else BatchPartition
        return kind.of(self.resolved, shard.queries, shard.scored)

    @property
    def engine(self) -> EngineProfile:
        """Return the profile of the engine."""
        return self.resolved.engine

    @property
    def passes(self) -> MultilinearTable:
        """Return the channels by the number of passes over the weights beyond the first."""
        values = np.stack([np.zeros(N_CHANNELS), self.one_token()])
        return MultilinearTable.of((np.array([0.0, 1.0]),), values)

    @classmethod
    def build(cls, resolved: ResolvedDeployment, source: CostSource, lines: StepCalls | None = None) -> StepTables:
        """Price the steps of a deployment, or those of another model (`lines`) on its hardware and in its graphs."""
        lines = lines or StepCalls.of(resolved, source)
        shard, pricer = lines.shard, Pricer(source, resolved.hardware, resolved.engine.host.collective_skew_s)
        top = _most_tokens(resolved)
        sizes, dp = captured(resolved), shard.exchange_ranks
        # Launches on a CPU are negligible.
        latent = any(group.mixer is not None and group.mixer.latent for group in shard.model.groups)
        unit = resolved.hardware.accelerator
        launch_s = resolved.engine.launch_s(latent, unit) if unit.kind == "gpu" else 0.0
        launches, decode_launches = (lines.launches, lines.decode_launches) if launch_s else (0, 0)
        experts_s = resolved.engine.triton_experts_s(unit) * lines.triton_layers if launch_s else 0.0
        prompts = graph_limit(resolved) if resolved.engine.graphs_with_prefill else 0
        lines = replace(lines, prompt_clock=prompt_clock(lines, pricer, prompts, top, launch_s * launches + experts_s))
        return cls(
            resolved,
            pricer,
            lines,
            _token_table(lines.rank, pricer, sizes, top),
            _token_table(lines.group, pricer, sizes * dp, top * dp),
            _logits_table(lines, pricer, resolved.limits.max_num_seqs * shard.scored),
            *_both_decode_tables(lines, pricer, resolved),
            _prefill_table(lines, pricer, resolved),
            _padding(sizes, min(top, max(graph_limit(resolved), 1))),
            launch_s * launches + experts_s,
            launch_s * decode_launches + experts_s,
            resolved.engine.host.piece_s * lines.mixers if resolved.engine.graphs_in_pieces else 0.0,
            towers=TowerTables.build_all(resolved, source, pricer),
        )

    def further(self, lines: StepCalls) -> StepTables:
        """Return these tables with the decode attention of other operators."""
        decode, mixed = _both_decode_tables(lines, self.pricer, self.resolved)
        return replace(self, lines=lines, decode=decode, mixed=mixed)

    def padded_tokens(self, tokens: FloatArray) -> FloatArray:
        """Return the tokens that run where `tokens` are scheduled: the next captured size, if there is one.

        Shape of both: (rows,).
        """
        padded, inside = self.padded, tokens < len(self.padded)
        ran: FloatArray = np.where(inside, padded[np.minimum(tokens, len(padded) - 1).astype(np.int64)], tokens)
        return ran

    def group_tokens(self, tokens: FloatArray, batch_tokens: FloatArray) -> FloatArray:
        """Return the tokens that an expert group computes. CUDA graphs pad every rank alike.

        Args:
            tokens: The most tokens on a rank. Shape (rows,).
            batch_tokens: The tokens of the whole batch. Shape (rows,).
        """
        graphed = (tokens <= graph_limit(self.resolved)) & (tokens < len(self.padded))
        eager = self.partition.eager_group_tokens(tokens, batch_tokens)
        return np.where(graphed, self.partition.group_ranks * self.padded_tokens(tokens), eager)

    def terms(self, batches: BatchRows) -> list[Term]:
        """Return the terms of one pass of one model, in the order of their sum, for ranks with equal shares."""
        counts = self.partition.rank_counts(batches)
        tokens, batch_tokens, logits, further, _, _ = counts
        found = [
            Term("rank", slice(None), (self.padded_tokens(tokens),)),
            *self._shared_terms(tokens, batch_tokens, logits),
        ]
        some = np.flatnonzero(further)
        if len(some):
            found.append(Term("passes", some, (further[some],)))
        found += _attention_terms(batches, counts)
        return found + [term for tower in self.towers for term in tower.terms(batches)]

    def rank_terms(self, ranks: Sequence[BatchRows]) -> RankTerms:
        """Return the terms of batches of which each data-parallel rank holds its own share.

        CUDA graphs pad all ranks to the widest one.
        """
        partition = self.partition.within_rank
        counts = [partition.rank_counts(rank) for rank in ranks]
        tokens, held, logits, *_ = zip(*counts, strict=True)
        most = np.max(tokens, axis=0)
        graphed = most <= graph_limit(self.resolved)
        own = []
        for batches, each in zip(ranks, counts, strict=True):
            ran = self.padded_tokens(np.where(graphed, most, each[0]))
            own.append([Term("rank", slice(None), (ran,)), *_attention_terms(batches, each)])
        return RankTerms(own, self._shared_terms(most, sum(held), np.max(logits, axis=0)))

    def _shared_terms(self, tokens: FloatArray, batch_tokens: FloatArray, logits: FloatArray) -> list[Term]:
        """Return the terms of the experts and the logits."""
        group = self.group_tokens(tokens, batch_tokens)
        return [Term("group", slice(None), (group,)), Term("logits", slice(None), (logits,))]

    def _tower(self, term: Term) -> TowerTables | None:
        return next((tower for tower in self.towers if term.table in tower.tables), None)

    def read(self, term: Term) -> FloatArray:
        """Return the channels of a term. Shape (rows of the term, N_CHANNELS)."""
        if (tower := self._tower(term)) is not None:
            return tower.read(term)
        table: MultilinearTable | DecodeTables = getattr(self, term.table)
        return table.at(*term.coordinates)

    def operators(self, term: Term) -> Iterator[OperatorGroup]:
        """Yield the operators that a term's table was priced from, at the term's coordinates."""
        first = term.coordinates[0]
        rows = np.arange(len(first))[term.rows] if isinstance(term.rows, slice) else term.rows
        once = np.ones(len(first))
        if (tower := self._tower(term)) is not None:
            yield OperatorGroup(rows, once, tower.operators(term))
        elif term.table in ("rank", "group"):
            yield from self._token_operators(term.table, rows, first)
        elif term.table == "passes":
            one = self.padded_tokens(once)
            yield OperatorGroup(rows, first, self.lines.rank(one, True) + self.lines.group(once, True))
        elif term.table == "logits":
            some = first > 0
            yield OperatorGroup(rows[some], once[some], self.lines.logits(first[some]))
        else:
            of = {"decode": self.lines.decode, "mixed": self.lines.mixed_decode, "prefill": self.lines.prefill}
            yield OperatorGroup(rows, once, of[term.table](*term.coordinates))

    def _token_operators(self, table: str, rows: IntArray, tokens: FloatArray) -> Iterator[OperatorGroup]:
        """Yield the operators of captured sizes and those of sizes beyond them."""
        sizes, shard = captured(self.resolved), self.lines.shard
        lines, ranks = (self.lines.rank, 1) if table == "rank" else (self.lines.group, shard.exchange_ranks)
        largest = sizes[-1] * ranks if len(sizes) else 0.0
        for graph, some in ((True, (tokens > 0) & (tokens <= largest)), (False, tokens > largest)):
            if some.any():
                yield OperatorGroup(rows[some], np.ones(int(some.sum())), lines(tokens[some], graph))

    def one_token(self) -> FloatArray:
        """Return the channels of a further pass over the weights: a step of one token, without attention and logits.

        Shape (N_CHANNELS,).
        """
        one = np.ones(1)
        channels: FloatArray = (self.rank.at(self.padded[:2][-1:].astype(np.float64)) + self.group.at(one))[0]
        return channels

    def seconds(self, table: str) -> Sequence[float]:
        """Return the seconds of `rank`, `group` or `logits` for every number of tokens or sequences from 0 on.

        For `rank` these are scheduled tokens, before padding. The result is an array of the standard library: its
        items are read faster than those of NumPy, and take less memory than those of a list.
        """
        own: MultilinearTable = getattr(self, table)
        (nodes,), values = own.axes, own.at_nodes()
        counts = np.arange((_most_tokens(self.resolved) if table == "rank" else int(nodes[-1])) + 1)
        if table == "rank":
            counts[: len(self.padded)] = self.padded
        return array("d", np.interp(counts, nodes, values[:, :N_CLASSES].sum(axis=-1)).tobytes())


def _attention_terms(batches: BatchRows, counts: RankCountArrays) -> list[Term]:
    """Return the terms of decodes in steps without prompts, of decodes in steps with prompts, and of prompts."""
    *_, decodes, chunks = counts
    found = []
    for table, here in (("decode", chunks == 0), ("mixed", chunks > 0)):
        some = np.flatnonzero((decodes > 0) & here)
        at = (decodes[some], batches.mean_context[some], batches.max_context[some])
        found.append(Term(table, some, at))
    some = np.flatnonzero(chunks)
    prompts = batches.only(some)
    found.append(Term("prefill", some, (chunks[some], prompts.chunk_tokens, prompts.prior_tokens)))
    return found


def graph_limit(resolved: ResolvedDeployment) -> int:
    """Return the most tokens that a captured CUDA graph serves.

    This is the limit of the engine, but no more than twice the tokens of max_num_seqs decodes where these decide (vLLM
    V1).
    """
    if not resolved.engine.graph_capture_sizes:
        return 0
    if not resolved.engine.graphs_follow_seats:
        return min(resolved.engine.max_graph_tokens, resolved.limits.max_num_batched_tokens)
    return min(resolved.engine.max_graph_tokens, 2 * resolved.limits.max_num_seqs * resolved.queries)


def captured(resolved: ResolvedDeployment) -> FloatArray:
    """Return the token counts for which the engine captures CUDA graphs, ascending. Shape (sizes,).

    If each decode brings several tokens, the engine also captures each size multiplied by them (vLLM's uniform decode
    sizes).
    """
    limit, sizes = graph_limit(resolved), set(resolved.engine.graph_capture_sizes)
    if resolved.queries > 1:
        sizes |= {s * resolved.queries for s in sizes}
    return np.array(sorted(s for s in sizes if s <= limit), dtype=np.float64)


def _most_tokens(resolved: ResolvedDeployment) -> int:
    """Return the most tokens of a step for which tables are compiled."""
    return max(resolved.limits.max_num_batched_tokens, resolved.limits.max_num_seqs)


def _padding(sizes: FloatArray, top: int) -> IntArray:
    """Return the tokens that run for 0 to `top` scheduled ones: the next captured size, if there is one.

    Shape (top + 1,).
    """
    tokens = np.arange(top + 1)
    if not len(sizes):
        return tokens
    graphed = (tokens > 0) & (tokens <= sizes[-1])
    up = sizes[np.minimum(np.searchsorted(sizes, tokens), len(sizes) - 1)].astype(np.int64)
    return np.where(graphed, up, tokens)


def _token_table(lines: TokenLines, pricer: Pricer, sizes: FloatArray, top: int) -> MultilinearTable:
    """Return channels by tokens from 0 to `top`: exact at captured sizes, then at spaced nodes; 0 tokens cost 0."""
    first = sizes[-1] + 1 if len(sizes) else 1.0
    eager = spaced(first, top, EAGER_NODES) if first <= top else np.zeros(0)
    graphed = pricer.price(lines(sizes, True), sizes.shape, at_nodes=True)
    launched = pricer.price(lines(eager, False), eager.shape)
    values = np.concatenate([np.zeros((1, N_CHANNELS)), graphed, launched])
    return MultilinearTable.of((np.concatenate([[0.0], sizes, eager]),), values)


def _logits_table(lines: StepCalls, pricer: Pricer, top: int) -> MultilinearTable:
    bend = (SEGMENTED_ROWS - 1.0, float(SEGMENTED_ROWS)) if lines.shard.sorts_logits else ()
    nodes = spaced(1, top, LOGITS_NODES, bend)
    values = pricer.price(lines.logits(nodes), nodes.shape)
    return MultilinearTable.of((np.concatenate([[0.0], nodes]),), np.concatenate([np.zeros((1, N_CHANNELS)), values]))


def _both_decode_tables(
    lines: StepCalls, pricer: Pricer, resolved: ResolvedDeployment
) -> tuple[DecodeTables, DecodeTables]:
    """Return the tables of decodes in steps without prompts and in steps with prompts; one table if they are alike."""
    decode = _decode_tables(lines.decode, lines.shard, pricer, resolved)
    if lines.mixes_alike:
        return decode, decode
    return decode, _decode_tables(lines.mixed_decode, lines.shard, pricer, resolved)


def _decode_tables(lines: DecodeLines, shard: Shard, pricer: Pricer, resolved: ResolvedDeployment) -> DecodeTables:
    n = spaced(1, resolved.limits.max_num_seqs, DECODE_NODES, (3.0, 6.0))
    contexts = spaced(1, max(resolved.limits.max_model_len, 2), CONTEXT_NODES, tuple(float(w) for w in shard.windows))
    sequences, mean = (a.copy() for a in np.broadcast_arrays(n[:, None], contexts[None, :]))
    even = pricer.price(lines(sequences, mean, mean), mean.shape)
    uneven = pricer.price(lines(sequences, mean, 2.0 * mean), mean.shape)
    return DecodeTables(
        MultilinearTable.of((n, contexts), even), MultilinearTable.of((n, contexts), (uneven - even) / mean[..., None])
    )


def _prefill_table(lines: StepCalls, pricer: Pricer, resolved: ResolvedDeployment) -> MultilinearTable:
    chunks = np.array([c for c in CHUNK_NODES if c <= max(2, resolved.limits.max_num_seqs)], dtype=np.float64)
    each = spaced(1, max(resolved.limits.max_num_batched_tokens, 2), CHUNK_TOKEN_NODES)
    prior = np.concatenate([[0.0], spaced(16, max(resolved.limits.max_model_len, 32), PRIOR_NODES)])
    c, q, x = (a.copy() for a in np.broadcast_arrays(chunks[:, None, None], each[None, :, None], prior[None, None, :]))
    return MultilinearTable.of((chunks, each, prior), pricer.price(lines.prefill(c, q, x), c.shape))
