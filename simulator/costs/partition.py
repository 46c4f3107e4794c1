"""The shares of a batch that the ranks of a replica compute, for one batch or for many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray
from catalogs.deployments.resolved import ResolvedDeployment
from simulator.core.batch import (
    Batch,
    BatchShape,
    mean_chunk_tokens,
    mean_prior_tokens,
    mean_prompt_context_tokens,
)
from simulator.core.step_log import COLUMNS, StepLog, with_share

#: The counts of one rank: (tokens on a rank, tokens of the whole batch, sequences with logits on a rank,
#: passes over the weights beyond the first, decodes on a rank, prompt chunks on a rank). Tokens are not padded.
RankCounts = tuple[int, int, int, int, int, float]

#: `RankCounts` of many batches. Each array has shape (rows,).
RankCountArrays = tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]


#: The columns of a step log that count what the towers encode.
ENCODED: Final = tuple(f"{tower}_{count}" for tower in ("vision", "audio") for count in ("units", "patches", "pairs"))


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Many batches with the counts of a `BatchShape`. Each array has shape (rows,)."""

    prefill_tokens: FloatArray
    prefill_pairs: FloatArray
    prefill_chunks: FloatArray
    decodes: FloatArray
    mean_context: FloatArray  # mean over the decodes
    max_context: FloatArray
    undrafted: FloatArray  # decodes that bring no drafts
    logits: FloatArray
    passes: FloatArray
    vision_units: FloatArray
    vision_patches: FloatArray
    vision_pairs: FloatArray  # sum over tiles of the square of their patches
    audio_units: FloatArray
    audio_patches: FloatArray
    audio_pairs: FloatArray

    @classmethod
    def of_log(cls, table: FloatArray, step: FloatArray | None = None) -> BatchRows:
        """Return the batches of rows of a step log, each at one of the steps that the row covers.

        Args:
            table: Rows of a `StepLog`. Shape (rows, columns).
            step: The step within each row, counted from 0; the middle one if None. Shape (rows,).
        """
        columns = dict(zip(COLUMNS, table.T, strict=True))
        later = (columns["steps"] - 1.0) / 2.0 if step is None else step
        decodes = columns["decodes"]
        means = columns["context_sum"] / np.maximum(decodes, 1.0) + later, columns["context_max"] + later
        prompts = columns["prefill_tokens"], columns["prefill_pairs"], columns["prefill_chunks"]
        encoded = (columns[name] for name in ENCODED)
        return cls(*prompts, decodes, *means, columns["undrafted"], columns["logits"], columns["passes"], *encoded)

    @classmethod
    def of_ranks(cls, table: FloatArray, shares: FloatArray, step: FloatArray | None = None) -> list[BatchRows]:
        """Return the batches of each data-parallel rank that schedules for itself.

        Args:
            table: Rows of a `StepLog` of ranks. Shape (rows, columns).
            shares: The share of each rank in every row. Shape (rows, ranks, 8).
            step: As in `of_log`.
        """
        return [cls.of_log(with_share(table, shares[:, rank]), step) for rank in range(shares.shape[1])]

    @classmethod
    def of_shapes(cls, shapes: Sequence[BatchShape]) -> BatchRows:
        """Return one row for each shape, with the items that a batch encodes. Each array has shape (shapes,)."""
        log = StepLog()
        for shape in shapes:
            log.add(0.0, 1, shape, 0.0, 0.0, 0.0)
            moves = shape.moves if isinstance(shape, Batch) else None
            if moves is not None and moves.encoding is not None:
                log.add_encoding(moves.encoding)
        return cls.of_log(log.table())

    def __len__(self) -> int:
        return len(self.decodes)

    @property
    def chunk_tokens(self) -> FloatArray:
        """Return the mean number of new tokens in a prompt chunk. Shape (rows,)."""
        means: FloatArray = mean_chunk_tokens(self.prefill_tokens, self.prefill_chunks)
        return means

    @property
    def prior_tokens(self) -> FloatArray:
        """Return the mean number of tokens computed before a prompt chunk. Shape (rows,)."""
        means: FloatArray = mean_prior_tokens(self.prefill_tokens, self.prefill_pairs, self.prefill_chunks)
        return means

    @property
    def prompt_context_tokens(self) -> FloatArray:
        """Return the mean number of computed tokens of a prompt after its chunk. Shape (rows,)."""
        means: FloatArray = mean_prompt_context_tokens(self.prefill_tokens, self.prefill_pairs, self.prefill_chunks)
        return means

    def only(self, rows: npt.NDArray[Any]) -> BatchRows:
        """Return the batches at the given indices, or those where a mask is true. Shape (n,) or (rows,)."""
        return BatchRows(*(getattr(self, field.name)[rows] for field in fields(self)))

    def newest(self, of_prompts: bool) -> BatchRows:
        """Return a further pass over the newest token of every decode and, with `of_prompts`, of every prompt."""
        chunks = self.prefill_chunks * of_prompts
        nothing = np.zeros_like(chunks)
        ends, some = nothing.copy(), np.flatnonzero(chunks)
        ends[some] = self.only(some).prompt_context_tokens
        decodes = self.decodes + chunks
        return replace(
            self,
            **dict.fromkeys(("prefill_tokens", "prefill_pairs", "prefill_chunks"), nothing),
            **dict.fromkeys(ENCODED, nothing),
            decodes=decodes,
            mean_context=(self.mean_context * self.decodes + ends * chunks) / np.maximum(decodes, 1.0),
            max_context=np.where(chunks > 0, np.maximum(self.max_context, ends), self.max_context),
            undrafted=np.zeros_like(chunks),
            logits=decodes,
            passes=np.ones_like(chunks),
        )


@dataclass(frozen=True, slots=True)
class BatchPartition:
    """The ranks that share the batch of one scheduler, and the tokens that each decode brings.

    Decodes are divided over `decode_ranks`. Whole prompts are divided over `prompt_ranks`, and the tokens of each
    prompt over `context_ranks`. Experts compute the tokens of `group_ranks`. A decode brings `queries` tokens, of which
    `scored` get logits; the decodes of a batch for which no drafts were found bring one token with logits.
    """

    decode_ranks: int
    prompt_ranks: int
    context_ranks: int
    group_ranks: int
    queries: int
    scored: int

    @classmethod
    def of(cls, resolved: ResolvedDeployment, queries: int, scored: int) -> BatchPartition:
        """Return the partition of a replica whose ranks share every batch evenly.

        Context-parallel ranks also divide the decodes, unless they share the cache of every sequence and therefore
        compute each decode together.
        """
        layout = resolved.layout
        ranks, context = layout.data_parallel, layout.context_parallel
        decode_ranks = ranks * (context if layout.decode_context_parallel == 1 else 1)
        return cls(decode_ranks, ranks, context, ranks * context, queries, scored)

    @property
    def within_rank(self) -> BatchPartition:
        """Return the partition of a batch that one data-parallel rank schedules for itself."""
        return replace(self, decode_ranks=self.decode_ranks // self.prompt_ranks, prompt_ranks=1)

    @overload
    def rank_counts(self, batch: BatchShape) -> RankCounts: ...

    @overload
    def rank_counts(self, batch: BatchRows) -> RankCountArrays: ...

    def rank_counts(self, batch: Any) -> Any:
        """Return the counts of one rank, for one batch or for many.

        A single prompt is on one rank, and all other ranks wait for it.
        """
        n, prompts, chunks, ranks = batch.decodes, batch.prefill_tokens, batch.prefill_chunks, self.decode_ranks
        held, logits, further = n * self.queries + prompts, batch.logits + n * (self.scored - 1), batch.passes - 1
        drafts, without = self.queries - 1, batch.undrafted
        if drafts:
            held, logits = held - without * drafts, logits - without * (self.scored - 1)
        if ranks == 1 and self.context_ranks == 1:  # one rank computes all
            return held, held, logits, further, n, chunks
        most, decodes = self.prompt_ranks, -(-n // ranks)
        parts = np.clip(chunks, 1.0, most) if isinstance(chunks, np.ndarray) else max(1, min(chunks, most))
        tokens = decodes * self.queries + -(-prompts // (parts * self.context_ranks))
        if drafts:
            tokens = tokens - without // ranks * drafts
        return tokens, held, -(-logits // ranks), further, decodes, chunks / parts

    def eager_group_tokens(self, tokens: Any, batch_tokens: Any) -> Any:
        """Return the tokens of an expert group outside CUDA graphs.

        Args:
            tokens: The most tokens on one rank.
            batch_tokens: The tokens of all ranks together.
        """
        most = self.group_ranks * tokens
        return np.minimum(most, batch_tokens) if isinstance(most, np.ndarray) else min(most, batch_tokens)


@dataclass(frozen=True, slots=True)
class EncodedPrompts(BatchPartition):
    """The partition where the prompt is an encoder's input, so that the decoder computes one token for each prompt.

    Such a replica has one rank per batch: no parallelism but that of tensors, and no drafts.
    """

    def rank_counts(self, batch: Any) -> Any:
        """Return the counts of one rank, for one batch or for many."""
        tokens = batch.decodes + batch.prefill_chunks
        return tokens, tokens, batch.logits, batch.passes - 1, batch.decodes, batch.prefill_chunks
