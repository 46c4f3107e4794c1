"""The common part of continuous-batching policies: a queue, seats, one unfinished prompt, and decodes as sums.

At most one running prompt is unfinished, because a prompt is split only where the token budget ends. Decodes are
handled as sums (`DecodeSet`): each of them advances by one token a step, so the time that the simulator needs for a
step does not depend on their number.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import ClassVar, Final

from simulator.core.batch import Batch
from simulator.core.mypyc_modules import mypyc_attr
from simulator.core.request import Request
from simulator.schedulers.base import Scheduler
from simulator.schedulers.rules import EngineRules

#: The key by which a queue order serves requests, ascending.
RANKS: Final[dict[str, Callable[[Request], tuple[float, int]]]] = {
    "priority": lambda request: (request.priority, request.index),
    "deadline": lambda request: (request.deadline_s, request.index),
}

#: The result of `_hits` without a hit.
NO_HITS: Final = (0, 0, 0, 0)


@mypyc_attr(allow_interpreted_subclasses=True)
class ContinuousBatching(Scheduler):
    """The common part of policies with a queue and seats.

    Attributes:
        shares_prefixes: Requests may reuse cached prefixes of others, if the rules allow it.
        reserve: The number of blocks that must be left when all decodes of a step have taken theirs. If fewer
            are left, a decode may find no block for its next token.

    Raises:
        ValueError: max_num_batched_tokens is smaller than max_num_seqs, which the engines do not allow.
    """

    shares_prefixes: ClassVar[bool] = True
    reserve: ClassVar[int] = 0

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules if self.shares_prefixes else replace(rules, prefix_caching=False))
        if rules.max_num_batched_tokens < rules.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs")
        self.decodes = DecodeSet(rules.block_size)
        self._waiting: deque[Request] = deque()
        self._running: dict[Request, None] = {}  # in order of admission
        self._partial: Request | None = None  # the running request whose prompt is unfinished
        self._rank = RANKS.get(rules.queueing.order)  # the key of the queue order; None: first come, first served
        # The fewest free blocks at the end of any run of decodes considered; negative if there were too few.
        self._least_left = rules.kv_blocks
        self._sending: dict[Request, None] = {}  # requests without a seat whose blocks are sent to another replica

    def share(self, first: ContinuousBatching) -> None:
        """Schedule further batches from the queue and into the cache of another scheduler."""
        self.kv, self._waiting = first.kv, first._waiting

    @property
    def head(self) -> Request | None:
        """Return the first waiting request; None if there is none."""
        return self._waiting[0] if self._waiting else None

    def add(self, request: Request) -> None:
        """Add a request to the queue."""
        if not self.shares_prefixes:
            request.keys = ()
        if self._rank is None:
            self._waiting.append(request)
        else:
            self._waiting.insert(bisect(self._waiting, self._rank(request), key=self._rank), request)

    def withdraw(self, request: Request) -> bool:
        """Remove a request that its client has cancelled; return False if it already decodes."""
        if request in self._running:
            if request is not self._partial:
                return False
            self._partial = None
            self.release(request)
        elif request in self._waiting and not request.computed_tokens:
            self._waiting.remove(request)
        else:
            return False
        return True

    def _prefill(self, batch: Batch, request: Request, tokens: int) -> None:
        """Add `tokens` prompt tokens, whose blocks are held already, to the batch."""
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

    def _hits(self, request: Request) -> tuple[int, int, int, int]:
        """Return the cached prefix of a request: (units, private blocks, blocks of both in the queue, tokens)."""
        if not request.keys and request.own_run is None:
            return NO_HITS
        units, own, queued = self.kv.match(request)
        size = self.rules.block_size
        tokens = min((self.kv.blocks_of(request, units) + own) * size, (request.known_tokens - 1) // size * size)
        return units, own, queued, tokens

    def _chunk_blocks(self, request: Request, tokens: int) -> int:
        """Return the blocks that the next `tokens` of the running prompt need; not positive if it holds them."""
        size, computed = self.rules.block_size, request.computed_tokens
        return -(-(computed + tokens) // size) - max(-(-computed // size), request.shared_blocks)

    def _seat(self, batch: Batch, request: Request, hits: tuple[int, int, int, int], tokens: int) -> None:
        """Give the head of the queue a seat and its cached prefix, and schedule its first `tokens` uncached tokens."""
        units, own, _, hit_tokens = hits
        kv = self.kv
        if request.keys or request.own_run is not None:
            kv.claim(request, units, own)
        request.computed_tokens = hit_tokens
        blocks = -(-(hit_tokens + tokens) // kv.block_size) - (kv.blocks_of(request, units) + own)
        self._start_prompt(batch, request, tokens, blocks)

    def _start_prompt(self, batch: Batch, request: Request, tokens: int, blocks: int) -> None:
        """Give the head of the queue a seat, `blocks` more blocks if positive, and the next `tokens` of its prompt."""
        self._waiting.popleft()
        self._running[request] = None
        if blocks > 0:
            self.kv.take(blocks)
        if request.cached_tokens < 0:
            request.cached_tokens = request.computed_tokens
            batch.admitted += (request,)
        self._prefill(batch, request, tokens)

    def _admit_prefilled(self, batch: Batch, request: Request) -> bool:
        """Give the head of the queue, which arrived with its blocks, a seat and a decode in this step.

        Returns False if its blocks are not free.
        """
        tokens = request.brought_tokens + 1
        if -(-tokens // self.rules.block_size) > self.kv.available:
            return False
        self._waiting.popleft()
        request.brought_tokens = 0
        self._start_decode(batch, request, tokens)
        return True

    def _start_decode(self, batch: Batch, request: Request, tokens: int) -> None:
        """Give a request a seat, the blocks of `tokens` tokens, and a decode of the last of them in this step."""
        self._running[request] = None
        self.kv.take(-(-tokens // self.rules.block_size))
        request.computed_tokens = tokens
        if request.keys:
            self.kv.offer(request, tokens)
        batch.decodes += 1
        batch.decode_context_sum += tokens - 1
        batch.decode_context_max = max(batch.decode_context_max, tokens - 1)
        batch.logits += 1
        batch.prefilled += (request,)
        self.decodes.add(request)

    def _decode_step(self) -> Batch:
        """Return a batch of all decodes, and take the blocks of their next tokens."""
        decodes = self.decodes
        n, blocks = decodes.n, decodes.blocks_next()
        if blocks:
            self.kv.take(blocks)
        batch = Batch(0, 0.0, 0, n, *decodes.contexts(), n)
        decodes.advance()
        return batch

    def _evict(self, request: Request, returning: bool = False, kept_tokens: int | None = None) -> None:
        """Preempt a request that has just lost its seat: free its blocks, so that it starts again from its prompt.

        The last two arguments are those of `KvCache.release`.
        """
        if request is self._partial:
            self._partial = None
        elif not request.retired:
            self.decodes.remove(request)
        self.kv.release(request, request.computed_tokens, returning, kept_tokens)
        request.computed_tokens = 0
        request.preemptions += 1
        self.preempted.append(request)

    def quiet_rounds(self, batch: Batch, most: int) -> int:
        """Return the number of further decode steps of the same requests that involve no decision."""
        if most <= 0 or self.preempted or self.decodes.n != batch.decodes or not self.blocked:
            return 0
        return self._decode_rounds(most) if self._partial is None else 0

    def _decode_rounds(self, most: int) -> int:
        """Return the number of further rounds of decodes (0..most) for which there are free blocks."""
        decodes, available = self.decodes, self.kv.available - self.reserve
        left = available - decodes.blocks_for(most)
        if left < self._least_left:
            self._least_left = left
        if left >= 0:
            return most
        low, high = 0, most  # blocks_for(low) fits, blocks_for(high) does not
        while high - low > 1:
            middle = (low + high) // 2
            if decodes.blocks_for(middle) <= available:
                low = middle
            else:
                high = middle
        return low

    def hold_for_transfer(self, request: Request) -> None:
        """Free the seat of a request whose blocks are sent to another replica."""
        if request in self._running:
            del self._running[request]
            self._sending[request] = None

    def release(self, request: Request) -> None:
        """Free the seat and the blocks of a request."""
        if request in self._running:
            del self._running[request]
        elif request in self._sending:
            del self._sending[request]
        else:  # preempted while its last token was in flight
            self._waiting.remove(request)
            return
        self.kv.release(request, request.computed_tokens)

    def holding_requests(self) -> list[Request]:
        """Return the requests without a seat whose blocks are being sent to another replica."""
        return list(self._sending)

    def retire(self, request: Request) -> None:
        """Stop scheduling a request whose last token has just been scheduled."""
        self.decodes.remove(request)
        request.retired = True

    def blocks_for(self, rounds: int) -> int:
        """Return the blocks that `skip(rounds)` would take."""
        return self.decodes.blocks_for(rounds)

    def skip(self, rounds: int) -> None:
        """Schedule `rounds` rounds of the same decodes at once."""
        blocks = self.decodes.blocks_for(rounds)
        if blocks:
            self.kv.take(blocks)
        self.decodes.rounds += rounds

    @property
    def n_running(self) -> int:
        """Return the number of requests with a seat."""
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    def running_requests(self) -> list[Request]:
        """Return the requests with a seat, in order of admission."""
        return list(self._running)

    def waiting_requests(self) -> list[Request]:
        """Return the waiting requests, in the order of the queue."""
        return list(self._waiting)

    def computed_tokens(self, request: Request) -> int:
        """Return the tokens of a request whose KV is scheduled or stored."""
        computed = request.computed_tokens
        return computed if computed >= 0 else request.base_tokens + self.decodes.rounds


@mypyc_attr(allow_interpreted_subclasses=True)
class DecodeSet:
    """Sums over decoding requests.

    `rounds` counts scheduled steps; a member has base_tokens + rounds tokens in its cache.
    """

    __slots__ = ("_base_sum", "_block_size", "_longest", "_phases", "_serial", "_stale", "n", "rounds", "undrafted")

    def __init__(self, block_size: int) -> None:
        self.n = 0
        self.rounds = 0
        self.undrafted = 0  # members without drafts in the last scheduled round
        self._block_size = block_size
        self._base_sum = 0
        self._phases = [0] * block_size  # members by base_tokens % block_size
        # Heap of (-base, serial, request). Entries of removed requests are dropped when they reach the top.
        self._longest: list[tuple[int, int, Request]] = []
        self._stale = False  # whether the top may be such an entry
        self._serial = 0

    def add(self, request: Request) -> None:
        """Add a request with `request.computed_tokens` tokens in its cache, which decodes from the next round on."""
        base = request.computed_tokens - self.rounds
        request.base_tokens, request.decodes_in = base, self
        self.n += 1
        self._base_sum += base
        self._phases[base % self._block_size] += 1
        self._serial += 1
        heappush(self._longest, (-base, self._serial, request))
        request.computed_tokens = -1  # marks membership; the true value is base + rounds

    def remove(self, request: Request) -> None:
        """Remove a request and restore its token counts."""
        base = request.base_tokens
        self._stale = True
        self.n -= 1
        self._base_sum -= base
        self._phases[base % self._block_size] -= 1
        request.computed_tokens = base + self.rounds
        request.known_tokens = request.computed_tokens + 1

    def advance(self) -> None:
        """Let every member gain one token, by a scheduled decode round."""
        self.rounds += 1

    def contexts(self) -> tuple[int, int]:
        """Return (sum, maximum) of the tokens in the caches of all members before the next round."""
        longest = self._longest
        if self._stale:
            self._stale = False
            while longest and not self._has(*longest[0]):
                heappop(longest)
        if not longest:
            return 0, 0
        return self._base_sum + self.n * self.rounds, self.rounds - longest[0][0]

    def _has(self, negative: int, _: int, request: Request) -> bool:
        """Return whether an entry of the heap belongs to a member."""
        return request.computed_tokens < 0 and request.base_tokens == -negative and request.decodes_in is self

    def blocks_next(self) -> int:
        """Return the blocks that the next round needs: one for each member whose cache is a whole number of blocks."""
        return self._phases[-self.rounds % self._block_size]

    def blocks_for(self, rounds: int) -> int:
        """Return the blocks that the next `rounds` rounds need in total."""
        return blocks_of_rounds(self._phases, self.n, self.rounds, rounds)

    def restore(
        self,
        n: int,
        rounds: int,
        base_sum: int,
        phases: list[int],
        longest: list[tuple[int, int, Request]],
        serial: int,
    ) -> None:
        """Take over the sums over `n` members from `simulator/engine/fast_path.py`.

        Args:
            n: Number of members.
            rounds: Scheduled rounds.
            base_sum: Sum of the members' base_tokens.
            phases: Members by base_tokens % block_size.
            longest: The members as (-base_tokens, serial, request).
            serial: The largest serial.
        """
        self.n, self.rounds, self._base_sum, self._phases, self._serial = n, rounds, base_sum, phases, serial
        self._longest, self._stale = longest, False
        heapify(longest)


def blocks_of_rounds(phases: list[int], n: int, rounds: int, further: int) -> int:
    """Return the blocks that `further` rounds need in total.

    Args:
        phases: Members by base_tokens % block size; as many as a block has tokens.
        n: Number of members.
        rounds: Rounds scheduled before.
        further: The rounds in question.
    """
    size = len(phases)
    whole, rest = divmod(further, size)
    blocks = whole * n
    if rest:
        # Round i (0-based) reads phase (-rounds - i) mod size: `rest` adjacent phases that end at -rounds.
        high = -rounds % size + 1
        low = high - rest
        blocks += sum(phases[low:high]) if low >= 0 else sum(phases[:high]) + sum(phases[low:])
    return blocks
