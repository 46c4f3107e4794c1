"""The duration of a step with speculative decoding: verification of drafts, and drafting of the next ones.

    device_s = the target's step, in which each decode brings several tokens, with logits for all of them
             + the drafter's pass over every token of the step
             + one pass over the newest token of every sequence for each further draft

A drafter without a model (n-gram lookup) searches the tokens of every sequence on the host. This time is not hidden,
because the engine waits for the drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from calibration.operators.cost import CostSource
from simulator.core.batch import BatchShape
from simulator.core.step_timer import Segment
from simulator.costs.step_cost import StepCost
from simulator.costs.tables import DraftTables, StepTables
from simulator.layers.drafter import DraftCalls


class _Pass(StepCost):
    """One model's pass over its part of a step: its device time and its launch time on the host."""

    def __init__(self, tables: StepTables) -> None:
        super().__init__(tables)
        self._launch_s = self._decode_launch_s = 0.0

    def device_s(self, shape: BatchShape) -> float:
        """Return the device seconds of the pass, without the time of launching it."""
        return self._batch_s(shape) if shape.decodes or shape.prefill_chunks else 0.0

    def launching_s(self, shape: BatchShape) -> float:
        """Return the host seconds of launching the pass; 0 if it runs in a CUDA graph."""
        tokens, graphed = self._counts(shape)[0], self._graphed_prefill if shape.prefill_chunks else self._graphed
        return self.tables.launch_s if tokens > graphed else 0.0


class _Drafting:
    """The seconds that proposing drafts adds to a step: a drafter's passes on the device, or a lookup on the host."""

    def __init__(self, tables: StepTables) -> None:
        draft, host = tables.draft, tables.engine.host
        self._first = _Pass(draft.first) if draft else None
        self._again = _Pass(draft.again) if draft and draft.passes else None
        self._passes, self._after_prompts = (draft.passes, draft.after_prompts) if draft else (0, False)
        self._ngram_s = 0.0 if draft else host.ngram_s_per_sequence
        self._ngram_s_per_token = 0.0 if draft else host.ngram_s_per_token

    def device_s(self, shape: BatchShape) -> float:
        """Return the device seconds of all of the drafter's passes."""
        if self._first is None:
            return 0.0
        seconds, newest = self._first.device_s(shape), self._newest(shape)
        if self._again is not None and newest.decodes:
            seconds += self._passes * self._again.device_s(newest)
        return seconds

    def launching_s(self, shape: BatchShape) -> Iterator[float]:
        """Yield the launch seconds of each kind of pass."""
        if self._first is not None:
            yield self._first.launching_s(shape)
        if self._again is not None:
            yield self._passes * self._again.launching_s(self._newest(shape))

    def of_ranks(self, ranks: Sequence[BatchShape | None]) -> Iterator[tuple[float, float]]:
        """Yield (device seconds, launch seconds) of each kind of pass; each pass waits for the slowest rank."""
        if self._first is not None:
            device, _, _, eager, _ = self._first._ranks_device(ranks)
            yield device, self._first.tables.launch_s * eager
        shapes = [self._newest(shape) if shape else None for shape in ranks]
        newest = [shape if shape is not None and shape.decodes else None for shape in shapes]
        if self._again is not None and any(newest):
            device, _, _, eager, _ = self._again._ranks_device(newest)
            yield self._passes * device, self._passes * self._again.tables.launch_s * eager

    def ngram_s(self, shape: BatchShape) -> float:
        """Return the host seconds of searching for drafts in the tokens of every sequence."""
        return shape.decodes * self._ngram_s + shape.decode_context_sum * self._ngram_s_per_token

    def _newest(self, shape: BatchShape) -> BatchShape:
        """Return the shape of a pass over the newest token of every sequence."""
        n, total, longest = shape.decodes, float(shape.decode_context_sum), float(shape.decode_context_max)
        chunks = shape.prefill_chunks if self._after_prompts else 0
        if chunks:
            ends = shape.prompt_context_tokens
            n, total, longest = n + chunks, total + chunks * ends, max(longest, ends)
        return BatchShape(0, 0.0, 0, n, total, longest, n)


class SpeculativeCost(_Pass):
    """Seconds per engine step with speculative decoding: the target's pass and the drafting after it.

    Sequences advance by different numbers of tokens in each round, so the time of a step does not predict that of the
    next.
    """

    def __init__(self, tables: StepTables) -> None:
        super().__init__(tables)
        self._drafting = _Drafting(tables)

    def cycle_s(self, shape: BatchShape) -> float:
        """Return the seconds from the start of this step to the start of the next.

        The device time is at least the time of launching all passes, because the host runs ahead of the device from the
        first pass to the last.
        """
        if shape.ranks:
            return self.ranks_segment(shape.ranks)[0]
        drafting = self._drafting
        device = self.device_s(shape) + drafting.device_s(shape)
        device = max(device, sum(drafting.launching_s(shape), start=self.launching_s(shape)))
        searching_s = drafting.ngram_s(shape) / self._prompt_ranks  # every rank has its own host process
        return self._cycle(device, shape.decodes + shape.prefill_chunks) + searching_s

    def decode_segment(self, decodes: int, context_sum: float, context_max: float) -> tuple[float, float, int]:
        """Return (t0, slope, steps) for a single decode-only step: the slope is 0 and steps is 1."""
        return self.cycle_s(BatchShape(0, 0.0, 0, decodes, context_sum, context_max, decodes)), 0.0, 1

    def ranks_segment(self, ranks: Sequence[BatchShape | None]) -> Segment:
        """Return (t0, 0, 1) for ranks with unequal shares.

        Every pass and the lookup of drafts wait for the slowest rank.
        """
        device, _, _, eager, sequences = self._ranks_device(ranks)
        launching_s = self.tables.launch_s if eager else 0.0
        for drafting_s, launch_s in self._drafting.of_ranks(ranks):
            device, launching_s = device + drafting_s, launching_s + launch_s
        seconds = self._cycle(max(device, launching_s), sequences * self._prompt_ranks)
        return seconds + max((self._drafting.ngram_s(shape) for shape in ranks if shape), default=0.0), 0.0, 1

    def drafting_s(self, shape: BatchShape) -> float:
        """Return the device seconds of drafting."""
        return self._drafting.device_s(shape)


def draft_tables(tables: StepTables, source: CostSource) -> DraftTables | None:
    """Return the tables of the drafter's passes for the tables of its target; None if the drafter has no model."""
    resolved = tables.resolved
    speculation = resolved.speculation
    assert speculation is not None
    whole = DraftCalls.drafting(resolved, source, speculation.queries + speculation.budget_tokens, True)
    newest = DraftCalls.drafting(resolved, source, speculation.topk, False)
    if whole is None or newest is None:
        return None
    first = StepTables.build(resolved, source, whole)
    again = StepTables.build(resolved, source, newest) if speculation.method == "eagle3" else first.further(newest)
    return DraftTables(first, again, speculation.num_speculative_tokens - 1, resolved.engine.drafts_after_prompts)
