"""The engine steps that `plan analyze` takes apart: all decodes at once, or prompts cut as an engine cuts them."""

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
    """shapes: The different steps. counts: How many there are of each."""

    shapes: tuple[BatchShape, ...]
    counts: tuple[int, ...]

    @property
    def n(self) -> int:
        """The number of steps."""
        return sum(self.counts)

    @property
    def tokens(self) -> int:
        """The tokens of all steps."""
        return sum(s.tokens * n for s, n in zip(self.shapes, self.counts, strict=True))

    def seconds(self, cycle_s: Callable[[BatchShape], float]) -> float:
        """Return the time of all steps, by the time of one."""
        return sum(cycle_s(s) * n for s, n in zip(self.shapes, self.counts, strict=True))

    def operators(self, tables: StepTables) -> list[OperatorRow]:
        """Return the operators of all steps as the engine runs them, padded to its CUDA graphs."""
        return step_operators(tables, [BatchRows.of_shapes(self.shapes)], np.array(self.counts, dtype=np.float64))


def decode_step(sequences: int, context: int) -> AnalyzedSteps:
    """Return the step that gives each of `sequences` one token more, with `context` tokens each."""
    return AnalyzedSteps((BatchShape(0, 0.0, 0, sequences, sequences * context, context, sequences),), (1,))


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """How an engine cuts prompts: a step takes up to `budget_tokens` of up to `seats` prompts.

    The last of them is cut where the budget ends, or (not chunked) waits, and a prompt beyond the budget runs alone.
    """

    budget_tokens: int
    seats: int
    chunked: bool = True


def prefill_steps(prompts: int, tokens: int, limits: PromptLimits) -> AnalyzedSteps:
    """Return the steps that compute prompts of equal length, first come first served."""
    budget_tokens = limits.budget_tokens if limits.chunked else max(limits.budget_tokens // tokens, 1) * tokens
    found: Counter[tuple[int, float, int, int]] = Counter()
    left, done = prompts, 0  # prompts not complete; tokens of the first of them that are
    while left:
        room, chunks, new, pairs, ended = budget_tokens, 0, 0, 0.0, 0
        while room and left > ended and chunks < limits.seats:
            take = min(tokens - done, room)
            pairs += take * (done + take / 2)
            new, room, chunks = new + take, room - take, chunks + 1
            done += take
            if done == tokens:
                ended, done = ended + 1, 0
        left -= ended
        found[new, pairs, chunks, ended] += 1
    shapes = tuple(BatchShape(new, pairs, chunks, logits=ended) for new, pairs, chunks, ended in found)
    return AnalyzedSteps(shapes, tuple(found.values()))
