"""The schedulers written out the long way: every request visited in every step, every block an object.

Slow and independent of the simulator's sums and runs; both must decide the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.schedulers.base import Scheduler
from simulator.schedulers.rules import EngineRules


class Block:
    def __init__(self) -> None:
        self.key: object = None
        self.references = 0


class Pool:
    """One FIFO of free blocks and a map from content to block."""

    def __init__(self, n: int) -> None:
        self.free: deque[Block] = deque(Block() for _ in range(n))
        self.known: dict[object, list[Block]] = {}

    def take(self) -> Block:
        block = self.free.popleft()
        if block.key is not None:
            self.known[block.key].remove(block)
            if not self.known[block.key]:
                del self.known[block.key]
            block.key = None
        block.references = 1
        return block

    def share(self, block: Block) -> None:
        if block.references == 0:
            self.free.remove(block)
        block.references += 1

    def give_back(self, blocks: list[Block]) -> None:
        for block in reversed(blocks):
            block.references -= 1
            if block.references == 0:
                self.free.append(block)


class ReferenceScheduler(Scheduler):
    """vLLM V1."""

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self.pool = Pool(rules.kv_blocks)
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.computed: dict[Request, int] = {}
        self.known: dict[Request, int] = {}
        self.blocks: dict[Request, list[Block]] = {}
        ranks = {"priority": lambda r: (r.priority, r.index), "deadline": lambda r: (r.deadline_s, r.index)}
        self.rank = ranks.get(rules.queueing.order)

    def key(self, request: Request, i: int) -> object:
        return request.keys[i] if i < len(request.keys) else ("own", request.index, i)

    def add(self, request: Request) -> None:
        self.waiting.append(request)
        self.order()
        self.computed[request], self.known[request], self.blocks[request] = 0, request.input_tokens, []

    def allocate(self, request: Request, tokens: int) -> bool:
        need = -(-(self.computed[request] + tokens) // self.rules.block_size) - len(self.blocks[request])
        if need > len(self.pool.free):
            return False
        self.blocks[request] += [self.pool.take() for _ in range(need)]
        return True

    def remember(self, request: Request, upto: int) -> None:
        """Make the full blocks before token `upto` hit-able."""
        if not self.rules.prefix_caching:
            return
        for i, block in enumerate(self.blocks[request][: upto // self.rules.block_size]):
            if block.key is None:
                block.key = self.key(request, i)
                self.pool.known.setdefault(block.key, []).append(block)

    def put(self, batch: Batch, request: Request, tokens: int) -> None:
        computed = self.computed[request]
        decodes = self.known[request] > request.input_tokens and computed + 1 == self.known[request]
        if decodes and request in self.decoding:
            batch.decodes += 1
            batch.decode_context_sum += computed
            batch.decode_context_max = max(batch.decode_context_max, computed)
        else:
            batch.prefill_tokens += tokens
            batch.prefill_pairs += tokens * (computed + 0.5 * tokens)
            batch.prefill_chunks += 1
            # generated blocks are remembered when the request leaves, as the simulator does
            self.remember(request, computed + tokens)
        self.computed[request] = computed + tokens
        if self.computed[request] < self.known[request]:
            return
        batch.logits += 1
        if request not in self.decoding:
            request.known_tokens = self.known[request]
            batch.prompted += (request,)
            self.decoding.add(request)
        self.known[request] += 1

    def schedule(self) -> Batch | None:
        self.preempted = []
        batch = Batch()
        budget = self.rules.max_num_batched_tokens
        i = 0
        decoded: list[Request] = []  # in this step
        while i < len(self.running) and budget > 0:
            request = self.running[i]
            if request.retired:
                i += 1
                continue
            tokens = min(self.known[request] - self.computed[request], budget)
            while not self.allocate(request, tokens):
                victim = max(self.running, key=self.rank) if self.rank else self.running[-1]
                i -= self.running.index(victim) < i
                self.running.remove(victim)
                if victim in decoded:
                    decoded.remove(victim)
                    self.take_back(batch, victim, decoded)
                    budget += 1
                self.preempt(victim)
                if victim is request:
                    break
            else:
                if request in self.decoding:
                    decoded.append(request)
                self.put(batch, request, tokens)
                budget -= tokens
                i += 1
        if not self.preempted:
            self.admit(batch, budget)
        return batch if batch.tokens else None

    def take_back(self, batch: Batch, request: Request, others: list[Request]) -> None:
        """It was scheduled in this step, and is not after all."""
        self.computed[request] -= 1
        self.known[request] -= 1
        batch.decodes -= 1
        batch.logits -= 1
        batch.decode_context_sum -= self.computed[request]
        batch.decode_context_max = max((self.computed[r] - 1 for r in others), default=0)

    def admit(self, batch: Batch, budget: int) -> None:
        size = self.rules.block_size
        while self.waiting and budget > 0 and len(self.running) < self.rules.max_num_seqs:
            request = self.waiting[0]
            hits: list[Block] = []
            if self.rules.prefix_caching:
                for i in range((self.known[request] - 1) // size):
                    copies = self.pool.known.get(self.key(request, i))
                    if not copies:
                        break
                    hits.append(copies[0])
            rest = self.known[request] - len(hits) * size
            if rest > budget and not self.rules.chunked_prefill:
                return
            tokens = min(rest, budget)
            whole = self.known[request] if self.rules.admit_whole_prompt else len(hits) * size + tokens
            need = -(-whole // size) - len(hits) + sum(b.references == 0 for b in hits)
            if need > len(self.pool.free):
                return
            self.waiting.popleft()
            for block in hits:
                self.pool.share(block)
            self.blocks[request], self.computed[request] = list(hits), len(hits) * size
            assert self.allocate(request, tokens)
            if request.cached_tokens < 0:
                request.cached_tokens = len(hits) * size
                batch.admitted += (request,)
            self.running.append(request)
            self.put(batch, request, tokens)
            budget -= tokens

    @property
    def decoding(self) -> set[Request]:
        if not hasattr(self, "_decoding"):
            self._decoding: set[Request] = set()
        return self._decoding

    def free(self, request: Request) -> None:
        self.remember(request, self.computed[request])
        self.pool.give_back(self.blocks[request])
        self.blocks[request] = []

    def preempt(self, request: Request) -> None:
        self.free(request)
        self.decoding.discard(request)
        self.computed[request] = 0
        request.preemptions += 1
        self.waiting.appendleft(request)
        self.order()
        self.preempted.append(request)

    def order(self) -> None:
        if self.rank:
            self.waiting = deque(sorted(self.waiting, key=self.rank))

    def withdraw(self, request: Request) -> bool:
        if request in self.waiting:
            self.waiting.remove(request)
            return True
        if request in self.running and request not in self.decoding:
            self.release(request)
            return True
        return False

    def retire(self, request: Request) -> None:
        request.retired = True

    def release(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
            self.free(request)
        else:
            self.waiting.remove(request)

    def quiet_rounds(self, batch: Batch, most: int) -> int:  # noqa: ARG002
        return 0

    def skip(self, rounds: int) -> None:
        raise NotImplementedError

    @property
    def blocked(self) -> bool:
        return False

    @property
    def n_running(self) -> int:
        return len(self.running)

    @property
    def n_waiting(self) -> int:
        return len(self.waiting)

    def running_requests(self) -> list[Request]:
        return list(self.running)

    def waiting_requests(self) -> list[Request]:
        return list(self.waiting)

    def computed_tokens(self, request: Request) -> int:
        return self.computed[request]


class ReferenceTrtLlm(ReferenceScheduler):
    """vLLM V1 with the worst case of everybody reserved."""

    preempts = False

    def worst(self, request: Request) -> int:
        tokens = min(request.input_tokens + self.rules.max_output_tokens, self.rules.max_model_len)
        return min(-(-tokens // self.rules.block_size), self.rules.kv_blocks)

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self.waiting_iters = 0  # adp_ctx_waiting_iters_count
        self.held_back = False

    def schedule(self) -> Batch | None:
        timeout, ranks = self.rules.balance_steps, self.rules.attention_ranks
        if timeout and ranks > 1:
            generating = sum(1 for r in self.running if r in self.decoding and not r.retired)
            if len(self.waiting) >= ranks:
                self.waiting_iters, self.held_back = 0, False
            else:
                self.waiting_iters, self.held_back = self.waiting_iters + 1, True
                if self.waiting_iters >= timeout or generating < ranks:
                    self.waiting_iters, self.held_back = 0, False
        return super().schedule()

    def admit(self, batch: Batch, budget: int) -> None:
        while self.waiting and budget > 0 and not self.held_back:
            owed = sum(self.worst(r) - len(self.blocks[r]) for r in self.running)
            if self.worst(self.waiting[0]) > len(self.pool.free) - owed:
                return
            before, waiting = batch.prefill_tokens, self.waiting
            self.waiting = deque([waiting[0]])
            super().admit(batch, budget)
            admitted, self.waiting = not self.waiting, waiting
            if not admitted:
                return
            waiting.popleft()
            budget -= batch.prefill_tokens - before

    def preempt(self, request: Request) -> None:
        raise AssertionError(f"request {request.index} was preempted")


class ReferenceMaxUtilization(ReferenceTrtLlm):
    """Whole prompts that fit now; who runs out of blocks is paused."""

    preempts = True

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(replace(rules, admit_whole_prompt=True))

    def admit(self, batch: Batch, budget: int) -> None:
        if not self.held_back:
            ReferenceScheduler.admit(self, batch, budget)

    def preempt(self, request: Request) -> None:
        ReferenceScheduler.preempt(self, request)


class ReferenceOrca(ReferenceTrtLlm):
    """Slots of the longest sequence for everybody, no chunks."""

    chunks = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(replace(rules, prefix_caching=False, chunked_prefill=False, balance_steps=0))

    def worst(self, request: Request) -> int:  # noqa: ARG002
        return min(-(-self.rules.max_model_len // self.rules.block_size), self.rules.kv_blocks)


class ReferenceVllmV0(ReferenceScheduler):
    """_schedule_default: prompts, or else _schedule_running with can_append_slots."""

    mixes_phases = False
    chunks = False

    def remember(self, request: Request, upto: int) -> None:
        """Nothing is shared."""

    def schedule(self) -> Batch | None:
        self.preempted = []
        return self.prompts() or self.decode() or self.prompts()

    def can_allocate(self, request: Request) -> bool:
        blocks = -(-self.known[request] // self.rules.block_size)
        watermark = int(0.01 * self.rules.kv_blocks) if self.running else 0
        return len(self.pool.free) - blocks >= watermark

    def prompts(self) -> Batch | None:
        batch, budget = Batch(), self.rules.max_num_batched_tokens
        while self.waiting and len(self.running) < self.rules.max_num_seqs:
            request = self.waiting[0]
            tokens = self.known[request]
            if request.retired or tokens > budget or not self.can_allocate(request):
                break
            self.waiting.popleft()
            self.start(batch, request, tokens)
            budget -= tokens
        return batch if batch.tokens else None

    def start(self, batch: Batch, request: Request, tokens: int) -> None:
        assert self.allocate(request, self.known[request])
        self.running.append(request)
        if request.cached_tokens < 0:
            request.cached_tokens = 0
            batch.admitted += (request,)
        self.put(batch, request, tokens)

    def decode(self) -> Batch | None:
        batch, queue, kept = Batch(), deque(self.running), []
        while queue:
            request = queue.popleft()
            if request.retired or request not in self.decoding:
                kept.append(request)
                continue
            while not self.pool.free:
                victim = queue.pop() if queue else request
                self.preempt(victim)
                if victim is request:
                    break
            else:
                assert self.allocate(request, 1)
                self.put(batch, request, 1)
                kept.append(request)
        self.running = kept
        return batch if batch.tokens else None


class ReferenceSarathi(ReferenceVllmV0):
    """SarathiScheduler._schedule."""

    mixes_phases = True
    chunks = True

    def schedule(self) -> Batch | None:
        self.preempted = []
        batch = self.decode() or Batch()
        for request in self.running:
            if request not in self.decoding and not request.retired:
                room = self.rules.max_num_batched_tokens - batch.tokens
                tokens = min(self.known[request] - self.computed[request], room)
                if tokens:
                    self.put(batch, request, tokens)
        while self.waiting:
            request = self.waiting[0]
            if request.retired or not self.can_allocate(request) or len(self.running) >= self.rules.max_num_seqs:
                break
            tokens = min(self.known[request], self.rules.max_num_batched_tokens - batch.tokens)
            if not tokens:
                break
            self.waiting.popleft()
            self.start(batch, request, tokens)
        return batch if batch.tokens else None


class ReferenceSglang(ReferenceScheduler):
    """SGLang's get_next_batch_to_run, PrefillAdder and retract_decode over lists of requests."""

    mixes_phases = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self.full = False
        self.finished_in_batch = 0  # finished requests the running batch has not dropped yet
        self.ratio = 0.7
        self.socket: list[Request] = []  # arrived, not received
        self.counter = 0  # SchedulerRecvSkipper
        self.threshold = rules.receiving.steps if rules.receiving else 1
        self.last_was_prefill = False

    def chunked(self) -> Request | None:
        return next((r for r in self.running if r not in self.decoding), None)

    def output(self, request: Request) -> int:
        return self.known[request] - request.input_tokens

    def max_new(self, request: Request) -> int:
        longest = min(self.rules.max_model_len, self.rules.kv_blocks * self.rules.block_size)
        return min(self.rules.max_output_tokens, longest - request.input_tokens)

    def estimate(self, request: Request) -> int:
        return min(max(self.max_new(request) - self.output(request), 0), 4096)

    def remember(self, request: Request, upto: int) -> None:
        super().remember(request, min(upto, request.input_tokens) if request in self.preempted else upto)

    def add(self, request: Request) -> None:
        super().add(request)
        if self.rules.receiving:
            self.socket.append(self.waiting.pop())

    def receive(self) -> None:
        self.waiting += self.socket
        self.socket = []
        self.counter = 0
        limits = self.rules.receiving
        assert limits is not None
        busy = len(self.running) + len(self.waiting) >= limits.busy_requests
        self.threshold = limits.busy_steps if busy else limits.steps

    def schedule(self) -> Batch | None:
        self.preempted = []
        if self.rules.receiving:
            self.counter += 1000 if self.last_was_prefill else 1
            if self.counter >= self.threshold:
                self.receive()
        batch = self.next_batch()
        if batch is None and self.socket:
            self.receive()
            batch = self.next_batch()
        self.last_was_prefill = batch is not None and batch.prefill_tokens > 0
        return batch

    def next_batch(self) -> Batch | None:
        for _ in range(2):
            batch = self.new_prefill() or self.new_decode()
            if batch is not None:
                return batch
        if not self.running and not self.waiting:
            self.ratio = 0.7
        return None

    @property
    def n_waiting(self) -> int:
        return len(self.waiting) + len(self.socket)

    def waiting_requests(self) -> list[Request]:
        return [*self.waiting, *self.socket]

    def new_prefill(self) -> Batch | None:
        chunked = self.chunked()
        if (self.full or not self.waiting) and chunked is None:
            return None
        batch, size = Batch(), self.rules.block_size
        budget = self.rules.max_num_batched_tokens
        offset = self.ratio * sum(self.estimate(r) for r in self.running if r in self.decoding and not r.retired)
        queue = [chunked] if chunked else []
        while budget > 0:
            if queue:
                request, hits = queue.pop(), []
            elif self.waiting and self.chunked() is None:
                request = self.waiting[0]
                if len(self.running) + self.finished_in_batch >= self.rules.max_num_seqs:
                    self.full = True
                    break
                hits = self.hits(request)
                extend = self.known[request] - len(hits) * size
                room = (len(self.pool.free) - sum(b.references == 0 for b in hits)) * size - offset
                if self.running and extend + self.estimate(request) + size >= room:
                    self.full = True
                    break
            else:
                break
            start = len(hits) * size if hits or request is not chunked else self.computed[request]
            extend = self.known[request] - start
            tokens = extend if extend <= budget else (budget - budget % size or budget)
            if request is not chunked:
                cut = tokens < extend
                if cut and (not self.rules.chunked_prefill or (batch.prefill_tokens and tokens % size)):
                    break
                self.waiting.popleft()
                for block in hits:
                    self.pool.share(block)
                self.blocks[request], self.computed[request] = list(hits), start
                self.running.append(request)
                if request.cached_tokens < 0:
                    request.cached_tokens = start
                    batch.admitted += (request,)
            assert self.allocate(request, tokens)
            self.put(batch, request, tokens)
            budget -= -(-tokens // size) * size
            if request in self.decoding:
                offset += self.estimate(request) + size
        return batch if batch.tokens else None

    def hits(self, request: Request) -> list[Block]:
        found: list[Block] = []
        if self.rules.prefix_caching:
            for i in range((self.known[request] - 1) // self.rules.block_size):
                copies = self.pool.known.get(self.key(request, i))
                if not copies:
                    break
                found.append(copies[0])
        return found

    def new_decode(self) -> Batch | None:
        if self.finished_in_batch or not self.running:
            self.full, self.finished_in_batch = False, 0
        batch = [r for r in self.running if r in self.decoding and not r.retired]
        if not batch:
            return None

        def fits() -> bool:
            return sum(self.computed[r] % self.rules.block_size == 0 for r in batch) <= len(self.pool.free)

        if not fits():
            while not fits() and len(batch) > 1:
                order = sorted(batch, key=lambda r: (self.output(r), -r.input_tokens), reverse=True)
                batch.remove(order[-1])
                self.retract(order[-1])
            if not fits():
                self.full = True
                return None
            made = sum(map(self.output, batch))
            declared = sum(max(self.max_new(r), self.output(r)) for r in batch)
            self.ratio = min(1.0, (made + 20 * len(batch)) / (declared + 1))
            self.full = False
        else:
            self.ratio = max(self.ratio - (0.7 - 0.7 * 0.14) / 600, 0.7 * 0.14)
        shape = Batch()
        for request in batch:
            assert self.allocate(request, 1)
            self.put(shape, request, 1)
        return shape

    def retract(self, request: Request) -> None:
        self.preempted.append(request)
        self.free(request)
        self.running.remove(request)
        self.decoding.discard(request)
        self.computed[request] = 0
        request.preemptions += 1
        self.waiting.append(request)

    def release(self, request: Request) -> None:
        super().release(request)
        self.finished_in_batch += 1


class ReferenceLlamaCpp(ReferenceScheduler):
    """pre_decode over a list of slots, and split_equal token by token."""

    preempts = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        each = -(-rules.max_model_len // rules.block_size)
        self.places: list[Request | None] = [None] * min(rules.max_num_seqs, max(1, rules.kv_blocks // each))
        self.last_used = [0] * len(self.places)  # 0: never
        self.clock = 0
        self.emptied: list[int] = []  # slots whose release the server has not looked at yet
        self.deferred: deque[Request] = deque()  # self.waiting is the queue of tasks

    def remember(self, request: Request, upto: int) -> None:
        """Nothing is shared between slots."""

    def launch(self) -> None:
        for slot in sorted(self.emptied):  # released in the order of the slots
            self.clock += 1
            self.places[slot], self.last_used[slot] = None, self.clock
        self.emptied = []
        while self.waiting:
            if None not in self.places:
                self.deferred.append(self.waiting.popleft())
                continue
            chosen = -1
            for i, held in enumerate(self.places):
                if held is None and (chosen < 0 or self.last_used[i] <= self.last_used[chosen]):
                    chosen = i
            self.places[chosen] = self.waiting.popleft()
            self.running.append(self.places[chosen])  # type: ignore[arg-type]

    def schedule(self) -> Batch | None:
        self.launch()
        batch, tokens = Batch(), []  # the slot of every token
        for generating in (True, False):
            for slot, request in enumerate(self.places):
                if request is None or request.retired or slot in self.emptied:
                    continue
                decodes = request in self.decoding
                if generating != decodes or request in batch.prompted:
                    continue
                room = self.rules.max_num_batched_tokens - len(tokens)
                n = min(self.known[request] - self.computed[request], room)
                if not n:
                    continue
                if request.cached_tokens < 0:
                    request.cached_tokens = 0
                    batch.admitted += (request,)
                assert self.allocate(request, n)
                self.put(batch, request, n)
                tokens += [slot] * n
        batch.passes = self.count_passes(tokens)
        return batch if tokens else None

    def count_passes(self, tokens: list[int]) -> int:
        used, partly_filled = [False] * len(tokens), 0
        most = self.rules.physical_batch_tokens or 1 << 30
        while not all(used):
            members: list[int] = []
            for i, slot in enumerate(tokens):
                if not used[i] and slot not in members and (not members or slot == members[-1] + 1):
                    members.append(slot)
            each, full = 0, False
            while all(any(s == slot and not u for s, u in zip(tokens, used, strict=True)) for slot in members):
                if each and (each + 1) * len(members) > most:
                    full = True
                    break
                for slot in members:
                    used[next(i for i, s in enumerate(tokens) if s == slot and not used[i])] = True
                each += 1
            partly_filled += not full
        return max(1, partly_filled)

    def release(self, request: Request) -> None:
        self.emptied.append(self.places.index(request))
        super().release(request)
        if self.deferred:
            self.waiting.appendleft(self.deferred.popleft())

    def waiting_requests(self) -> list[Request]:
        return [*self.waiting, *self.deferred]

    @property
    def n_waiting(self) -> int:
        return len(self.waiting) + len(self.deferred)


class ReferenceTransformers(ReferenceScheduler):
    """FIFOScheduler and offload_requests over lists of requests."""

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(replace(rules, admit_whole_prompt=False))
        self.closed = False

    def short(self) -> bool:
        return len(self.pool.free) < 0.15 * self.rules.kv_blocks

    def needs(self, request: Request, tokens: int) -> int:
        return -(-(self.computed[request] + tokens) // self.rules.block_size) - len(self.blocks[request])

    def schedule(self) -> Batch | None:
        self.preempted = []
        self.queries = self.keys_read = 0
        batch, budget = Batch(), self.rules.max_num_batched_tokens
        while True:
            decoding = [r for r in self.running if r in self.decoding and not r.retired]
            starved = [r for r in decoding if self.needs(r, 1)]
            fits = len(starved) <= len(self.pool.free)
            if fits or len(self.running) == 1:
                break
            self.evict(starved[-1])
        for request in decoding if fits else []:
            assert self.allocate(request, 1)
            self.put(batch, request, 1)
            budget -= 1
        partial = next((r for r in self.running if r not in self.decoding), None)
        if partial is not None and not (self.short() and batch.tokens):
            tokens = min(self.known[partial] - self.computed[partial], budget)
            if tokens and self.allocate(partial, tokens):
                self.put(batch, partial, tokens)
                budget -= tokens
            elif tokens and len(self.running) > 1:
                self.evict(partial)
        if not self.closed and all(r in self.decoding for r in self.running):
            self.admit(batch, budget)
        if batch.prefill_chunks:  # sdpa masks a rectangle: what the decodes read themselves is counted apart
            batch.prefill_pairs = float(self.queries * self.keys_read - batch.decode_context_sum)
        return batch if batch.tokens else None

    def put(self, batch: Batch, request: Request, tokens: int) -> None:
        self.queries += tokens
        self.keys_read += self.computed[request] + tokens
        super().put(batch, request, tokens)

    def admit(self, batch: Batch, budget: int) -> None:
        for request in list(self.waiting):
            if budget <= 0 or len(self.running) >= min(self.rules.max_num_seqs, self.rules.kv_blocks):
                return
            if self.short() and batch.tokens:
                return
            one, self.waiting, others = budget, deque([request]), self.waiting
            before = batch.prefill_tokens
            super().admit(batch, one)
            self.waiting, taken = others, batch.prefill_tokens - before
            if taken:
                self.waiting.remove(request)
                budget -= taken

    def evict(self, request: Request) -> None:
        self.preempted.append(request)
        self.free(request)
        self.running.remove(request)
        self.decoding.discard(request)
        self.computed[request] = 0
        request.preemptions += 1
        self.waiting.insert(len(self.waiting) - len(self.preempted) + 1, request)
        self.closed = True

    def remember(self, request: Request, upto: int) -> None:
        """Blocks nobody shares are of no use to others, and an evicted request does not get them back."""
        super().remember(request, min(upto, len(request.keys) * self.rules.block_size))

    def release(self, request: Request) -> None:
        super().release(request)
        self.closed = False


class ReferenceStatic(ReferenceScheduler):
    """Batches as lists of rows, every row as long as the longest, to the end of the last."""

    mixes_phases = False
    preempts = False
    chunks = False
    pads = True
    streams = False
    seats: int | None = None

    def remember(self, request: Request, upto: int) -> None:
        """Nothing is shared."""

    def schedule(self) -> Batch | None:
        if self.running:
            return self.go_on()
        members = self.form()
        if not members:
            return None
        longest = max(r.input_tokens for r in members)
        batch = Batch()
        for request in members:
            self.waiting.remove(request)
            self.running.append(request)
            request.cached_tokens = 0
            assert self.allocate(request, longest)
            self.computed[request] = longest
            batch.prefill_tokens += longest
            batch.prefill_pairs += longest * longest / 2
            batch.prefill_chunks += 1
            batch.logits += 1
            batch.admitted += (request,)
            batch.prompted += (request,)
        return batch

    def go_on(self) -> Batch | None:
        if all(r.retired for r in self.running):
            return None
        batch = Batch()
        for request in self.running:
            assert self.allocate(request, 1)
            batch.decodes += 1
            batch.logits += 1
            batch.decode_context_sum += self.computed[request]
            batch.decode_context_max = max(batch.decode_context_max, self.computed[request])
            self.computed[request] += 1
        return batch

    def form(self) -> list[Request]:
        members: list[Request] = []
        for request in self.waiting:
            wanted = [*members, request]
            longest = max(r.input_tokens for r in wanted)
            output = max(min(self.rules.max_output_tokens, self.rules.max_model_len - r.input_tokens) for r in wanted)
            rows = [longest + output] * len(wanted)
            fits = sum(-(-row // self.rules.block_size) for row in rows) <= self.rules.kv_blocks
            fits = fits and longest * len(wanted) <= self.rules.max_num_batched_tokens
            if len(members) == (self.seats or self.rules.max_num_seqs) or (members and not fits):
                break
            members = wanted
        return members

    def leaving(self, request: Request) -> tuple[Request, ...]:  # noqa: ARG002
        return tuple(self.running) if all(r.retired for r in self.running) else ()


class ReferenceOneAtATime(ReferenceStatic):
    seats = 1
    streams = True


REFERENCES: dict[str, type[Scheduler]] = {
    "vllm-v1": ReferenceScheduler,
    "vllm-v0": ReferenceVllmV0,
    "sarathi": ReferenceSarathi,
    "orca": ReferenceOrca,
    "trtllm": ReferenceTrtLlm,
    "trtllm-max-utilization": ReferenceMaxUtilization,
    "sglang": ReferenceSglang,
    "llama.cpp": ReferenceLlamaCpp,
    "transformers-cb": ReferenceTransformers,
    "static": ReferenceStatic,
    "one-at-a-time": ReferenceOneAtATime,
}
