"""Static batching: a batch is padded to its longest prompt, computed to its longest output, and leaves together.

This is FasterTransformer, and `generate` of Hugging Face transformers with a list of prompts:

- An idle engine takes waiting requests in order of arrival, at most max_num_seqs and as many as fit. Later requests
  wait until the whole batch is done.
- Prompts are padded to the longest of the batch and computed in one step. Every sequence computes, caches and attends
  to the padded length in every step.
- A sequence that has ended is padded until the last one ends. The cache holds the maximum that the batch may need.
- The output is sent as a whole when the batch is done: clients see their first token with the last.

`OneAtATime` is plain PyTorch: a batch of one request, whose tokens are streamed.
"""

from __future__ import annotations

from itertools import islice
from math import inf
from typing import ClassVar

from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.rules import EngineRules


class StaticBatching(ContinuousBatching):
    """Static batching. max_num_batched_tokens limits the padded prompts of a batch."""

    mixes_phases = False
    preempts = False
    chunks = False
    pads = True
    hands_over = False
    shares_prefixes = False  # prompts are computed in full
    streams: ClassVar[bool] = False
    seats: ClassVar[int | None] = None  # most requests of a batch; None: max_num_seqs

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self._seats = rules.max_num_seqs if self.seats is None else self.seats
        self._unfinished = 0  # requests of the batch whose last token is not scheduled yet

    def schedule(self) -> Batch | None:
        """Return the next decode step of the batch, or the prefill of a new batch; None if nothing can run."""
        if not self._running:
            return self._start()
        return self._decode_step() if self._unfinished else None  # None: the last step of the batch is in flight

    def _start(self) -> Batch | None:
        """Return the prefill of the next batch, with prompts padded to the longest."""
        n = self._batch_size()
        if not n:
            return None
        members = tuple(self._waiting.popleft() for _ in range(n))
        longest = max(request.known_tokens for request in members)
        self.kv.take(n * -(-longest // self.rules.block_size))
        for request in members:
            self._running[request] = None
            request.cached_tokens, request.computed_tokens = 0, longest
            self.decodes.add(request)
        self._unfinished = n
        batch = Batch(n * longest, n * longest * (0.5 * longest), n, logits=n)
        batch.admitted = batch.prompted = members
        return batch

    def _batch_size(self) -> int:
        """Return the number of requests from the head of the queue that form a batch now; 0 to wait for more.

        As Triton's dynamic batcher (core, src/dynamic_batch_scheduler.cc, `GetDynamicBatch`): the largest preferred
        size that is available starts at once. A batch that reaches no preferred size starts when its oldest request has
        waited for max_delay_s.
        """
        queueing = self.rules.queueing
        most = self._fitting()
        self.retry_s = inf
        if not most or not (queueing.max_delay_s or queueing.preferred_batch_sizes):
            return most
        preferred = queueing.preferred_batch_sizes or (self._seats,)
        best = max((size for size in preferred if size <= most), default=0)
        oldest_s = min(request.reached_s for request in islice(self._waiting, most))
        waited = queueing.max_delay_s > 0.0 and self.now_s >= oldest_s + queueing.max_delay_s
        if best and not waited:
            return best
        if waited or not queueing.max_delay_s or most >= max(preferred) or most < len(self._waiting):
            return most
        self.retry_s = oldest_s + queueing.max_delay_s
        return 0

    def _fitting(self) -> int:
        """Return the number of requests from the head of the queue that fit in a batch."""
        rules, longest, declared = self.rules, 0, 0
        for n, request in enumerate(self._waiting, 1):
            if n > self._seats:
                return self._seats
            longest = max(longest, request.known_tokens)
            declared = max(declared, min(rules.max_output_tokens, rules.max_model_len - request.input_tokens))
            blocks = n * -(-(longest + declared) // rules.block_size)
            if n > 1 and (n * longest > rules.max_num_batched_tokens or blocks > rules.kv_blocks):
                return n - 1
        return len(self._waiting)

    def retire(self, request: Request) -> None:
        """Count a request whose last token has just been scheduled; it stays in the batch."""
        request.retired = True
        self._unfinished -= 1

    def leaving(self, request: Request) -> tuple[Request, ...]:  # noqa: ARG002
        """Return the whole batch after its last token, and nothing before."""
        return () if self._unfinished else tuple(self._running)

    def release(self, request: Request) -> None:
        """Free the seat and the blocks of a request."""
        self.decodes.remove(request)
        super().release(request)

    def quiet_rounds(self, batch: Batch, most: int) -> int:
        """Return the number of further decode steps of the same batch that involve no decision."""
        return super().quiet_rounds(batch, most) if self._unfinished else 0

    @property
    def blocked(self) -> bool:
        """Return whether the batch is running or no request waits."""
        return bool(self._running) or not self._waiting


class OneAtATime(StaticBatching):
    """One request at a time, from its prompt to its end; tokens are streamed."""

    streams = True
    seats = 1
