"""The server of llama.cpp: slots, each with its own context, filled in the order of their numbers.

This is what `update_slots` does between two calls of `llama_decode` (tools/server/server-context.cpp, build of
2026-11):

- Requests take a free slot first come, first served: the least recently used one, and among unused ones the one with
  the highest number (`get_available_slot`). If every slot is taken they are deferred, and with every release one leaves
  the deferred queue for the front of the tasks (`server_queue::pop_deferred_task`), those of one step in reverse order.
  A request that arrives while a batch is computed is seen after it.
- `pre_decode`: every generating slot adds its last token. Unfinished prompts are then added in the order of their
  slots, not of their arrival, until the batch holds n_batch tokens. A prompt that does not fit continues in the next
  batch, and several prompts may be unfinished. Prompts and decodes share one `llama_decode`.
- `post_decode`: sampling, streaming and release follow when the whole batch is done. Nothing is preempted, because the
  context of a slot is reserved.

With `--split-mode layer` (pipeline_parallel) every GPU computes its layers of a batch in turn, so a step takes the sum
of all stages and no second batch is in flight. llama.cpp can copy the inputs of a long prompt ahead
(GGML_SCHED_MAX_COPIES), so that its physical batches follow each other through the GPUs; that is not simulated.

Inside `llama_decode` the batch runs in physical batches of at most n_ubatch tokens. With a cache per slot (-np without
--kv-unified) these are cut by `llama_batch_allocr::split_equal` (src/llama-batch.cpp): slots with consecutive numbers
and an equal number of tokens of each. Three decodes in slots 4, 5 and 7 are two passes over the weights. A prompt in a
batch with decodes gives its first token to their pass and runs the rest in a separate one.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable

from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.rules import EngineRules


class LlamaCpp(ContinuousBatching):
    """The policy of llama.cpp. The context of a slot is max_model_len, and the cache holds as many slots as fit."""

    preempts = False
    hands_over = False
    shares_prefixes = False  # every slot has its own cache

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        context_blocks = -(-rules.max_model_len // rules.block_size)
        slots = min(rules.max_num_seqs, max(1, rules.kv_blocks // context_blocks))
        self._free = deque(range(slots - 1, -1, -1))  # in the order of their use
        self._released: list[int] = []  # slots freed since the last schedule() call, ascending
        self._deferred = 0  # requests at the head of the queue that found no slot before
        self._slot_of: dict[Request, int] = {}
        self._prompts: dict[int, Request] = {}  # requests with unfinished prompts, by slot
        self._decoding: list[int] = []  # slots that generate, ascending
        self._decode_passes = 1  # passes of a batch that contains only these

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, or None if nothing can run."""
        self._launch()
        n = self.decodes.n
        if not n and not self._prompts:
            return None
        batch = self._decode_step() if n else Batch()
        batch.passes = self._decode_passes
        if self._prompts:
            self._fill(batch, self.rules.max_num_batched_tokens - n)
        return batch

    def _launch(self) -> None:
        """Assign free slots to waiting requests."""
        self._free.extend(self._released)
        self._released.clear()
        if self._waiting and self._free:
            popped = [self._waiting.popleft() for _ in range(min(self._deferred, len(self._free)))]
            self._waiting.extendleft(popped)  # in reverse order
        while self._waiting and self._free:
            request, slot = self._waiting.popleft(), self._free.popleft()
            self._running[request] = None
            self._slot_of[request] = slot
            self._prompts[slot] = request
        self._deferred = len(self._waiting)

    def _fill(self, batch: Batch, budget: int) -> None:
        """Add prompts in the order of their slots until the budget is used up."""
        rows = [(slot, 1) for slot in self._decoding]
        for slot in sorted(self._prompts):
            request = self._prompts[slot]
            tokens = min(request.known_tokens - request.computed_tokens, budget)
            if not tokens:
                break
            budget -= tokens
            rows.append((slot, tokens))
            if request.cached_tokens < 0:
                request.cached_tokens = 0
                batch.admitted += (request,)
            self.kv.take(self._chunk_blocks(request, tokens))
            self._prefill(batch, request, tokens)
            if request.computed_tokens < 0:  # the prompt is complete
                del self._prompts[slot]
                insort(self._decoding, slot)
        batch.passes = count_passes(rows, self.rules.physical_batch_tokens)
        if batch.prompted:
            self._count_decode_passes()

    def _count_decode_passes(self) -> None:
        self._decode_passes = count_passes([(slot, 1) for slot in self._decoding], self.rules.physical_batch_tokens)

    def withdraw(self, request: Request) -> bool:
        """Remove a request that its client has cancelled; return False if it already decodes."""
        slot = self._slot_of.get(request)
        if slot in self._prompts:
            del self._prompts[slot]
            self.release(request)
            return True
        if request in self._waiting and self._waiting.index(request) < self._deferred:
            self._deferred -= 1
        return super().withdraw(request)

    def retire(self, request: Request) -> None:
        """Stop scheduling a request whose last token has just been scheduled."""
        super().retire(request)
        self._decoding.remove(self._slot_of[request])
        self._count_decode_passes()

    def release(self, request: Request) -> None:
        """Free the slot and the blocks of a request."""
        insort(self._released, self._slot_of.pop(request))
        super().release(request)

    def quiet_rounds(self, batch: Batch, most: int) -> int:
        """Return the number of further decode steps of the same slots that involve no decision."""
        if most <= 0 or self._prompts or self.decodes.n != batch.decodes or not self.blocked:
            return 0
        return self._decode_rounds(most)

    @property
    def blocked(self) -> bool:
        """Return whether no waiting request can get a slot before one is released."""
        if not self._waiting:
            return True
        return not (self._free or self._released) and self._deferred == len(self._waiting)


def count_passes(rows: Iterable[tuple[int, int]], most: int) -> int:
    """Return the passes over the weights of a batch of (slot, tokens) rows, in the order in which they were added.

    The batch is cut as by `split_equal`. Passes that fill `most` tokens (0: no limit) keep the device busy with
    arithmetic, so cutting there costs almost nothing and they are not counted. The result is at least 1.
    """
    left = [row for row in rows if row[1]]
    passes = 0
    while left:
        members = [0]  # the positions of the rows in the next pass: the first slot and those consecutive to it
        for i, (slot, _) in enumerate(left):
            if slot == left[0][0] + len(members):
                members.append(i)
        each = min(left[i][1] for i in members)
        limit = max(1, most // len(members)) if most else each
        passes += each <= limit
        each = min(each, limit)
        for i in members:
            left[i] = (left[i][0], left[i][1] - each)
        left = [row for row in left if row[1]]
    return max(1, passes)
