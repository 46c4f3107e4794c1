"""vLLM V0 (0.2 to 0.9), its default scheduler: prompts first and whole, then decodes, never both in a step.

vllm/core/scheduler.py, `_schedule_default`, with block_manager.py:

- Waiting requests start, first come first served, while their whole prompts fit in max_num_batched_tokens, seats are
  free, and their blocks leave a watermark of 1 % of the cache. Only a step in which nobody can start decodes.
- A decode needs a free block to go on, even where its last one has room (`can_append_slots` counts the block it
  touches). Without one, the newest running request goes back to the head of the queue and is computed again with all
  it produced.

Steps are scheduled one by one: the API server, the scheduler and the workers take turns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulator.batch import Batch
from simulator.request import Request
from simulator.rules import EngineRules
from simulator.schedulers.batching import NO_HITS
from simulator.schedulers.vllm_v1 import VllmV1

WATERMARK: Final = 0.01  # share of the blocks that new requests leave free


class VllmV0(VllmV1):
    """See the module. A request that is alone may use the watermark; V0 would answer it with nothing."""

    mixes_phases = False
    chunks = False
    takes_over = False
    pipelines = False
    spare_blocks = 1

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(replace(rules, prefix_caching=False))
        self._watermark = int(WATERMARK * rules.kv_blocks)

    def add(self, request: Request) -> None:
        request.keys = ()
        super().add(request)

    def schedule(self) -> Batch | None:
        if self.preempted:
            self.preempted = []
        return self._prefill_batch() or self._decode_batch() or self._prefill_batch()

    def _prefill_batch(self) -> Batch | None:
        self._refused = False
        batch = Batch()
        self._admit(batch, self.rules.max_num_batched_tokens)
        return batch if batch.prefill_tokens else None

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        tokens = request.known_tokens
        if request.retired or tokens > budget:
            return 0
        watermark = self._watermark if self._running else 0
        if -(-tokens // self.rules.block_size) > self.kv.available - watermark:
            self._refused = True
            return 0
        self._seat(batch, request, NO_HITS, tokens)
        return tokens

    def _decode_batch(self) -> Batch | None:
        decodes = self.decodes
        if decodes.n and decodes.blocks_next() > self.kv.available - self.spare_blocks:
            self._make_room()
        n = decodes.n
        if not n:
            return None
        self.kv.take(decodes.blocks_next())
        batch = Batch(0, 0.0, 0, n, *decodes.contexts(), n)
        decodes.advance()
        return batch

    def _make_room(self) -> None:
        while self.decodes.n and not self._all_find_a_block():
            self._preempt()

    def _all_find_a_block(self) -> bool:
        """One after the other, in the order of admission, each with a free block before it."""
        blocks, available = self.decodes.blocks_next(), self.kv.available
        if blocks != available:
            return blocks < available
        last = next(r for r in reversed(self._running) if r.computed_tokens < 0)
        return self.computed_tokens(last) % self.rules.block_size == 0

    def _decode_rounds(self, most: int) -> int:
        """With a block to spare after each."""
        decodes, available = self.decodes, self.kv.available - 1
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if decodes.blocks_for(middle) <= available else (low, middle - 1)
        return low
