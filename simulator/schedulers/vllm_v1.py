"""vLLM V1 (0.8 and later), first come first served.

Running requests first: each decode one token, an unfinished prompt as much as the budget allows; then waiting requests
in order while budget, seats and blocks allow, unless something was preempted in this step. Preemption takes the newest
running request, frees its blocks and puts it at the head of the queue with nothing computed.

At most one running prompt is unfinished and it is the newest, because a prompt is cut only where the budget ends.
So decodes are handled as sums (DecodeSet) and a step costs the same however many run.
"""

from __future__ import annotations

from collections import deque

from simulator.decode_set import DecodeSet
from simulator.request import Batch, Request
from simulator.rules import EngineRules
from simulator.schedulers.base import Scheduler


class VllmV1(Scheduler):
    """See the module. Needs max_num_batched_tokens >= max_num_seqs, as vLLM does; raises ValueError otherwise."""

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        if rules.max_num_batched_tokens < rules.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs")
        self.decodes = DecodeSet(rules.block_size)
        self._waiting: deque[Request] = deque()
        self._running: dict[Request, None] = {}  # in order of admission
        self._partial: Request | None = None  # the running request whose prompt is unfinished
        self._refused = False  # the head of the queue does not fit, and will not before something is released
        self._refusal: tuple[Request | None, int, int, int] = (None, 0, 0, 0)  # (head, insertions, budget, available)

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def schedule(self) -> Batch | None:
        decodes = self.decodes
        if self.preempted:
            self.preempted = []
        n = decodes.n
        if n:
            blocks = decodes.blocks_next()
            if blocks:
                while blocks > self.kv.available:
                    self._preempt()
                    blocks = decodes.blocks_next()
                self.kv.take(blocks)
                n = decodes.n
            batch = Batch(0, 0.0, 0, n, decodes.context_sum, decodes.context_max, n)
        else:
            batch = Batch()
        decodes.rounds += 1
        budget = self.rules.max_num_batched_tokens - n
        if self._partial is not None:
            budget -= self._continue_prompt(batch, self._partial, budget)
        self._refused = False
        if self._waiting and not self.preempted:
            self._admit(batch, budget)
        if not n and not batch.prefill_tokens:
            decodes.rounds -= 1
            return None
        return batch

    def _continue_prompt(self, batch: Batch, request: Request, budget: int) -> int:
        """Schedule the next chunk of the running prompt; returns its tokens (0: preempted for want of blocks)."""
        size = self.rules.block_size
        computed = request.computed_tokens
        tokens = min(request.known_tokens - computed, budget)
        blocks = -(-(computed + tokens) // size) - max(-(-computed // size), request.shared_blocks)
        if blocks > self.kv.available:
            self._preempt()
            return 0
        if blocks > 0:
            self.kv.take(blocks)
        self._prefill(batch, request, tokens)
        return tokens

    def _prefill(self, batch: Batch, request: Request, tokens: int) -> None:
        """Add `tokens` prompt tokens to the batch; their blocks are held already."""
        computed = request.computed_tokens
        batch.prefill_tokens += tokens
        batch.prefill_pairs += tokens * (computed + 0.5 * tokens)
        batch.prefill_chunks += 1
        computed += tokens
        request.computed_tokens = computed
        if request.keys:
            self.kv.offer(request, computed)
        if computed < request.known_tokens:
            self._partial = request
            return
        self._partial = None
        batch.logits += 1
        batch.prompted += (request,)
        self.decodes.add(request)

    def _admit(self, batch: Batch, budget: int) -> None:
        waiting, running = self._waiting, self._running
        seats = self.rules.max_num_seqs - len(running)
        while waiting and budget > 0 and seats > 0:
            tokens = self._admit_head(batch, waiting[0], budget)
            if not tokens:
                return
            budget -= tokens
            seats -= 1

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        """Give the head of the queue a seat and its first chunk; returns the tokens, 0 if it must wait."""
        kv = self.kv
        head, insertions, at_budget, at_available = self._refusal
        if head is request and insertions == kv.insertions and budget >= at_budget and kv.available <= at_available:
            self._refused = True  # nothing got better since it was refused
            return 0
        if request.retired:
            return 0
        size = self.rules.block_size
        units = own = queued = hit_tokens = hit_blocks = 0
        if request.keys or request.own_run is not None:
            units, own, queued = kv.match(request)
            hit_blocks = units * kv.unit_blocks + own
            hit_tokens = min(hit_blocks * size, (request.known_tokens - 1) // size * size)
        tokens = request.known_tokens - hit_tokens
        if tokens > budget:
            if not self.rules.chunked_prefill:
                self._refused = True
                return 0
            tokens = budget
        blocks = max(0, -(-(hit_tokens + tokens) // size) - hit_blocks)
        reserve = -(-request.known_tokens // size) - hit_blocks if self.rules.admit_whole_prompt else blocks
        if max(blocks, reserve) + queued > kv.available:
            self._refuse(request, hit_blocks - queued, budget)
            return 0
        self._waiting.popleft()
        self._running[request] = None
        if request.keys or request.own_run is not None:
            kv.claim(request, units, own)
        kv.take(blocks)
        request.computed_tokens = hit_tokens
        if request.cached_tokens < 0:
            request.cached_tokens = hit_tokens
            batch.admitted += (request,)
        self._prefill(batch, request, tokens)
        return tokens

    def _refuse(self, request: Request, held_hits: int, budget: int) -> None:
        """Remember a refusal that will last.

        Blocks run out and hits in the queue are lost as time goes on. Losing hits can make a request fit whose chunk
        the budget cuts, so the refusal lasts only if it would not fit even without the hits nobody holds.
        """
        tokens = request.known_tokens
        if not self.rules.admit_whole_prompt:
            tokens = min(tokens, held_hits * self.rules.block_size + budget)
        if -(-tokens // self.rules.block_size) - held_hits > self.kv.available:
            self._refusal = (request, self.kv.insertions, budget, self.kv.available)
            self._refused = True

    def _preempt(self) -> None:
        """Take the seat and the blocks of the newest running request."""
        request, _ = self._running.popitem()
        if request is self._partial:
            self._partial = None
        elif not request.retired:
            self.decodes.remove(request)
        self.kv.release(request, request.computed_tokens, returning=True)
        request.computed_tokens = 0
        request.preemptions += 1
        self._refusal = (None, 0, 0, 0)  # it left blocks that only it can hit
        self._waiting.appendleft(request)
        self.preempted.append(request)

    def retire(self, request: Request) -> None:
        self.decodes.remove(request)
        request.retired = True

    def release(self, request: Request) -> None:
        if request in self._running:
            del self._running[request]
            self.kv.release(request, request.computed_tokens)
        else:  # preempted while its last token was in flight
            self._waiting.remove(request)

    def quiet_rounds(self, batch: Batch, most: int) -> int:
        decodes = self.decodes
        if most <= 0 or self.preempted or decodes.n != batch.decodes or not self.blocked:
            return 0
        available = self.kv.available
        if decodes.blocks_for(most) <= available:
            return most
        low, high = 0, most  # blocks_for(low) fits, blocks_for(high) does not
        while high - low > 1:
            middle = (low + high) // 2
            if decodes.blocks_for(middle) <= available:
                low = middle
            else:
                high = middle
        return low

    def skip(self, rounds: int) -> None:
        blocks = self.decodes.blocks_for(rounds)
        if blocks:
            self.kv.take(blocks)
        self.decodes.rounds += rounds

    @property
    def blocked(self) -> bool:
        if not self._waiting or self._refused:
            return True
        rules = self.rules
        return len(self._running) >= rules.max_num_seqs or self.decodes.n >= rules.max_num_batched_tokens

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def running_requests(self) -> list[Request]:
        return list(self._running)

    def waiting_requests(self) -> list[Request]:
        return list(self._waiting)

    def computed_tokens(self, request: Request) -> int:
        computed = request.computed_tokens
        return computed if computed >= 0 else request.base_tokens + self.decodes.rounds
