"""The engine steps that an analysis prices: one decode step, or the steps into which an engine splits prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.analysis.operators import OperatorRow, step_operators
from simulator.core.batch import BatchShape
from simulator.costs.partition import BatchRows
from simulator.costs.tables import StepTables


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


def prefill_steps(prompts: int, tokens: int, limits: PromptLimits) -> AnalyzedSteps:
    """Return the steps that compute `prompts` prompts of `tokens` tokens each, first come first served."""
    budget_tokens = limits.budget_tokens if limits.chunked else max(limits.budget_tokens // tokens, 1) * tokens
    found: Counter[tuple[int, float, int, int]] = Counter()
    left, done = prompts, 0  # incomplete prompts; computed tokens of the first of them
    while left:
        unused, chunks, new, pairs, ended = budget_tokens, 0, 0, 0.0, 0
        while unused and left > ended and chunks < limits.seats:
            take = min(tokens - done, unused)
            pairs += take * (done + take / 2)
            new, unused, chunks = new + take, unused - take, chunks + 1
            done += take
            if done == tokens:
                ended, done = ended + 1, 0
        left -= ended
        found[new, pairs, chunks, ended] += 1
    shapes = tuple(BatchShape(new, pairs, chunks, logits=ended) for new, pairs, chunks, ended in found)
    return AnalyzedSteps(shapes, tuple(found.values()))
