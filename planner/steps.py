"""The engine steps that a stage takes: all decodes at once, or prompts cut as an engine cuts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.operators import OperatorRow, operator_rows
from simulator.batch import BatchShape
from simulator.line import Line
from simulator.pricing import Pricer
from simulator.step_lines import StepLines
from simulator.table import FloatArray

Priced = tuple[FloatArray, list[Line]]  # how many steps each entry stands for, and what runs in them


@dataclass(frozen=True, slots=True)
class Steps:
    """shapes: the different steps; counts: how many there are of each."""

    shapes: tuple[BatchShape, ...]
    counts: tuple[int, ...]

    @property
    def n(self) -> int:
        return sum(self.counts)

    @property
    def tokens(self) -> int:
        """Of all steps."""
        return sum(s.tokens * n for s, n in zip(self.shapes, self.counts, strict=True))

    def seconds(self, cycle_s: Callable[[BatchShape], float]) -> float:
        """Of all steps, by the time of one."""
        return sum(cycle_s(s) * n for s, n in zip(self.shapes, self.counts, strict=True))

    def rows(self, lines: StepLines, pricer: Pricer) -> list[OperatorRow]:
        """The operators of all steps, unpadded."""
        return [row for weights, here in self._priced(lines) for row in operator_rows(here, pricer, weights)]

    def _priced(self, lines: StepLines) -> list[Priced]:
        tokens = self._column("tokens")
        found = [(self._weights, lines.rank(tokens, True) + lines.group(tokens * lines.shard.dp, True))]
        ending, prompts, decodes = (self._only(name) for name in ("logits", "prefill_chunks", "decodes"))
        if ending.shapes:
            found.append((ending._weights, lines.logits(ending._column("logits"))))
        if prompts.shapes:
            chunks, new = prompts._column("prefill_chunks"), prompts._column("prefill_tokens")
            prior = prompts._column("prefill_pairs") / new - new / chunks / 2
            found.append((prompts._weights, lines.prefill(chunks, new / chunks, prior)))
        if decodes.shapes:
            n = decodes._column("decodes")
            counts = (n, decodes._column("decode_context_sum") / n, decodes._column("decode_context_max"))
            found.append((decodes._weights, lines.decode(*counts)))
        return found

    def _only(self, count: str) -> Steps:
        """Those that have some."""
        here = [(s, n) for s, n in zip(self.shapes, self.counts, strict=True) if getattr(s, count)]
        return Steps(tuple(s for s, _ in here), tuple(n for _, n in here))

    def _column(self, name: str) -> FloatArray:
        return np.array([getattr(s, name) for s in self.shapes], dtype=np.float64)

    @property
    def _weights(self) -> FloatArray:
        return np.array(self.counts, dtype=np.float64)


def decode_step(sequences: int, context: int) -> Steps:
    """One token for each of so many sequences of so many tokens."""
    return Steps((BatchShape(0, 0.0, 0, sequences, sequences * context, context, sequences),), (1,))


@dataclass(frozen=True, slots=True)
class Cut:
    """How an engine cuts prompts: a step takes so many tokens of so many prompts at most; the last of them is cut where
    the budget ends, or (not chunked) waits, and a prompt beyond the budget runs alone."""

    budget_tokens: int
    seats: int
    chunked: bool = True


def prefill_steps(prompts: int, tokens: int, cut: Cut) -> Steps:
    """Prompts of equal length, first come first served."""
    budget_tokens = cut.budget_tokens if cut.chunked else max(cut.budget_tokens // tokens, 1) * tokens
    found: Counter[tuple[int, float, int, int]] = Counter()
    left, done = prompts, 0  # prompts not complete; tokens of the first of them that are
    while left:
        room, chunks, new, pairs, ended = budget_tokens, 0, 0, 0.0, 0
        while room and left > ended and chunks < cut.seats:
            take = min(tokens - done, room)
            pairs += take * (done + take / 2)
            new, room, chunks = new + take, room - take, chunks + 1
            done += take
            if done == tokens:
                ended, done = ended + 1, 0
        left -= ended
        found[new, pairs, chunks, ended] += 1
    shapes = tuple(BatchShape(new, pairs, chunks, logits=ended) for new, pairs, chunks, ended in found)
    return Steps(shapes, tuple(found.values()))
