"""The scheduler of the fast path for SGLang: the decisions of `Sglang` on numbers, with requests as indices.

A step is either prompts or decodes, and rounds count only the latter. A change of `Sglang` has to be made here too;
`tests/simulator/engine/test_fast_path.py` compares both to the last digit. Where a step would retract a request, the
general loop continues.
"""

from __future__ import annotations

from heapq import heappop

from simulator.core.request import Request
from simulator.engine.fast_rank import FastBatch, FastRank, RequestCounts, StepEvents
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.declared_output import DeclaredOutput, clipped, new_token_ratio
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.sglang import Sglang


class FastSglang(FastRank):
    """The policy of SGLang: prompts as long as any can start, otherwise the decodes."""

    __slots__ = ("_declared", "_full", "_left", "_ratio_since")

    def __init__(self, rules: EngineRules, counts: RequestCounts) -> None:
        """Create an idle scheduler."""
        super().__init__(rules, counts)
        self._declared = DeclaredOutput(rules)
        self._full, self._left = False, 0  # as in `Sglang`
        self._ratio_since = 0  # the round from which new_token_ratio has fallen

    def _may_admit(self) -> bool:
        return not self._full or self._left > 0

    def free(self, index: int) -> None:
        """Free the seat and the blocks of a request whose last output has been processed."""
        super().free(index)
        self._left += 1

    # ---- steps

    def schedule(self, events: StepEvents) -> FastBatch | None:
        """Return the batch of the next step: prompts if any can run, or the decodes."""
        batch = self._prompts(events)
        if batch is None:
            n = self.n_decoding
            if n and self._phases[-self.rounds % self._size] > self.available:
                self.preempts = True
                return None
            if self._left:
                self._left, self._full = 0, False
            elif not self._running:
                self._full = False
            batch = self._decodes(events) if n else self._prompts(events)
            if batch is None:
                if not self._waiting and not self._running:
                    self._ratio_since = self.rounds  # as SGLang when idle
                return None
        self._batch = batch.next
        return batch

    def _prompts(self, events: StepEvents) -> FastBatch | None:
        """Return the next chunk of the unfinished prompt and those of the waiting requests that can be admitted.

        The result is None if there are none.
        """
        index, waiting = self._partial, self._waiting
        if index < 0 and (self._full or not waiting):
            return None
        size, seats, input_tokens, declared = self._size, self._seats, self._input_tokens, self._declared
        running, available, budget = self._running, self.available, self._budget
        promised = new_token_ratio(self.rounds - self._ratio_since) * declared.tokens_after(self.rounds)
        n_prompted, tokens, chunks, pairs = len(events.prompted), 0, 0, 0.0
        if index >= 0:
            held, whole = self._partial_tokens, input_tokens[index]
            chunk = whole - held
            if chunk > budget:
                chunk = budget // size * size or budget
            blocks = -(-(held + chunk) // size) - -(-held // size)
            if blocks > available:
                return None
            available -= blocks
            tokens, chunks, pairs = chunk, 1, chunk * (held + 0.5 * chunk)
            if held + chunk < whole:
                self._partial_tokens = held + chunk
            else:
                self._partial = -1
                events.prompted.append(index)
                left = declared.most_tokens(whole) - whole - 1
                promised += clipped(left) + size
            budget -= -(-chunk // size) * size
        while waiting and budget > 0 and self._partial < 0:
            index = waiting[0]
            if len(running) + self._left >= seats:
                self._full = True
                break
            whole = input_tokens[index]
            left = declared.most_tokens(whole) - whole
            most = clipped(left)
            if running and whole + most + size >= available * size - promised:
                self._full = True
                break
            chunk = whole
            if chunk > budget:
                chunk = budget // size * size or budget
                if tokens and chunk % size:
                    break
            waiting.popleft()
            running[index] = None
            events.admitted.append(index)
            available -= -(-chunk // size)
            tokens += chunk
            pairs += chunk * (0.5 * chunk)
            chunks += 1
            if chunk < whole:
                self._partial, self._partial_tokens = index, chunk
            else:
                events.prompted.append(index)
                left -= 1
                promised += clipped(left) + size
            budget -= -(-chunk // size) * size
        if not tokens:
            return None
        self.available = available
        if available < self._min_available:
            self._min_available = available
        batch, prompted = self._batch, events.prompted[n_prompted:]
        batch.decodes, batch.decode_context_sum, batch.decode_context_max = 0, 0.0, 0.0
        batch.prefill_tokens, batch.prefill_pairs, batch.prefill_chunks = tokens, pairs, chunks
        batch.logits = len(prompted)
        if prompted:
            self._begin_decodes(prompted)
            if self.due_round <= self.rounds:
                self._retire_due(events.finishing)
        return batch

    def _decodes(self, events: StepEvents) -> FastBatch:
        """Return the decodes, for whose next tokens there are blocks."""
        batch, n, rounds = self._batch, self.n_decoding, self.rounds
        self.rounds = rounds + 1
        longest, computed = self._longest, self._computed
        while computed[longest[0][2]] >= 0:
            heappop(longest)
        batch.decodes = batch.logits = n
        batch.decode_context_sum = float(self._base_sum + n * rounds)
        batch.decode_context_max = float(rounds - longest[0][0])
        batch.prefill_tokens, batch.prefill_pairs, batch.prefill_chunks = 0, 0.0, 0
        if blocks := self._phases[-rounds % self._size]:
            self.available -= blocks
            if self.available < self._min_available:
                self._min_available = self.available
        if self.due_round <= rounds + 1:
            self._retire_due(events.finishing)
        return batch

    def _begin_decodes(self, prompted: list[int]) -> None:
        super()._begin_decodes(prompted)
        for index in prompted:
            self._declared.add(self._end(index))

    def _retire_due(self, finishing: list[int]) -> None:
        n = len(finishing)
        super()._retire_due(finishing)
        for index in finishing[n:]:
            self._declared.remove(self._end(index))

    def _end(self, index: int) -> int:
        """Return the round in which a request will have produced all that it declares (see `DeclaredOutput`)."""
        return self._declared.most_tokens(self._input_tokens[index]) - self._bases[index] - 1

    # ---- runs of steps

    def skip(self, rounds: int, ahead: FastBatch | None, events: StepEvents) -> None:
        """Apply schedule calls that a run of steps has skipped."""
        super().skip(rounds, ahead, events)
        if self._left:
            self._left, self._full = 0, False

    # ---- the hand-over to the general loop

    def restore(self, scheduler: ContinuousBatching, requests: dict[int, Request]) -> None:
        """Write the state into the scheduler of the same policy; `requests` are those of `requests()`."""
        super().restore(scheduler, requests)
        assert isinstance(scheduler, Sglang)
        scheduler.restore(
            [requests[index] for index in self._waiting],
            [requests[index] for index in self._running],
            requests.get(self._partial),
            self._full,
            self._left,
            self.rounds - self._ratio_since,
        )
