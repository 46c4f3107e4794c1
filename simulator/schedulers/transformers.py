"""Continuous batching of Hugging Face transformers with its default FIFO scheduler (5.17).

generation/continuous_batching/scheduler.py, `FIFOScheduler.schedule_batch` and `_process_candidates`:

- Decoding requests come first, in order of admission, then the unfinished prompt, then waiting requests in order of
  arrival, while the batch holds fewer than max_batch_tokens tokens and max_requests_per_batch requests. The last prompt
  is split at the budget and continues in the next step; prompts and decodes share a forward pass.
- With less than a share of 0.15 of the blocks free (`safety_margin`), a batch that is not empty takes no more prompt
  tokens, not even of the unfinished prompt.
- Blocks are taken for the tokens of this step only. A waiting request whose chunk does not fit is skipped: a smaller
  one behind it may start.
- Active requests without a block for their next tokens are starved. The newest of them are evicted until the rest fits
  (offloading_manager.py, `offload_requests`, without CPU space: a soft reset), move to the end of the queue and are
  recomputed with all their output; nothing is admitted before a request has finished (`block_new_requests`). Evicted
  blocks are not kept for reuse.

Asynchronous batching, CUDA graphs and the decode fast path need flash attention. With sdpa, the default of
`transformers serve`, steps run one after the other (initialization.py, `decide_use_async_batching`).

sdpa computes every query of a step against every key of all its requests and masks the keys of other requests
(utils.py, `build_attention_mask`): the pairs of a step with a prompt are that rectangle. Decode-only steps are priced
by their own contexts.
"""

from __future__ import annotations

from typing import Final

from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.rules import EngineRules

SAFETY_MARGIN: Final = 0.15  # FIFOScheduler.__init__

#: More requests than ever run.
ENDLESS: Final = 1 << 60


class TransformersCb(ContinuousBatching):
    """The policy of transformers' continuous batching."""

    hands_over = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self._seats = min(rules.max_num_seqs, rules.kv_blocks)  # update_cb_config_after_cache_creation
        self._margin_blocks = SAFETY_MARGIN * rules.kv_blocks
        self._full_at = ENDLESS  # after an eviction: nothing is admitted until fewer than these run
        self._keys = 0  # keys of the prompts in this step, including their cached tokens

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, or None if nothing can run."""
        if self.preempted:
            self.preempted = []
        while (blocks := self.decodes.blocks_next()) > self.kv.available and len(self._running) > 1:
            self._preempt()
        n = self.decodes.n if blocks <= self.kv.available else 0
        batch = self._decode_step() if n else Batch()
        self._keys = 0
        budget = self.rules.max_num_batched_tokens - n
        if self._partial is not None and not self._short(batch):
            budget -= self._continue_prompt(batch, self._partial, budget)
        if len(self._running) < self._full_at:
            self._full_at = ENDLESS
        if self._partial is None and len(self._running) < self._full_at:
            self._admit(batch, budget)
        if batch.prefill_chunks:
            keys = self._keys + int(batch.decode_context_sum) + n
            # The decodes' own pairs are the rest.
            batch.prefill_pairs = float(batch.tokens * keys - batch.decode_context_sum)
        return batch if batch.tokens else None

    def _prefill(self, batch: Batch, request: Request, tokens: int) -> None:
        self._keys += request.computed_tokens + tokens
        super()._prefill(batch, request, tokens)

    def _short(self, batch: Batch) -> bool:
        """Return whether too few blocks are free to add prompt tokens to a batch that is not empty."""
        return self.kv.available < self._margin_blocks and batch.tokens > 0

    def _continue_prompt(self, batch: Batch, request: Request, budget: int) -> int:
        """Schedule the next chunk of the running prompt; return its tokens (0 if it lost its blocks or waits)."""
        tokens = min(request.known_tokens - request.computed_tokens, budget)
        if not tokens:
            return 0
        blocks = max(0, self._chunk_blocks(request, tokens))
        if blocks > self.kv.available:
            if len(self._running) > 1:
                self._preempt()
            return 0
        self.kv.take(blocks)
        self._prefill(batch, request, tokens)
        return tokens

    def _admit(self, batch: Batch, budget: int) -> None:
        """Give waiting requests seats and their first chunks; skip requests that do not fit."""
        if budget <= 0 or len(self._running) >= self._seats:
            return  # avoids copying a long queue
        for request in tuple(self._waiting):
            if budget <= 0 or len(self._running) >= self._seats or self._short(batch):
                return
            hits = units, own, queued, hit_tokens = self._hits(request)
            tokens = min(request.known_tokens - hit_tokens, budget)
            held = self.kv.blocks_of(request, units) + own
            if -(-(hit_tokens + tokens) // self.rules.block_size) - held + queued > self.kv.available:
                continue
            self._waiting.remove(request)
            self._waiting.appendleft(request)
            self._seat(batch, request, hits, tokens)
            budget -= tokens

    def _preempt(self) -> None:
        """Evict the newest of the requests that find no block for their next tokens."""
        request = self._starved()
        del self._running[request]
        self._waiting.insert(len(self._waiting) - len(self.preempted), request)  # the oldest of them comes first
        self._evict(request)
        self._full_at = len(self._running)

    def _starved(self) -> Request:
        """Return the newest decode that needs a block if there are too few; otherwise the unfinished prompt."""
        if self.decodes.blocks_next() > self.kv.available:
            size = self.rules.block_size
            for request in reversed(self._running):
                if request.computed_tokens < 0 and self.computed_tokens(request) % size == 0:
                    return request
        assert self._partial is not None
        return self._partial

    @property
    def blocked(self) -> bool:
        """Return whether no waiting request can be admitted before something is released."""
        if not self._waiting or len(self._running) >= min(self._full_at, self._seats):
            return True
        return self.decodes.n > 0 and self.kv.available < self._margin_blocks
