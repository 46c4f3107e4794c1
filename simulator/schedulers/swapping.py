"""vLLM V0 that preempts by swap (`--preemption-mode swap`): blocks go to host memory and come back, nothing is computed
again.

vllm/core/scheduler.py: `_preempt_by_swap` moves a request out when a decode finds no block, `_schedule_swapped` moves
requests back in the order they left, in a step of decodes that preempted nobody and while 1 % of the cache stays free.
No prompt starts while somebody is swapped out. `Worker.execute_worker` puts the copies before the model on one stream,
so the step waits for them.
"""

from __future__ import annotations

from collections import deque

from simulator.batch import Batch
from simulator.request import Request
from simulator.rules import EngineRules
from simulator.schedulers.vllm_v0 import VllmV0
from simulator.swap import SwapSpace


class SwappingV0(VllmV0):
    """See the module. A request that is alone may use the watermark."""

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self.swap_space = self._space = SwapSpace(rules.swap.blocks if rules.swap else 0)
        self._swapped: deque[Request] = deque()
        self._moved = 0  # blocks, in this step

    def schedule(self) -> Batch | None:
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

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.rules.block_size)

    def _swap_in(self, batch: Batch, request: Request) -> bool:
        """Move the first that left back in and let it decode in this step, if it fits."""
        tokens = request.computed_tokens + 1
        watermark = self._watermark if self._running else 0
        full = len(self._running) >= self.rules.max_num_seqs
        if full or self._blocks(tokens) > self.kv.available - watermark:
            return False
        self._swapped.popleft()
        held = self._blocks(request.computed_tokens)
        self._space.give_back(held)
        self._moved += held
        self._running[request] = None
        self.kv.take(self._blocks(tokens))
        request.computed_tokens = tokens
        batch.decodes += 1
        batch.decode_context_sum += tokens - 1
        batch.decode_context_max = max(batch.decode_context_max, tokens - 1)
        batch.logits += 1
        batch.joined += (request,)
        self.decodes.add(request)
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
        return bool(self._swapped) or super().blocked

    @property
    def n_waiting(self) -> int:
        return len(self._waiting) + len(self._swapped)

    def holding_requests(self) -> list[Request]:
        return [*super().holding_requests(), *self._swapped]

    def held_blocks(self, request: Request) -> int:
        return 0 if request in self._swapped else super().held_blocks(request)
