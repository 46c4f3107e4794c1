"""vLLM V0 (0.2 to 0.9): whole prompts first, then decodes, never both in a step; recomputation or swap.

vllm/core/scheduler.py, `_schedule_default`, with block_manager.py (`VllmV0`):

- Waiting requests start, first come first served, while their whole prompts fit in max_num_batched_tokens, seats are
  free, and their blocks leave a watermark of 1 % of the cache. A step decodes only if no request can start.
- A decode needs a free block to continue, even if its last block has space (`can_append_slots` counts the block that it
  touches). Without one, the newest running request returns to the head of the queue and is recomputed with all its
  output.

Steps are scheduled one by one: the API server, the scheduler and the workers take turns.

With `--preemption-mode swap` (`SwappingV0`), blocks move to host memory and come back, and nothing is recomputed:

- `_preempt_by_swap` moves a request out when a decode finds no block. `_schedule_swapped` moves requests back in the
  order in which they left, in a step of decodes that preempted no request and while 1 % of the cache stays free. No
  prompt starts while a request is swapped out.
- `Worker.execute_worker` runs the copies before the model on one stream, so the step waits for them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from simulator.cache.offload import SwapSpace
from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.schedulers.continuous_batching import NO_HITS
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1 import VllmV1

#: Share of the blocks that new requests must leave free: the default of `watermark` in vllm/core/block_manager.py.
WATERMARK: Final = 0.01


class VllmV0(VllmV1):
    """vLLM V0 with preemption by recomputation.

    A request that is alone may use the watermark. V0 itself would end it without output.
    """

    mixes_phases = False
    chunks = False
    takes_over = False
    pipelines = False
    shares_prefixes = False
    reserve = 1

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self._watermark = int(WATERMARK * rules.kv_blocks)

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, or None if nothing can run."""
        if self.preempted:
            self.preempted = []
        return self._prefill_batch() or self._decode_batch() or self._prefill_batch()

    def _prefill_batch(self) -> Batch | None:
        self._refused = False
        batch = Batch()
        self._admit(batch, self.rules.max_num_batched_tokens)
        return batch if batch.prefill_tokens else None

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        known = request.known_tokens
        if request.retired or (known > budget and not self.chunks):
            return 0
        blocks, tokens = self._blocks(known), min(known, budget)
        if blocks > self._startable_blocks:
            self._refused = True
            return 0
        self._seat(batch, request, NO_HITS, tokens)
        self.kv.take(blocks - self._blocks(tokens))
        return tokens

    def _blocks(self, tokens: int) -> int:
        """Return the blocks that hold `tokens` tokens."""
        return -(-tokens // self.rules.block_size)

    @property
    def _startable_blocks(self) -> int:
        """Return free blocks that a request may take when it starts; one that is alone may also use the watermark."""
        return self.kv.available - (self._watermark if self._running else 0)

    def _decode_batch(self) -> Batch | None:
        decodes = self.decodes
        if decodes.n and decodes.blocks_next() > self.kv.available - self.reserve:
            self._preempt_for_decodes()
        return self._decode_step() if decodes.n else None

    def _preempt_for_decodes(self) -> None:
        while self.decodes.n and not self._all_find_a_block():
            self._preempt()

    def _all_find_a_block(self) -> bool:
        """Return whether every decode, in order of admission, has a free block when its turn comes."""
        blocks, available = self.decodes.blocks_next(), self.kv.available
        if blocks != available:
            return blocks < available
        last = next(r for r in reversed(self._running) if r.computed_tokens < 0)
        return self.computed_tokens(last) % self.rules.block_size == 0


class SwappingV0(VllmV0):
    """vLLM V0 with preemption by swap."""

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self.swap_space = self._space = SwapSpace(rules.swap.blocks if rules.swap else 0)
        self._swapped: deque[Request] = deque()
        self._moved = 0  # blocks moved in this step

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, with the blocks that it moves, or None if nothing can run."""
        self._moved = 0
        batch = super().schedule()
        if batch is not None and self._moved:
            batch.moving().blocks = self._moved
        return batch

    def _prefill_batch(self) -> Batch | None:
        return None if self._swapped else super()._prefill_batch()

    def _decode_batch(self) -> Batch | None:
        batch = super()._decode_batch()
        if not self._swapped or (batch is not None and self.preempted):
            return batch
        if batch is None:
            batch = Batch()
            self.decodes.advance()
        while self._swapped and self._swap_in(batch, self._swapped[0]):
            pass
        if batch.decodes:
            return batch
        self.decodes.rounds -= 1
        return None

    def _swap_in(self, batch: Batch, request: Request) -> bool:
        """Move the request that left first back in, to decode in this step; return False if it does not fit."""
        tokens = request.computed_tokens + 1
        if len(self._running) >= self.rules.max_num_seqs or self._blocks(tokens) > self._startable_blocks:
            return False
        self._swapped.popleft()
        held = self._blocks(request.computed_tokens)
        self._space.give_back(held)
        self._moved += held
        self._start_decode(batch, request, tokens)
        return True

    def _preempt(self) -> None:
        """Move the newest running request out."""
        request, _ = self._running.popitem()
        self.decodes.remove(request)
        blocks = self._blocks(request.computed_tokens)
        self._space.take(blocks)
        self._moved += blocks
        self.kv.release(request, request.computed_tokens)
        request.preemptions += 1
        self._swapped.append(request)
        self.preempted.append(request)

    @property
    def blocked(self) -> bool:
        """Return whether no waiting request can be admitted, which includes that a request is swapped out."""
        return bool(self._swapped) or super().blocked

    @property
    def n_waiting(self) -> int:
        """Return the number of waiting requests, swapped ones included."""
        return len(self._waiting) + len(self._swapped)

    def holding_requests(self) -> list[Request]:
        """Return the requests without a seat whose blocks are held, on the device or in the swap space."""
        return [*super().holding_requests(), *self._swapped]

    def held_blocks(self, request: Request) -> int:
        """Return the device blocks of a request; 0 if it is swapped out."""
        return 0 if request in self._swapped else super().held_blocks(request)
