"""What a step with drafts costs: verifying them, and drafting the next ones.

    device_s = the target's step, its decodes with several tokens each, and logits for all of those
             + the drafter's pass over every token of the step
             + a pass over the newest token of every sequence for each further draft

A drafter without a model looks its drafts up on the host, in the tokens of every sequence, and nothing hides that: the
engine waits for the tokens it looks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

from calibration.operators.cost import CostSource
from simulator.core.batch import BatchShape
from simulator.core.step_timer import Segment
from simulator.costs.step_cost import StepCost
from simulator.costs.tables import DraftTables, StepTables
from simulator.layers.drafter import DraftCalls


class _Pass(StepCost):
    """One pass of a model over its part of a step: what it takes the device, and what launching it takes the host."""

    def __init__(self, tables: StepTables) -> None:
        super().__init__(tables)
        self._launch_s = 0.0

    def device_s(self, shape: BatchShape) -> float:
        """However it is launched."""
        return self._batch_s(shape) if shape.decodes or shape.prefill_chunks else 0.0

    def launching_s(self, shape: BatchShape) -> float:
        """0 where it runs in a graph."""
        tokens, graphed = self._counts(shape)[0], self._graphed_prefill if shape.prefill_chunks else self._graphed
        return self.tables.launch_s if tokens > graphed else 0.0


class _Drafting:
    """What proposes the next drafts: a drafter's passes on the device, or a look-up on the host. Seconds of a step."""

    __slots__ = ("_after_prompts", "_again", "_first", "_look_up_s", "_look_up_s_per_token", "_passes")

    def __init__(self, tables: StepTables) -> None:
        draft, host = tables.draft, tables.engine.host
        self._first = _Pass(draft.first) if draft else None
        self._again = _Pass(draft.again) if draft and draft.passes else None
        self._passes, self._after_prompts = (draft.passes, draft.after_prompts) if draft else (0, False)
        self._look_up_s = 0.0 if draft else host.ngram_s_per_sequence
        self._look_up_s_per_token = 0.0 if draft else host.ngram_s_per_token

    def device_s(self, shape: BatchShape) -> float:
        if self._first is None:
            return 0.0
        seconds, newest = self._first.device_s(shape), self._newest(shape)
        if self._again is not None and newest.decodes:
            seconds += self._passes * self._again.device_s(newest)
        return seconds

    def launching_s(self, shape: BatchShape) -> Iterator[float]:
        """Of each kind of pass."""
        if self._first is not None:
            yield self._first.launching_s(shape)
        if self._again is not None:
            yield self._passes * self._again.launching_s(self._newest(shape))

    def of_ranks(self, ranks: Sequence[BatchShape | None]) -> Iterator[tuple[float, float]]:
        """(device, launching) of each kind of pass, in which ranks with these shares wait for the slowest."""
        if self._first is not None:
            device, _, _, eager, _ = self._first._ranks_device(ranks)
            yield device, self._first.tables.launch_s * eager
        shapes = [self._newest(shape) if shape else None for shape in ranks]
        newest = [shape if shape is not None and shape.decodes else None for shape in shapes]
        if self._again is not None and any(newest):
            device, _, _, eager, _ = self._again._ranks_device(newest)
            yield self._passes * device, self._passes * self._again.tables.launch_s * eager

    def look_up_s(self, shape: BatchShape) -> float:
        return shape.decodes * self._look_up_s + shape.decode_context_sum * self._look_up_s_per_token

    def _newest(self, shape: BatchShape) -> BatchShape:
        """The newest token of every sequence."""
        n, total, longest = shape.decodes, float(shape.decode_context_sum), float(shape.decode_context_max)
        chunks = shape.prefill_chunks if self._after_prompts else 0
        if chunks:
            ends = shape.prompt_context_tokens
            n, total, longest = n + chunks, total + chunks * ends, max(longest, ends)
        return BatchShape(0, 0.0, 0, n, total, longest, n)  # type: ignore[arg-type]  # means of prompts are no integers


class SpeculativeCost(_Pass):
    """The target's pass, and the drafting after it. Rounds advance by different numbers of tokens, so no step tells the
    next one's time."""

    def __init__(self, tables: StepTables) -> None:
        super().__init__(tables)
        self._drafting = _Drafting(tables)

    @classmethod
    def of(cls, tables: StepTables, source: CostSource) -> Self:
        """Adds what drafting costs to the tables of the target's steps."""
        return cls(replace(tables, draft=_draft_tables(tables, source)))

    def cycle_s(self, shape: BatchShape) -> float:
        """No less than launching all passes takes: from the first to the last the host runs ahead of the device."""
        if shape.ranks:
            return self.ranks_segment(shape.ranks)[0]
        drafting = self._drafting
        device = self.device_s(shape) + drafting.device_s(shape)
        device = max(device, sum(drafting.launching_s(shape), start=self.launching_s(shape)))
        looked_up = drafting.look_up_s(shape) / self._prompt_ranks  # every rank has a host of its own
        return self._cycle(device, shape.decodes + shape.prefill_chunks) + looked_up

    def decode_segment(self, decodes: int, context_sum: int, context_max: int) -> tuple[float, float, int]:
        return self.cycle_s(BatchShape(0, 0.0, 0, decodes, context_sum, context_max, decodes)), 0.0, 1

    def ranks_segment(self, ranks: Sequence[BatchShape | None]) -> Segment:
        """Every pass waits for the slowest rank, and so does looking drafts up."""
        device, _, _, eager, sequences = self._ranks_device(ranks)
        launching_s = self.tables.launch_s if eager else 0.0
        for drafting_s, launch_s in self._drafting.of_ranks(ranks):
            device, launching_s = device + drafting_s, launching_s + launch_s
        seconds = self._cycle(max(device, launching_s), sequences * self._prompt_ranks)
        return seconds + max((self._drafting.look_up_s(shape) for shape in ranks if shape), default=0.0), 0.0, 1

    def drafting_s(self, shape: BatchShape) -> float:
        """Of the device, for the next drafts."""
        return self._drafting.device_s(shape)


def _draft_tables(tables: StepTables, source: CostSource) -> DraftTables | None:
    """None where a step runs no drafter."""
    resolved = tables.resolved
    speculation = resolved.speculation
    assert speculation is not None
    whole = DraftCalls.drafting(resolved, source, speculation.queries + speculation.budget_tokens, True)
    newest = DraftCalls.drafting(resolved, source, speculation.topk, False)
    if whole is None or newest is None:
        return None
    first = StepTables.build(resolved, source, whole)
    again = StepTables.build(resolved, source, newest) if speculation.method == "eagle3" else first.further(newest)
    return DraftTables(first, again, speculation.num_speculative_tokens - 1, resolved.engine.policy != "sglang")
