"""The scheduler of the fast path for vLLM V1: the decisions of `VllmV1` on numbers, with requests as indices.

A change of `VllmV1` has to be made here too; `tests/simulator/engine/test_fast_path.py` compares both to the last
digit. Where a step would preempt a request, the general loop continues.
"""

from __future__ import annotations

from heapq import heappop

from simulator.core.request import Request
from simulator.engine.fast_rank import FastBatch, FastRank, RequestCounts, StepEvents
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1 import VllmV1


class FastVllmV1(FastRank):
    """The policy of vLLM V1: decodes first, then prompts up to the token budget."""

    __slots__ = ("_most_running", "_refusal", "_refused", "_whole_prompts", "ample_blocks")

    def __init__(self, rules: EngineRules, counts: RequestCounts) -> None:
        """Create an idle scheduler."""
        super().__init__(rules, counts)
        self._whole_prompts = rules.admit_whole_prompt
        # With as many blocks, no step lacks any: a block for each decode, and those of the unfinished prompt's chunk.
        self.ample_blocks = self._seats + self._budget // self._size + 2
        self._refused = False
        self._refusal = (-1, 0, 0)  # the last refusal for lack of blocks: (index, budget, available blocks)
        self._most_running = 0

    def _may_admit(self) -> bool:
        return not self._refused and len(self._running) < self._seats and self.n_decoding < self._budget

    # ---- steps

    def lacks_blocks(self) -> bool:
        """Return whether the running requests need more blocks in the next step than there are."""
        n, size = self.n_decoding, self._size
        blocks = self._phases[-self.rounds % size] if n else 0
        if self._partial >= 0:
            tokens = self._partial_tokens
            chunk = min(self._input_tokens[self._partial] - tokens, self._budget - n)
            blocks += -(-(tokens + chunk) // size) - -(-tokens // size)
        return blocks > self.available

    def schedule(self, events: StepEvents) -> FastBatch | None:
        """Return the batch of the next step: the decodes, the unfinished prompt, then waiting requests."""
        if self.available < self.ample_blocks and self.lacks_blocks():
            self.preempts = True
            return None
        n = self.n_decoding
        if not n and not self._waiting and self._partial < 0:
            return None
        batch, rounds = self._batch, self.rounds
        self.rounds = rounds + 1
        batch.decodes = batch.logits = n
        if n:
            longest, computed = self._longest, self._computed
            while computed[longest[0][2]] >= 0:
                heappop(longest)
            batch.decode_context_sum = float(self._base_sum + n * rounds)
            batch.decode_context_max = float(rounds - longest[0][0])
            if blocks := self._phases[-rounds % self._size]:
                self.available -= blocks
                if self.available < self._min_available:
                    self._min_available = self.available
        else:
            batch.decode_context_sum = batch.decode_context_max = 0.0
        if self._waiting or self._partial >= 0:
            self._refused = False
            n_prompted = len(events.prompted)
            self._schedule_prompts(batch, events)
            if not n and not batch.prefill_tokens:
                self.rounds = rounds
                return None
            if batch.logits > n:
                self._begin_decodes(events.prompted[n_prompted:])
        elif batch.prefill_tokens:
            batch.prefill_tokens = batch.prefill_chunks = 0
            batch.prefill_pairs = 0.0
        if self.due_round <= rounds + 1:
            self._retire_due(events.finishing)
        self._batch = batch.next
        return batch

    def _schedule_prompts(self, batch: FastBatch, events: StepEvents) -> None:
        """Add the next chunk of the unfinished prompt and those of the waiting requests that can be admitted."""
        budget, index, held = self._budget - batch.decodes, self._partial, self._partial_tokens
        input_tokens, waiting = self._input_tokens, self._waiting
        tokens = chunks = 0
        pairs = 0.0
        while budget > 0:
            if index >= 0:
                chunk = input_tokens[index] - held
                if chunk > budget:
                    chunk = budget
                self.available -= -(-(held + chunk) // self._size) - -(-held // self._size)
            else:
                if not waiting:
                    break
                chunk, held = self._admit(budget), 0
                if not chunk:
                    break
                index = waiting.popleft()
                events.admitted.append(index)
            tokens += chunk
            pairs += chunk * (held + 0.5 * chunk)
            chunks += 1
            budget -= chunk
            held += chunk
            if held < input_tokens[index]:
                break  # the budget is used up
            events.prompted.append(index)
            batch.logits += 1
            index = -1
        self._partial, self._partial_tokens = index, held
        batch.prefill_tokens, batch.prefill_pairs, batch.prefill_chunks = tokens, pairs, chunks
        if len(self._running) > self._most_running:
            self._most_running = len(self._running)
        if self.available < self._min_available:
            self._min_available = self.available

    def _admit(self, budget: int) -> int:
        """Give the head of the queue a seat and the blocks of its first chunk, and return the tokens of the chunk.

        Returns 0 if the head has to wait.
        """
        if len(self._running) >= self._seats:
            return 0
        index, available = self._waiting[0], self.available
        refused, at_budget, at_available = self._refusal
        if index == refused and budget >= at_budget and available <= at_available:
            self._refused = True  # nothing has improved since it was refused
            return 0
        tokens, size = self._input_tokens[index], self._size
        chunk = tokens if tokens < budget else budget
        needed = -(-chunk // size)
        if self._whole_prompts and chunk < tokens:
            whole = -(-tokens // size)
            if whole > needed:
                if available - whole < self._least_left:
                    self._least_left = available - whole
                if whole > available:
                    needed = whole
        if needed > available:
            self._refused, self._least_left, self._refusal = True, -1, (index, budget, available)
            return 0
        self._running[index] = None
        self.available = available - needed
        return chunk

    # ---- the hand-over to the general loop

    def restore(self, scheduler: ContinuousBatching, requests: dict[int, Request]) -> None:
        """Write the state into the scheduler of the same policy; `requests` are those of `requests()`."""
        super().restore(scheduler, requests)
        assert isinstance(scheduler, VllmV1)
        scheduler.restore(
            [requests[index] for index in self._waiting],
            [requests[index] for index in self._running],
            requests.get(self._partial),
            self._most_running,
            self._least_left,
            self._refused,
        )
