"""SGLang (0.4.8 and later): first come first served, radix cache, no mixed chunks.

A step is either prefill or decode, and prefill comes first. Whenever waiting requests can be admitted, they are, up to
chunked_prefill_size tokens (max_num_batched_tokens here); the last prompt is split and continues in the next step. A
request is admitted if its prompt, all the output that it declares (clipped) and a share of the possible further output
of the running requests fit in the free cache. This share, new_token_ratio, falls with every decode step and is
estimated again when the cache runs out. The requests with the fewest output tokens then return to the end of the queue.

After a refusal because of tokens or seats, no prefill is tried until the running batch gets smaller, which is noticed
in the decode step after the one that made it smaller.

With `receiving` set, the engine reads arrived requests only every few decode steps (SchedulerRecvSkipper), after every
step of prompts, and at once when there is nothing to run.

The stages of a pipeline run one micro-batch each (managers/scheduler_pp_mixin.py, event_loop_pp), without the overlap
schedule. Every micro-batch has its own running requests, its own mark that it is full, and an even share of the seats.
The queue, new_token_ratio, the count of steps between reads and the one prompt that is cut are those of the engine: the
next micro-batch continues the prompt while its last part is still in a later stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from catalogs.engines.model_defaults import ReceiveIntervals
from simulator.cache.encoder_cache import RequestEmbeddings
from simulator.core.batch import Batch, Encoding
from simulator.core.mypyc_modules import mypyc_attr
from simulator.core.request import Request
from simulator.schedulers.continuous_batching import NO_HITS, ContinuousBatching
from simulator.schedulers.declared_output import (
    INIT_RATIO,
    DeclaredOutput,
    DeclaringDecodes,
    NewTokenRatio,
    clipped,
)
from simulator.schedulers.rules import EngineRules

# Default environment variable of SGLang (python/sglang/srt/environ.py): SGLANG_RETRACT_DECODE_STEPS.
RETRACT_STEPS: Final = 20

MOST_SORTED: Final = 128  # SchedulePolicy._determine_active_policy: longer queues are served first come, first served


@mypyc_attr(allow_interpreted_subclasses=True)
class Sglang(ContinuousBatching):
    """The scheduling policy of SGLang."""

    mixes_phases = False
    takes_over = True
    pipelines = True

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self._size = rules.block_size
        self._by_prefix = rules.queueing.order == "prefix"
        self._declared_output = DeclaredOutput(rules)
        self.decodes = DeclaringDecodes(rules.block_size, self._declared_output)
        self._full = False  # no prefill until the running batch gets smaller
        self._left = 0  # requests that left the running batch and still count in it
        self._ratio = NewTokenRatio()
        self._batches: list[Sglang] = [self]  # the schedulers of all batches in flight
        self._promised = 0.0  # tokens that running requests and those of this batch may still take
        self._interval = ReceiveInterval(rules.receiving) if rules.receiving else None  # None: reads before every step
        self._unread: deque[Request] = deque()  # arrived requests that the engine has not read
        self._prefilled = False  # whether the last step was a prefill

    def share(self, first: ContinuousBatching) -> None:
        """Schedule a further batch of the engine of another scheduler."""
        super().share(first)
        assert isinstance(first, Sglang)
        self._ratio, self._interval, self._unread = first._ratio, first._interval, first._unread
        self._batches = first._batches
        self._batches.append(self)

    @property
    def new_token_ratio(self) -> float:
        """Return the share of the declared remaining output that admission keeps free."""
        return self._ratio.value

    @property
    def _engine_runs(self) -> bool:
        """Return whether a request has a seat, in any batch in flight."""
        return any(batch._running for batch in self._batches)

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, or None if nothing can run."""
        if self.preempted:
            self.preempted = []
        interval = self._interval
        if interval is not None and (interval.count() or self._prefilled):
            self._read_arrivals(interval)
        batch = self._next_batch()
        # An idle engine polls and reads arrivals within a few milliseconds.
        if batch is None and interval is not None and self._unread:
            self._read_arrivals(interval)
            batch = self._next_batch()
        if batch is None and not self._waiting and not self._engine_runs:
            self._ratio.set(INIT_RATIO)  # as SGLang when idle
        self._prefilled = batch is not None and batch.prefill_tokens > 0
        return batch

    def _next_batch(self) -> Batch | None:
        return self._prefill_batch() or self._decode_batch() or self._prefill_batch()

    def add(self, request: Request) -> None:
        """Add an arrived request; an engine that reads arrivals only at intervals does not see it yet."""
        (self._waiting if self._interval is None else self._unread).append(request)

    def withdraw(self, request: Request) -> bool:
        """Remove a request that its client has cancelled; return False if it already decodes."""
        if request in self._unread:
            self._unread.remove(request)
            return True
        return super().withdraw(request)

    def _read_arrivals(self, interval: ReceiveInterval) -> None:
        """Move the arrived requests to the queue."""
        self._waiting.extend(self._unread)
        self._unread.clear()
        interval.restart(len(self._running) + len(self._waiting))

    def _prefill_batch(self) -> Batch | None:
        if len(self._batches) > 1 and not self._takes_over_cut_prompt():
            return None
        partial = self._partial
        if partial is None and (self._full or not self._waiting):
            return None
        ratio = self.new_token_ratio
        self._promised = ratio * self._declared_by_decodes()
        batch = Batch()
        budget = self.rules.max_num_batched_tokens
        if self._by_prefix and 1 < len(self._waiting) <= MOST_SORTED:
            ranked = sorted(self._waiting, key=lambda request: -self._hits(request)[3])
            self._waiting.clear()
            self._waiting.extend(ranked)
        if partial is not None:
            tokens = self._cut(partial.known_tokens - partial.computed_tokens, budget)
            blocks = max(0, self._chunk_blocks(partial, tokens))
            if blocks > self.kv.available:
                return None  # decodes of other batches in flight took the blocks; they will release them
            self.kv.take(blocks)
            self._prefill(batch, partial, tokens)
            budget -= self._charge(partial, tokens)
        while self._waiting and budget > 0 and self._partial is None and not self._waiting[0].brought_tokens:
            tokens = self._admit_head(batch, self._waiting[0], budget)
            if not tokens:
                break
            budget -= tokens
        return batch if batch.prefill_tokens else None

    def _takes_over_cut_prompt(self) -> bool:
        """Take over the prompt that another batch in flight has cut, if any; return False if it needs a seat first."""
        owner = next((batch for batch in self._batches if batch._partial is not None), self)
        if owner is self:
            return True
        if len(self._running) + self._left >= self.rules.max_num_seqs:
            return False
        prompt = owner._partial
        assert prompt is not None
        del owner._running[prompt]
        owner._partial, self._partial = None, prompt
        self._running[prompt] = None
        return True

    def _cut(self, tokens: int, budget: int) -> int:
        """Return the next chunk of a prompt: if it exceeds the budget, it is split at a page."""
        if tokens <= budget:
            return tokens
        return budget // self._size * self._size or budget

    def _charge(self, request: Request, tokens: int) -> int:
        """Account for a prompt's chunk: its budget in whole pages, and its output once the prompt is complete."""
        size = self._size
        if request is not self._partial:
            self._promised += self._left_of(request) + size
        return -(-tokens // size) * size

    def _left_of(self, request: Request) -> int:
        """Return the output tokens that a request may still produce, by its declared maximum and clipped."""
        most = self._declared_output.most_tokens(request.input_tokens)
        known = request.base_tokens + self.decodes.rounds + 1 if request.computed_tokens < 0 else request.known_tokens
        return clipped(most - known)

    def _decoding(self) -> list[Request]:
        """Return the running requests whose prompts are complete, in order of admission."""
        return [request for request in self._running if request.computed_tokens < 0]

    def _declared_by_decodes(self) -> int:
        """Return the output tokens that the decoding requests may still produce: `_declared(_decoding())` at once."""
        return self._declared_output.tokens_after(self.decodes.rounds)

    def _declared(self, requests: Iterable[Request]) -> int:
        """Return the output tokens that requests may still produce, each by its declared maximum and clipped."""
        tokens = 0
        for request in requests:
            tokens += self._left_of(request)
        return tokens

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        """Admit the head of the queue; return its cost in the budget, 0 if it must wait."""
        if len(self._running) + self._left >= self.rules.max_num_seqs:
            self._full = True
            return 0
        hits = _, _, queued, hit_tokens = self._hits(request)
        rest = request.known_tokens - hit_tokens
        free_tokens = (self.kv.available - queued) * self._size - self._promised
        if self._engine_runs and rest + self._left_of(request) + self._size >= free_tokens:
            self._full = True
            return 0
        tokens = self._cut(rest, budget)
        if tokens < rest and (not self.rules.chunked_prefill or (batch.prefill_tokens and tokens % self._size)):
            return 0
        if self._sending and -(-rest // self._size) > self.kv.available - queued:
            self._full = True  # blocks being sent to another replica are not counted as promised, but they are taken
            return 0
        self._seat(batch, request, hits, tokens)
        return self._charge(request, tokens)

    def _decode_batch(self) -> Batch | None:
        decodes = self.decodes
        if self._left:
            self._left, self._full = 0, False
        elif not self._running:
            self._full = False
        if not decodes.n:
            return self._take_over(Batch())
        if decodes.blocks_next() > self.kv.available:
            least = int(not any(batch._running for batch in self._batches if batch is not self))
            while decodes.blocks_next() > self.kv.available and decodes.n > least:
                self._preempt()
            if decodes.blocks_next() > self.kv.available or not decodes.n:
                self._full = True
                return None  # until a request with its last token in flight frees its blocks
            self._estimate_ratio()
            self._full = False
        else:
            self._ratio.decay(1)
        batch = self._decode_step()
        if self._waiting and self._waiting[0].brought_tokens and not self._full:
            self._promised = self.new_token_ratio * self._declared(self._running)
            self._admit_prefilled_heads(batch)
        return batch

    def _take_over(self, batch: Batch) -> Batch | None:
        """Return a step of requests that arrived with their blocks, without other decodes."""
        self.decodes.advance()
        self._promised = 0.0
        self._admit_prefilled_heads(batch)
        if batch.decodes:
            return batch
        self.decodes.rounds -= 1
        return None

    def _admit_prefilled_heads(self, batch: Batch) -> None:
        """Let requests at the head of the queue that arrived with their blocks decode in this step.

        They need seats, and space for their possible output (DecodePreallocQueue requires as much before blocks are
        sent).
        """
        while self._waiting and self._waiting[0].brought_tokens:
            request = self._waiting[0]
            rest = request.brought_tokens + self._left_of(request) + self._size
            seated = len(self._running) + self._left < self.rules.max_num_seqs
            fits = not self._running or rest < self.kv.available * self._size - self._promised
            if not (seated and fits and self._admit_prefilled(batch, request)):
                self._full = True
                return
            self._promised += self._left_of(request) + self._size

    def _preempt(self) -> None:
        """Retract the decoding request with the fewest output tokens, among equals the one with the longest prompt."""
        decoding = self._decoding()[::-1]
        request = min(decoding, key=lambda r: (r.base_tokens - r.input_tokens, -r.input_tokens))
        del self._running[request]
        prompt_blocks = request.input_tokens // self._size - request.shared_blocks
        self._evict(request, returning=True, kept_tokens=request.input_tokens)
        request.own_full_blocks = min(request.own_full_blocks, max(0, prompt_blocks))  # generated tokens are not kept
        self._waiting.append(request)

    def restore(
        self,
        waiting: list[Request],
        running: list[Request],
        partial: Request | None,
        full: bool,
        left: int,
        ratio_steps: int,
    ) -> None:
        """Take over the queue and the seats from `simulator/engine/fast_path.py`.

        Args:
            waiting: The waiting requests, first come first.
            running: The requests with a seat, in order of admission.
            partial: The running request whose prompt is unfinished, if any.
            full: Whether no prefill is tried until the running batch gets smaller.
            left: Requests that left the running batch and still count in it.
            ratio_steps: Decode steps since new_token_ratio was at its start.
        """
        self._waiting.extend(waiting)
        self._running = dict.fromkeys(running)
        self._partial, self._full, self._left = partial, full, left
        self._ratio.set(INIT_RATIO)
        self._ratio.decay(ratio_steps)

    def _estimate_ratio(self) -> None:
        """Estimate the ratio after a retraction, from the output and the declared output of the remaining requests.

        The output is increased by a margin of RETRACT_STEPS tokens for each request.
        """
        decoding = self._decoding()
        made = declared = 0
        for request in decoding:
            tokens = self.computed_tokens(request) - request.input_tokens + 1
            made += tokens
            declared += tokens + self._left_of(request)
        self._ratio.set(min(1.0, (made + RETRACT_STEPS * len(decoding)) / (declared + 1)))

    def release(self, request: Request) -> None:
        """Free the seat and the blocks of a request."""
        self._left += request in self._running
        super().release(request)

    def hold_for_transfer(self, request: Request) -> None:
        """Free the seat of a request whose blocks are sent to another replica."""
        super().hold_for_transfer(request)
        self._left += 1

    def quiet_rounds(self, batch: Batch, most: int) -> int:
        """Return the number of further decode steps of the same requests that involve no decision."""
        if most <= 0 or self.preempted or self._partial is not None or self.decodes.n != batch.decodes:
            return 0
        if self._waiting and (not self._full or self._left):
            return 0
        if self._interval is not None and self._unread:
            most = min(most, self._interval.left)
        return self._decode_rounds(most) if most > 0 else 0

    def skip(self, rounds: int) -> None:
        """Schedule `rounds` rounds of the same decodes at once."""
        super().skip(rounds)
        self._ratio.decay(rounds)
        if self._interval is not None:
            self._interval.skip(rounds, len(self._running) + len(self._waiting))
        if rounds and self._left:
            self._left, self._full = 0, False

    @property
    def n_waiting(self) -> int:
        """Return the number of waiting requests, unread ones included."""
        return len(self._waiting) + len(self._unread)

    @property
    def feeds_idle_batches(self) -> bool:
        """Return whether a request waits or a prompt is cut."""
        return self.n_waiting > 0 or any(batch._partial is not None for batch in self._batches)

    def waiting_requests(self) -> list[Request]:
        """Return the waiting requests, unread ones included."""
        return [*self._waiting, *self._unread]

    @property
    def blocked(self) -> bool:
        """Return whether no waiting request can be admitted before something is released."""
        if self._interval is not None:
            return False  # the time of an arrival decides when it is read
        return not self._waiting or (self._full and not self._left)


class SglangMedia(Sglang):
    """SGLang for requests with images or videos (`_get_chunked_prefill_embedding` in srt/managers/mm_utils.py).

    All items of a request are encoded at once, in the first step that computes a part of its prompt, whatever chunk the
    step computes; there is no budget. A later chunk reads the embeddings from a cache, whose keys are all items of a
    request together and which evicts the least recently used entry. Where they do not fit in the cache at all, every
    chunk that begins before the end of the items encodes them again. Items whose tokens are in the radix cache are not
    encoded.

    A server behind an encoder pool (`--language-only`) reads a request when all its embeddings have arrived, and
    encodes nothing.

    Simplifications: the requests of a step are encoded in one pass, and images and videos of one request as one entry;
    SGLang runs one pass for each request and each kind of item.

    Raises:
        ValueError: The rules state no limits of encoding.
    """

    pipelines = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        if rules.encoder_limits is None:
            raise ValueError("a scheduler of images and videos needs the limits of encoding")
        self._encodes = rules.encoder_limits.where != "elsewhere"
        self.encoders = self._cache = RequestEmbeddings(rules.encoder_limits.cache)

    def _prefill(self, batch: Batch, request: Request, tokens: int) -> None:
        """Add `tokens` prompt tokens to the batch, and encode the items of the prompt if none of its steps has."""
        if self._encodes and request.media and request.media[-1].end > request.computed_tokens:
            self._encode(batch, request)
        super()._prefill(batch, request, tokens)

    def _encode(self, batch: Batch, request: Request) -> None:
        cache, items = self._cache, request.media
        first = request is not self._partial
        key = tuple(item.content for item in items)
        if cache.find(key):
            cache.n_hits += len(items) * first
            return
        cache.insert(key, sum([item.layout.embeddings for item in items]))
        cache.n_encoded += len(items)
        encoding = batch.moving().encoding or Encoding()
        for item in items:
            encoding = encoding.plus(item.layout)
        batch.moving().encoding = encoding


class SglangEncoder(ContinuousBatching):
    """SGLang's server that only encodes (`--encoder-only`, `EncoderScheduler` in srt/disaggregation/encode_server.py).

    One loop takes the waiting requests in the order of their arrival, at most SGLANG_ENCODER_MAX_BATCH_SIZE of them
    (max_num_seqs here), encodes all their items in one pass, and sends the embeddings while it takes the next requests.
    It has no budget and, by default, no cache of embeddings. Every step ends the requests that it takes.

    Simplification: videos, which SGLang encodes one request at a time, are encoded together with images and audio.
    """

    pipelines = False
    shares_prefixes = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self.encoders = self._items = RequestEmbeddings(0)  # counts items and keeps none

    def schedule(self) -> Batch | None:
        """Return the batch of the next pass, or None if no request waits."""
        if not self._waiting:
            return None
        batch, encoding = Batch(), Encoding()
        for _ in range(min(len(self._waiting), self.rules.max_num_seqs - len(self._running))):
            request = self._waiting[0]
            self._seat(batch, request, NO_HITS, request.known_tokens)
            encoding = self._with_items(encoding, request)
        batch.moving().encoding, batch.logits = encoding, 0
        return batch

    def _with_items(self, encoding: Encoding, request: Request) -> Encoding:
        for item in request.media:
            encoding = encoding.plus(item.layout)
        self._items.n_encoded += len(request.media)
        return encoding

    @property
    def blocked(self) -> bool:
        """Return whether no request waits: a pass takes the first of them, whatever else the server holds."""
        return not self._waiting


class ReceiveInterval:
    """The steps between two reads of an engine that reads arrivals every few steps (SGLang's SchedulerRecvSkipper).

    The number of steps depends on `busy`, the requests that the engine had at its last read.
    """

    def __init__(self, receiving: ReceiveIntervals) -> None:
        self._receiving = receiving
        self.restart(0)

    @property
    def left(self) -> int:
        """Return the further steps without a read."""
        return self._steps - self._since - 1

    def count(self) -> bool:
        """Count a step that begins; return whether arrivals are read now."""
        self._since += 1
        return self._since >= self._steps

    def restart(self, busy: int) -> None:
        """Record a read of all arrivals."""
        self._steps, self._since = self._receiving.interval(busy), 0  # steps until the next read, steps since this one

    def skip(self, steps: int, busy: int) -> None:
        """Count `steps` steps whose reads found nothing; unread requests arrived after them."""
        self._since += steps
        if self._since >= self._steps:
            rest = self._since - self._steps
            self.restart(busy)
            self._since = rest % self._steps
