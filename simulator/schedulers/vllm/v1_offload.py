"""vLLM V1 with KV blocks offloaded to host memory (OffloadingConnector).

If host memory or disk hold more of the prefix of the queue's head than the device does, the request does not start. It
gets blocks for that prefix and leaves the queue (WAITING_FOR_REMOTE_KVS) while the others are served. The copy starts
with the step in which the prefix was found. The request gets blocks only if those of all prompts in progress stay free.
When the blocks are filled, it returns to the front of the queue with these tokens computed.
"""

from __future__ import annotations

from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1 import VllmV1


class OffloadingV1(VllmV1):
    """vLLM V1 with a host cache. The replica sets `host`."""

    pipelines = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self._fetched: dict[Request, None] = {}  # requests at the front of the queue whose blocks are filled

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, or None if nothing can run."""
        if self.fetches:
            self.fetches = []
        batch = super().schedule()
        # The last running request freed blocks for requests that hold some: try again.
        if batch is None and self.preempted:
            preempted = self.preempted
            batch = super().schedule()
            self.preempted = preempted
        return batch

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        if request in self._fetched:
            return self._start_fetched(batch, request, budget)
        while not self._refused_before(request, budget):
            started = self._fetch(request)
            if started is None:
                return 0
            if not started:
                break
            if not self._waiting:
                return 0
            request = self._waiting[0]
        return super()._admit_head(batch, request, budget)

    def _refused_before(self, request: Request, budget: int) -> bool:
        """Return whether the request was refused before and nothing has improved since."""
        head, insertions, at_budget, at_available = self._refusal
        kv = self.kv
        return head is request and insertions == kv.insertions and budget >= at_budget and kv.available <= at_available

    def _fetch(self, request: Request) -> bool | None:
        """Give the head of the queue blocks for what the host has of its prefix, and take it out of the queue.

        Returns False if the host has nothing, and None if there are no blocks yet.
        """
        host, kv, size = self.host, self.kv, self.rules.block_size
        if host is None or request.retired or request.brought_tokens or not request.keys:
            return False
        units, own, queued, _ = self._hits(request)
        more = 0 if own else host.find(request.keys[: kv.units_in(request, request.known_tokens)], units)
        held = kv.blocks_of(request, units)
        tokens = min(kv.blocks_of(request, units + more) * size, (request.known_tokens - 1) // size * size)
        blocks = tokens // size - held
        if not more or blocks <= 0:
            return False
        whole = -(-request.known_tokens // size) - held if self.rules.admit_whole_prompt else blocks
        if max(whole, blocks + self._reserved()) + queued > kv.available:
            self._refuse(request, held - queued, 1)
            return None
        kv.claim(request, units, 0)
        kv.take(blocks)
        self._waiting.popleft()
        request.computed_tokens = tokens
        request.fetching, request.fetched_blocks = request.keys[units : units + more], blocks
        request.offered_units = max(request.offered_units, units + more)
        host.reserve(request)
        self.fetching[request] = None
        self.fetches.append(request)
        return True

    def _reserved(self) -> int:
        """Return the blocks that prompts in progress still need."""
        size = self.rules.block_size
        under_way = [*self.fetching, *self._fetched, *([self._partial] if self._partial else [])]
        return sum(-(-r.known_tokens // size) - max(-(-r.computed_tokens // size), r.shared_blocks) for r in under_way)

    def resume_fetched(self, request: Request) -> None:
        """Put a request whose blocks have arrived from the host at the front of the queue."""
        del self.fetching[request]
        self.kv.offer(request, request.computed_tokens)
        self._waiting.insert(len(self._fetched), request)
        self._fetched[request] = None
        self._refused = False  # the refused request is no longer the head

    def _start_fetched(self, batch: Batch, request: Request, budget: int) -> int:
        """Give a request with filled blocks a seat and its next chunk; return the tokens, 0 if it must wait."""
        rest = request.known_tokens - request.computed_tokens
        tokens = min(rest, budget)
        blocks = self._chunk_blocks(request, tokens)
        if blocks > self.kv.available or (tokens < rest and not self.rules.chunked_prefill):
            self._refused = True
            return 0
        del self._fetched[request]
        self._start_prompt(batch, request, tokens, blocks)
        return tokens

    def _prefill(self, batch: Batch, request: Request, tokens: int) -> None:
        copy = self.host.due(request, request.computed_tokens + tokens) if self.host else None
        super()._prefill(batch, request, tokens)
        if copy is not None:
            batch.moving().copies += (copy,)

    def _preempt(self) -> None:
        request = next(reversed(self._running))
        self._leave(request)
        super()._preempt()
        if self._fetched:  # requests that hold blocks are served first
            self._waiting.popleft()
            self._waiting.insert(len(self._fetched), request)

    def release(self, request: Request) -> None:
        """Free the seat and the blocks of a request, which the host keeps."""
        if request in self._running or request in self._sending:
            self._leave(request)
        super().release(request)

    def _leave(self, request: Request) -> None:
        """Copy the last full blocks of a request, which gives up its blocks, to the host."""
        if self.host is None:
            return
        copy = self.host.due(request, self.computed_tokens(request))
        if copy is not None:
            self.host.store(copy)
        self.host.mark_used(request)

    @property
    def n_waiting(self) -> int:
        """Return the number of waiting requests, those with blocks being copied included."""
        return len(self._waiting) + len(self.fetching)

    def waiting_requests(self) -> list[Request]:
        """Return the waiting requests that hold no blocks."""
        return [r for r in self._waiting if r not in self._fetched]

    def holding_requests(self) -> list[Request]:
        """Return the requests that wait and hold blocks."""
        return [*super().holding_requests(), *self.fetching, *self._fetched]
