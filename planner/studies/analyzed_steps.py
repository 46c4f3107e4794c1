"""The engine steps that an analysis prices: one decode step, or the steps into which an engine splits prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from catalogs.models.media_items import MediaLayout
from simulator.analysis.operators import OperatorRow, step_operators
from simulator.core.batch import Batch, BatchShape, SideTransfers
from simulator.costs.partition import BatchRows
from simulator.costs.tables import StepTables
from simulator.layers.towers import encoding_of


@dataclass(frozen=True, slots=True)
class AnalyzedSteps:
    """Engine steps: the different batch shapes, and the number of steps of each shape."""

    shapes: tuple[BatchShape, ...]
    counts: tuple[int, ...]

    @property
    def n(self) -> int:
        """Return the number of steps."""
        return sum(self.counts)

    @property
    def tokens(self) -> int:
        """Return the number of tokens in all steps."""
        return sum(s.tokens * n for s, n in zip(self.shapes, self.counts, strict=True))

    def seconds(self, cycle_s: Callable[[BatchShape], float]) -> float:
        """Return the seconds of all steps; `cycle_s` returns the seconds of one step."""
        return sum(cycle_s(s) * n for s, n in zip(self.shapes, self.counts, strict=True))

    def operators(self, tables: StepTables) -> list[OperatorRow]:
        """Return the operators of all steps as the engine runs them, padded to its CUDA graphs."""
        return step_operators(tables, [BatchRows.of_shapes(self.shapes)], np.array(self.counts, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class PromptItems:
    """The items at the start of every prompt: `count` equal ones; a step encodes up to `budget` embeddings."""

    layout: MediaLayout
    count: int
    budget: int


def decode_step(sequences: int, context: int) -> AnalyzedSteps:
    """Return the step that generates one token for each of `sequences` sequences of `context` tokens."""
    return AnalyzedSteps((BatchShape(0, 0.0, 0, sequences, sequences * context, context, sequences),), (1,))


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """The limits by which an engine splits prompts: a step takes up to `budget_tokens` of up to `seats` prompts.

    A prompt that exceeds the budget of a step is continued in the next step. If the engine does not split prompts
    (`chunked` is False), it waits for the next step instead, and a prompt longer than the whole budget runs alone.
    """

    budget_tokens: int
    seats: int
    chunked: bool = True


def prefill_steps(prompts: int, tokens: int, limits: PromptLimits, images: PromptItems | None = None) -> AnalyzedSteps:
    """Return the steps that compute `prompts` prompts of `tokens` tokens each, first come first served.

    A step encodes the images that begin in it. Where its encoder budget ends, it computes the prompt up to there.
    """
    budget_tokens = limits.budget_tokens if limits.chunked else max(limits.budget_tokens // tokens, 1) * tokens
    found: Counter[tuple[int, float, int, int, int]] = Counter()
    left, done = prompts, 0  # incomplete prompts; computed tokens of the first of them
    while left:
        unused, chunks, new, pairs, ended, encoded = budget_tokens, 0, 0, 0.0, 0, 0
        while unused and left > ended and chunks < limits.seats:
            take = min(tokens - done, unused)
            if images is not None:
                take, begun = _until_budget(images, done, take, encoded)
                encoded += begun
                if not take:
                    break
            pairs += take * (done + take / 2)
            new, unused, chunks = new + take, unused - take, chunks + 1
            done += take
            if done == tokens:
                ended, done = ended + 1, 0
        left -= ended
        found[new, pairs, chunks, ended, encoded] += 1
    shapes = tuple(_shape(new, pairs, chunks, ended, encoded, images) for new, pairs, chunks, ended, encoded in found)
    return AnalyzedSteps(shapes, tuple(found.values()))


def _until_budget(images: PromptItems, done: int, take: int, encoded: int) -> tuple[int, int]:
    """Return the tokens that can be computed after `done` ones, and the images that begin in them."""
    each = images.layout.tokens
    first = -(-done // each)
    begin = max(min(images.count, -(-(done + take) // each)) - first, 0)
    most = images.budget // images.layout.embeddings - encoded
    return (take, begin) if begin <= most else ((first + most) * each - done, most)


def _shape(new: int, pairs: float, chunks: int, ended: int, encoded: int, images: PromptItems | None) -> BatchShape:
    if images is None or not encoded:
        return BatchShape(new, pairs, chunks, logits=ended)
    moves = SideTransfers(encoding=encoding_of(images.layout, encoded))
    batch = Batch(new, pairs, chunks, logits=ended)
    batch.moves = moves
    return batch
