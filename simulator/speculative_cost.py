"""What a step with drafts costs: verifying them, and drafting the next ones.

    device_s = the target's step, its decodes with several tokens each, and logits for all of those
             + the drafter's pass over every token of the step
             + a pass over the newest token of every sequence for each further draft

A drafter without a model looks its drafts up on the host, in the tokens of every sequence, and nothing hides that: the
engine waits for the tokens it looks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from simulator.batch import BatchShape
from simulator.draft_lines import DraftLines
from simulator.pricing import CostSource
from simulator.rank_steps import Segment
from simulator.step_cost import StepCost
from simulator.step_tables import DraftTables, StepTables


class _Pass(StepCost):
    """One pass of a model over its part of a step: what it takes the device, and what launching it takes the host."""

    def __init__(self, tables: StepTables) -> None:
        super().__init__(tables)
        self.eager_s, self._launch_s = self._launch_s, 0.0

    def device_s(self, shape: BatchShape) -> float:
        """However it is launched."""
        return self._batch_s(shape) if shape.decodes or shape.prefill_chunks else 0.0

    def launching_s(self, shape: BatchShape) -> float:
        """0 where it runs in a graph."""
        chunks, tokens = shape.prefill_chunks, -(-shape.decodes // self._split) * self._queries
        if chunks:
            tokens += -(-shape.prefill_tokens // (min(self._prompt_split, chunks) * self._context_ranks))
        return self.eager_s if tokens > (self._graphed_prefill if chunks else self._graphed) else 0.0


class SpeculativeCost(StepCost):
    """Seconds per step. Rounds advance by different numbers of tokens, so no step tells the next one's time."""

    def __init__(self, tables: StepTables) -> None:
        super().__init__(tables)
        draft, host = tables.draft, tables.engine.host
        self._first = _Pass(draft.first) if draft else None
        self._again = _Pass(draft.again) if draft and draft.passes else None
        self._target = _Pass(tables)
        self._passes, self._after_prompts = (draft.passes, draft.after_prompts) if draft else (0, False)
        looks_up = draft is None
        self._look_up_s = host.ngram_s_per_sequence if looks_up else 0.0
        self._look_up_s_per_token = host.ngram_s_per_token if looks_up else 0.0

    @classmethod
    def of(cls, tables: StepTables, source: CostSource) -> Self:
        """Adds what drafting costs to the tables of the target's steps."""
        return cls(replace(tables, draft=_draft_tables(tables, source)))

    def cycle_s(self, shape: BatchShape) -> float:
        n, chunks = shape.decodes, shape.prefill_chunks
        device = self._target.device_s(shape) + self.drafting_s(shape)
        device = max(device, self._launching_s(shape))
        looked_up = n * self._look_up_s + shape.decode_context_sum * self._look_up_s_per_token
        return self._cycle(device, n + chunks) + looked_up / self._prompt_split  # every rank has a host of its own

    def decode_segment(self, decodes: int, context_sum: int, context_max: int) -> tuple[float, float, int]:
        return self.cycle_s(BatchShape(0, 0.0, 0, decodes, context_sum, context_max, decodes)), 0.0, 1

    def ranks_segment(self, ranks: Sequence[BatchShape | None]) -> Segment:
        """Every pass waits for the slowest rank, and so does looking drafts up."""
        first, again, newest = self._first, self._again, [self._newest(s) if s else None for s in ranks]
        newest = [shape if shape is not None and shape.decodes else None for shape in newest]
        device, _, _, eager, sequences = self._target._ranks_device(ranks)
        launching_s = self._target.eager_s if eager else 0.0
        if first is not None:
            drafting_s, _, _, eager, _ = first._ranks_device(ranks)
            device, launching_s = device + drafting_s, launching_s + first.eager_s * eager
        if again is not None and any(newest):
            drafting_s, _, _, eager, _ = again._ranks_device(newest)
            device += self._passes * drafting_s
            launching_s += self._passes * again.eager_s * eager
        seconds = self._alone(max(device, launching_s), sequences)
        looked_up = [s.decodes * self._look_up_s + s.decode_context_sum * self._look_up_s_per_token for s in ranks if s]
        return seconds + max(looked_up, default=0.0), 0.0, 1

    def _alone(self, device: float, sequences: int) -> float:
        """The cycle of a rank with so many sequences."""
        return self._cycle(device, sequences * self._prompt_split)

    def drafting_s(self, shape: BatchShape) -> float:
        """Of the device, for the next drafts."""
        if self._first is None:
            return 0.0
        seconds, newest = self._first.device_s(shape), self._newest(shape)
        if self._again is not None and newest.decodes:
            seconds += self._passes * self._again.device_s(newest)
        return seconds

    def _launching_s(self, shape: BatchShape) -> float:
        """The least time of a step of which some passes are launched kernel by kernel: from the first to the last the
        host runs ahead of the device."""
        seconds = self._target.launching_s(shape)
        if self._first is not None:
            seconds += self._first.launching_s(shape)
        if self._again is not None:
            seconds += self._passes * self._again.launching_s(self._newest(shape))
        return seconds

    def _newest(self, shape: BatchShape) -> BatchShape:
        """The newest token of every sequence."""
        n, total, longest = shape.decodes, float(shape.decode_context_sum), float(shape.decode_context_max)
        chunks = shape.prefill_chunks if self._after_prompts else 0
        if chunks:
            ends = shape.prefill_pairs / shape.prefill_tokens + 0.5 * shape.prefill_tokens / chunks
            n, total, longest = n + chunks, total + chunks * ends, max(longest, ends)
        return BatchShape(0, 0.0, 0, n, total, longest, n)  # type: ignore[arg-type]  # means of prompts are no integers


def _draft_tables(tables: StepTables, source: CostSource) -> DraftTables | None:
    """None where a step runs no drafter."""
    resolved = tables.resolved
    speculation = resolved.speculation
    assert speculation is not None
    whole = DraftLines.drafting(resolved, source, speculation.queries + speculation.budget_tokens, True)
    newest = DraftLines.drafting(resolved, source, speculation.topk, False)
    if whole is None or newest is None:
        return None
    first = StepTables.build(resolved, source, whole)
    again = StepTables.build(resolved, source, newest) if speculation.method == "eagle3" else first.further(newest)
    return DraftTables(first, again, speculation.num_speculative_tokens - 1, resolved.engine.policy != "sglang")
