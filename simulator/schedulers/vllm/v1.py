"""vLLM V1 (0.8 and later), first come first served.

Running requests come first: each decode gets one token, and an unfinished prompt gets what the budget allows. Waiting
requests follow in order while budget, seats and blocks allow, unless a request was preempted in this step. Preemption
takes the newest running request, frees its blocks and puts it at the head of the queue with nothing computed.

If there is an unfinished prompt, it is the newest running request.
"""

from __future__ import annotations

from typing import ClassVar

from simulator.core.batch import Batch
from simulator.core.mypyc_modules import mypyc_attr
from simulator.core.request import Request
from simulator.schedulers.continuous_batching import NO_HITS, ContinuousBatching
from simulator.schedulers.rules import EngineRules, PeakUse


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmV1(ContinuousBatching):
    """The policy of vLLM V1."""

    takes_over = True
    pipelines = True
    admits_after_preemption: ClassVar[bool] = False  # requests may start in a step with a preemption

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        speculation = rules.speculation
        # Tokens that each decode takes from the budget.
        self._decode_tokens = speculation.queries + speculation.budget_tokens if speculation else 1
        self._most_running = 0
        self._chunk = 0  # tokens of the unfinished prompt if planned before the decodes; 0: as many as fit
        self._refused = False  # the head of the queue does not fit, and will not before something is released
        self._refusal: tuple[Request | None, int, int, int] = (None, 0, 0, 0)  # (head, insertions, budget, available)

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, or None if nothing can run."""
        decodes = self.decodes
        if self.preempted:
            self.preempted = []
        n = decodes.n
        if n:
            blocks = decodes.blocks_next()
            if blocks > self.kv.available - self.reserve or (self._rank is not None and self._partial is not None):
                self._preempt_for_decodes()
                blocks, n = decodes.blocks_next(), decodes.n
            if blocks:
                self.kv.take(blocks)
            context_sum, context_max = decodes.contexts()
            batch = Batch(0, 0.0, 0, n, context_sum, context_max, n)
        else:
            batch = Batch()
        decodes.advance()
        budget = self.rules.max_num_batched_tokens - n * self._decode_tokens
        if decodes.undrafted:
            budget += decodes.undrafted * (self._decode_tokens - 1)
        if self._partial is not None:
            budget -= self._continue_prompt(batch, self._partial, budget)
            self._chunk = 0
        self._refused = False
        if self._waiting and (not self.preempted or self.admits_after_preemption):
            self._admit(batch, budget)
        if not batch.decodes and not batch.prefill_tokens:
            decodes.rounds -= 1
            return None
        return batch

    def _preempt_for_decodes(self) -> None:
        """Preempt requests until the decodes of this step find their blocks."""
        while self.decodes.blocks_next() > self.kv.available:
            self._preempt()
        partial = self._partial
        if self._rank is None or partial is None:
            return
        # The unfinished prompt, which takes blocks last, may outrank decodes: preempt those before the batch is made.
        budget = self.rules.max_num_batched_tokens - self.decodes.n * self._decode_tokens
        self._chunk = min(partial.known_tokens - partial.computed_tokens, budget)
        blocks = max(0, self._chunk_blocks(partial, self._chunk))
        while self._partial is not None and self.decodes.blocks_next() + blocks > self.kv.available:
            self._preempt()
        if self._partial is None:
            self._chunk = 0

    def _continue_prompt(self, batch: Batch, request: Request, budget: int) -> int:
        """Schedule the next chunk of the running prompt; return its tokens (0 if it was preempted)."""
        tokens = min(request.known_tokens - request.computed_tokens, budget, self._chunk or budget)
        blocks = self._chunk_blocks(request, tokens)
        while blocks > self.kv.available:
            self._preempt()
            if self._rank is None or self.preempted[-1] is request:
                return 0
        if blocks > 0:
            self.kv.take(blocks)
        self._prefill(batch, request, tokens)
        return tokens

    def _admit(self, batch: Batch, budget: int) -> None:
        waiting, running = self._waiting, self._running
        seats = self.rules.max_num_seqs - len(running)
        while waiting and budget > 0 and seats > 0:
            tokens = self._admit_head(batch, waiting[0], budget)
            if not tokens:
                break
            budget -= tokens
            seats -= 1
        if len(running) > self._most_running:
            self._most_running = len(running)

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        """Give the head of the queue a seat and its first chunk; return the tokens, 0 if it must wait."""
        kv = self.kv
        head, insertions, at_budget, at_available = self._refusal
        if head is request and insertions == kv.insertions and budget >= at_budget and kv.available <= at_available:
            self._refused = True  # nothing has improved since it was refused
            return 0
        if request.retired:
            return 0
        if request.brought_tokens:
            self._refused = not self._admit_prefilled(batch, request)
            return int(not self._refused)
        size = self.rules.block_size
        hits = NO_HITS if not request.keys and request.own_run is None else self._hits(request)
        units, own, queued, hit_tokens = hits
        hit_blocks = kv.blocks_of(request, units) + own
        tokens = request.known_tokens - hit_tokens
        if tokens > budget:
            if not self.rules.chunked_prefill:
                self._refused = True
                return 0
            tokens = budget
        blocks = -(-(hit_tokens + tokens) // size) - hit_blocks
        reserve = -(-request.known_tokens // size) - hit_blocks if self.rules.admit_whole_prompt else 0
        needed = reserve if reserve > blocks else blocks
        if reserve > blocks and kv.available - needed < self._least_left:
            self._least_left = kv.available - needed
        if (needed if needed > 0 else 0) + queued > kv.available:
            self._refuse(request, hit_blocks - queued, budget)
            self._least_left = -1
            return 0
        self._seat(batch, request, hits, tokens)
        return tokens

    def _refuse(self, request: Request, held_hits: int, budget: int) -> None:
        """Remember a refusal that will last.

        As time goes on, blocks run out and hits in the queue are lost. Losing hits can make a request fit whose chunk
        the budget limits, so the refusal lasts only if the request would not fit even without the hits that no request
        holds.
        """
        tokens = request.known_tokens
        if not self.rules.admit_whole_prompt:
            tokens = min(tokens, held_hits * self.rules.block_size + budget)
        if -(-tokens // self.rules.block_size) - held_hits > self.kv.available:
            self._refusal = (request, self.kv.insertions, budget, self.kv.available)
            self._refused = True

    def add(self, request: Request) -> None:
        """Add a request to the queue."""
        super().add(request)
        if self._rank is not None and self._waiting[0] is request:
            self._refused = False  # the refused request is no longer the head

    @property
    def peak_use(self) -> PeakUse | None:
        """Return how much of its limits the engine has used; None for subclasses, which have other limits."""
        least = min(self._least_left, self.kv.min_available)
        return PeakUse(self._most_running, least) if type(self) is VllmV1 else None

    def restore(
        self,
        waiting: list[Request],
        running: list[Request],
        partial: Request | None,
        most_running: int,
        least_left: int,
        refused: bool,
    ) -> None:
        """Take over the queue and the seats from `simulator/engine/fast_path.py`.

        Args:
            waiting: The waiting requests, first come first.
            running: The requests with a seat, in order of admission.
            partial: The running request whose prompt is unfinished, if any.
            most_running: Most requests that had a seat at the same time.
            least_left: Fewest free blocks at the end of any run of decodes considered.
            refused: Whether the last schedule refused the head of the queue for lack of blocks.
        """
        self._waiting.extend(waiting)
        self._running = dict.fromkeys(running)
        self._partial, self._most_running, self._least_left, self._refused = partial, most_running, least_left, refused

    def _preempt(self) -> None:
        """Take the seat and the blocks of the newest running request, or of the last one in the queue order."""
        self._least_left = -1
        if self._rank is None:
            request, _ = self._running.popitem()
        else:
            request = max(self._running, key=self._rank)
            del self._running[request]
        self._evict(request, returning=True)
        self._refusal = (None, 0, 0, 0)  # it left blocks that it alone can hit
        if self._rank is None:
            self._waiting.appendleft(request)
        else:
            super().add(request)

    @property
    def blocked(self) -> bool:
        """Return whether no waiting request can be admitted before something is released."""
        if not self._waiting or self._refused:
            return True
        rules = self.rules
        if len(self._running) >= rules.max_num_seqs:
            return True
        return self.decodes.n * self._decode_tokens >= rules.max_num_batched_tokens
