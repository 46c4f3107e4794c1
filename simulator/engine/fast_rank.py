"""The scheduler of the fast path: the decisions of `VllmV1` on numbers, with requests as indices.

`FastRank` takes the decisions of `VllmV1`, `DecodeSet` and `CompletionRounds`, in the same order and with the same
arithmetic, for one scheduler: that of a replica, or of one data-parallel rank. `fast_lockstep.py` composes several of
them. A change of one of these classes has to be made here too; `tests/simulator/engine/test_fast_path.py` compares both
to the last digit.

What is rare stays with the general loop: where a step would preempt a request, `schedule` decides nothing, and
`restore` writes the state into the scheduler, which continues.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import isnan

from simulator.core.batch import BatchShape
from simulator.core.completion_rounds import NEVER
from simulator.core.outcomes import RequestOutcomes
from simulator.core.request import Request
from simulator.schedulers.continuous_batching import blocks_of_rounds
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.sglang import Sglang
from simulator.schedulers.vllm_v1 import VllmV1


class FastBatch(BatchShape):
    """The counts of one scheduled step, which its scheduler overwrites when the step has ended."""

    __slots__ = ("parts", "twin")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[FastBatch | None] = []  # in lockstep: the share of each rank (None: a dummy batch)
        self.twin: FastBatch = self  # the batch that its scheduler fills next


def two_batches() -> FastBatch:
    """Return one of two batches that a scheduler fills in turn: one may run while the other is scheduled."""
    batch = FastBatch()
    batch.twin = FastBatch()
    batch.twin.twin = batch
    return batch


class StepEvents:
    """The requests that change state in one scheduled step."""

    __slots__ = ("admitted", "finishing", "prompted")

    def __init__(self) -> None:
        self.admitted: list[int] = []  # scheduled for the first time in this step
        self.prompted: list[int] = []  # complete their prompt in this step
        self.finishing: list[int] = []  # emit their last token in this step


class RequestCounts:
    """The tokens of all requests of a run, by index."""

    __slots__ = ("bases", "computed", "input", "output")

    def __init__(self, input_tokens: list[int], output_tokens: list[int]) -> None:
        self.input, self.output = input_tokens, output_tokens
        self.bases = [0] * len(input_tokens)  # `Request.base_tokens`
        self.computed = [-1] * len(input_tokens)  # tokens, after the last one is scheduled; before: -1


class FastScheduler:
    """What `FastPath` requires of a scheduler: a rank alone, or ranks in lockstep."""

    __slots__ = ("preempts",)

    def __init__(self) -> None:
        self.preempts = False  # whether the last call of `schedule` found that a request has to be preempted

    def add(self, index: int, ahead: int) -> bool:
        """Add a request to the queue; return whether it could be admitted before anything is released.

        Args:
            index: The request.
            ahead: The rounds of the current run of steps that have been scheduled and are not skipped yet.
        """
        raise NotImplementedError

    def schedule(self, events: StepEvents) -> FastBatch | None:
        """Return the batch of the next step and add its events; None if nothing can run or `preempts` is set."""
        raise NotImplementedError

    def quiet_rounds(self, batch: FastBatch, most: int) -> int:
        """Return the number of further decode steps (0 to `most`) that need no decision while `batch` runs."""
        raise NotImplementedError

    def skip(self, rounds: int, ahead: FastBatch | None, events: StepEvents) -> None:
        """Apply schedule calls that a run of steps has skipped.

        Args:
            rounds: The number of these calls.
            ahead: The batch that is scheduled ahead, if any.
            events: The events of the last scheduled batch, which contains the last tokens that are now due.
        """
        raise NotImplementedError

    def free(self, index: int) -> None:
        """Free the seat and the blocks of a request whose last output has been processed."""
        raise NotImplementedError

    @property
    def n_waiting(self) -> int:
        """Return the number of waiting requests."""
        raise NotImplementedError


class FastRank(FastScheduler):
    """The queue, the seats, the blocks and the decodes of one scheduler."""

    __slots__ = (
        "_base_sum",
        "_bases",
        "_batch",
        "_budget",
        "_computed",
        "_due",
        "_input_tokens",
        "_least_left",
        "_longest",
        "_min_available",
        "_most_running",
        "_output_tokens",
        "_partial",
        "_partial_tokens",
        "_phases",
        "_refusal",
        "_refused",
        "_running",
        "_seats",
        "_serial",
        "_size",
        "_total",
        "_waiting",
        "_whole_prompts",
        "ahead",
        "ample_blocks",
        "available",
        "due_round",
        "idle",
        "n_decoding",
        "n_requests",
        "prompt_tokens",
        "rounds",
    )

    def __init__(self, rules: EngineRules, counts: RequestCounts) -> None:
        """Create an idle rank with the rules of one rank."""
        super().__init__()
        self._size, self._seats, self._budget = rules.block_size, rules.max_num_seqs, rules.max_num_batched_tokens
        self._whole_prompts, self._total = rules.admit_whole_prompt, rules.kv_blocks
        # With as many blocks, no step lacks any: a block for each decode, and those of the unfinished prompt's chunk.
        self.ample_blocks = self._seats + self._budget // self._size + 2
        self._input_tokens, self._output_tokens = counts.input, counts.output
        self._bases, self._computed = counts.bases, counts.computed
        self._batch = two_batches()

        self._waiting: deque[int] = deque()
        self._running: dict[int, None] = {}  # in order of admission
        self._partial, self._partial_tokens = -1, 0  # the running request whose prompt is unfinished; -1: none
        self._refused = False
        self._refusal = (-1, 0, 0)  # the last refusal for lack of blocks: (index, budget, available blocks)
        self.available = self._min_available = self._least_left = rules.kv_blocks
        self._most_running = 0

        self.n_decoding = self.rounds = self._base_sum = self._serial = 0
        self._phases = [0] * rules.block_size
        self._longest: list[tuple[int, int, int]] = []  # heap of (-base tokens, serial, index)
        self._due: list[tuple[int, int, int]] = []  # heap of (round of the last token, serial, index)
        self.due_round = NEVER

        # What the dispatch to ranks reads, and whether the rank had nothing to schedule since its last request.
        self.n_requests = self.prompt_tokens = self.ahead = 0
        self.idle = True

    # ---- what the dispatch to ranks reads

    @property
    def n_waiting(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """Return the number of requests with a seat."""
        return len(self._running)

    @property
    def used_fraction(self) -> float:
        """Return the share of the blocks in use, with those of the `ahead` rounds."""
        further = blocks_of_rounds(self._phases, self.n_decoding, self.rounds, self.ahead)
        return (self._total - self.available + further) / max(1, self._total)

    # ---- requests come and go

    def add(self, index: int, ahead: int) -> bool:  # noqa: ARG002 (ranks in lockstep read it)
        """Add a request to the queue; return whether it could be admitted before anything is released."""
        self._waiting.append(index)
        return not self._refused and len(self._running) < self._seats and self.n_decoding < self._budget

    def free(self, index: int) -> None:
        """Free the seat and the blocks of a request whose last output has been processed."""
        self.available += -(-self._computed[index] // self._size)
        del self._running[index]

    # ---- steps

    def lacks_blocks(self) -> bool:
        """Return whether the running requests need more blocks in the next step than there are."""
        n, size = self.n_decoding, self._size
        blocks = self._phases[-self.rounds % size] if n else 0
        if self._partial >= 0:
            tokens = self._partial_tokens
            chunk = min(self._input_tokens[self._partial] - tokens, self._budget - n)
            blocks += -(-(tokens + chunk) // size) - -(-tokens // size)
        return blocks > self.available

    def schedule(self, events: StepEvents) -> FastBatch | None:
        """Return the batch of the next step: the decodes, the unfinished prompt, then waiting requests."""
        if self.available < self.ample_blocks and self.lacks_blocks():
            self.preempts = True
            return None
        n = self.n_decoding
        if not n and not self._waiting and self._partial < 0:
            return None
        batch, rounds = self._batch, self.rounds
        self.rounds = rounds + 1
        batch.decodes = batch.logits = n
        if n:
            longest, computed = self._longest, self._computed
            while computed[longest[0][2]] >= 0:
                heappop(longest)
            batch.decode_context_sum = float(self._base_sum + n * rounds)
            batch.decode_context_max = float(rounds - longest[0][0])
            if blocks := self._phases[-rounds % self._size]:
                self.available -= blocks
                if self.available < self._min_available:
                    self._min_available = self.available
        else:
            batch.decode_context_sum = batch.decode_context_max = 0.0
        if self._waiting or self._partial >= 0:
            self._refused = False
            n_prompted = len(events.prompted)
            self._schedule_prompts(batch, events)
            if not n and not batch.prefill_tokens:
                self.rounds = rounds
                return None
            if batch.logits > n:
                self._begin_decodes(events.prompted[n_prompted:])
        elif batch.prefill_tokens:
            batch.prefill_tokens = batch.prefill_chunks = 0
            batch.prefill_pairs = 0.0
        if self.due_round <= rounds + 1:
            self._retire_due(events.finishing)
        self._batch = batch.twin
        return batch

    def _schedule_prompts(self, batch: FastBatch, events: StepEvents) -> None:
        """Add the next chunk of the unfinished prompt and those of the waiting requests that can be admitted."""
        budget, index, held = self._budget - batch.decodes, self._partial, self._partial_tokens
        input_tokens, waiting = self._input_tokens, self._waiting
        tokens = chunks = 0
        pairs = 0.0
        while budget > 0:
            if index >= 0:
                chunk = input_tokens[index] - held
                if chunk > budget:
                    chunk = budget
                self.available -= -(-(held + chunk) // self._size) - -(-held // self._size)
            else:
                if not waiting:
                    break
                chunk, held = self._admit(budget), 0
                if not chunk:
                    break
                index = waiting.popleft()
                events.admitted.append(index)
            tokens += chunk
            pairs += chunk * (held + 0.5 * chunk)
            chunks += 1
            budget -= chunk
            held += chunk
            if held < input_tokens[index]:
                break  # the budget is used up
            events.prompted.append(index)
            batch.logits += 1
            index = -1
        self._partial, self._partial_tokens = index, held
        batch.prefill_tokens, batch.prefill_pairs, batch.prefill_chunks = tokens, pairs, chunks
        if len(self._running) > self._most_running:
            self._most_running = len(self._running)
        if self.available < self._min_available:
            self._min_available = self.available

    def _admit(self, budget: int) -> int:
        """Give the head of the queue a seat and the blocks of its first chunk, and return the tokens of the chunk.

        Returns 0 if the head has to wait.
        """
        if len(self._running) >= self._seats:
            return 0
        index, available = self._waiting[0], self.available
        refused, at_budget, at_available = self._refusal
        if index == refused and budget >= at_budget and available <= at_available:
            self._refused = True  # nothing has improved since it was refused
            return 0
        tokens, size = self._input_tokens[index], self._size
        chunk = tokens if tokens < budget else budget
        needed = -(-chunk // size)
        if self._whole_prompts and chunk < tokens:
            whole = -(-tokens // size)
            if whole > needed:
                if available - whole < self._least_left:
                    self._least_left = available - whole
                if whole > available:
                    needed = whole
        if needed > available:
            self._refused, self._least_left, self._refusal = True, -1, (index, budget, available)
            return 0
        self._running[index] = None
        self.available = available - needed
        return chunk

    # ---- decodes

    def _begin_decodes(self, prompted: list[int]) -> None:
        """Let requests decode from the next round on, and note in which round each schedules its last token.

        The latest batch completes their prompts.
        """
        rounds, serial = self.rounds, self._serial
        for index in prompted:
            self._bases[index] = base = self._input_tokens[index] - rounds
            self._base_sum += base
            self._phases[base % self._size] += 1
            serial += 1
            heappush(self._longest, (-base, serial, index))
            heappush(self._due, (rounds + self._output_tokens[index] - 1, serial, index))
        self.n_decoding += len(prompted)
        self._serial, self.due_round = serial, self._due[0][0]

    def _retire_due(self, finishing: list[int]) -> None:
        """Stop scheduling the requests that have scheduled their last token by now, and note that they end."""
        due, rounds = self._due, self.rounds
        while due and due[0][0] <= rounds:
            index = heappop(due)[2]
            base = self._bases[index]
            self.n_decoding -= 1
            self._base_sum -= base
            self._phases[base % self._size] -= 1
            self._computed[index] = base + rounds
            finishing.append(index)
        self.due_round = due[0][0] if due else NEVER

    # ---- runs of steps

    def quiet_rounds(self, batch: FastBatch, most: int) -> int:
        """Return the number of further decode steps (0 to `most`) that need no decision while `batch` runs.

        The number is limited by the rounds until the next request schedules its last token, and by the free blocks.
        """
        n = self.n_decoding
        if n != batch.decodes or self._partial >= 0:
            return 0
        if self._waiting and not (self._refused or len(self._running) >= self._seats or n >= self._budget):
            return 0
        if self.due_round - self.rounds < most:
            most = self.due_round - self.rounds
        available = self.available
        left = available - n * (most // self._size + 1)
        if left >= 0 and left >= self._least_left:
            return most  # the bound shows that there are blocks, and that this is no new minimum
        left = available - blocks_of_rounds(self._phases, n, self.rounds, most)
        if left < self._least_left:
            self._least_left = left
        if left < 0:  # as many rounds as there are blocks for
            low, high = 0, most
            while high - low > 1:
                middle = (low + high) // 2
                if blocks_of_rounds(self._phases, n, self.rounds, middle) <= available:
                    low = middle
                else:
                    high = middle
            return low
        return most

    def skip(self, rounds: int, ahead: FastBatch | None, events: StepEvents) -> None:
        """Apply schedule calls that a run of steps has skipped."""
        blocks = blocks_of_rounds(self._phases, self.n_decoding, self.rounds, rounds)
        if blocks:
            self.available -= blocks
            if self.available < self._min_available:
                self._min_available = self.available
        self.rounds += rounds
        if ahead is not None:
            ahead.decode_context_sum += rounds * ahead.decodes
            ahead.decode_context_max += rounds
        if self.due_round <= self.rounds:
            self._retire_due(events.finishing)

    # ---- the hand-over to the general loop

    def requests(self, results: RequestOutcomes) -> dict[int, Request]:
        """Return the requests with a seat, in order of admission, and those that wait."""
        return {index: self._request(index, results) for index in (*self._running, *self._waiting)}

    def _request(self, index: int, results: RequestOutcomes) -> Request:
        request = Request(index, self._input_tokens[index])
        request.reached_s = results.routed_s[index]
        if index not in self._running:
            return request
        request.cached_tokens = 0
        request.emitted = not isnan(results.prefilled_s[index])
        if index == self._partial:
            request.computed_tokens = self._partial_tokens
            return request
        request.base_tokens = self._bases[index]
        request.computed_tokens = ended = self._computed[index]  # -1 marks a request that decodes
        if ended >= 0:
            request.retired, request.known_tokens = True, ended + 1
        return request

    def restore(self, scheduler: VllmV1 | Sglang, requests: dict[int, Request]) -> None:
        """Write the state into a scheduler; `requests` are those of `requests()`."""
        for index in self._running:
            if index != self._partial:
                requests[index].decodes_in = scheduler.decodes
        self._restore_policy(scheduler, requests)
        scheduler.kv.restore(self.available, self._min_available)
        live = [(base, serial, requests[i]) for base, serial, i in self._longest if self._computed[i] < 0]
        scheduler.decodes.restore(self.n_decoding, self.rounds, self._base_sum, self._phases, live, self._serial)

    def _restore_policy(self, scheduler: VllmV1 | Sglang, requests: dict[int, Request]) -> None:
        """Write the queue, the seats and what else the policy keeps into a scheduler."""
        assert isinstance(scheduler, VllmV1)
        scheduler.restore(
            [requests[index] for index in self._waiting],
            [requests[index] for index in self._running],
            requests.get(self._partial),
            self._most_running,
            self._least_left,
            self._refused,
        )

    def last_tokens(self, requests: dict[int, Request]) -> list[tuple[int, int, Request]]:
        """Return the decoding requests as (rounds until the last token, serial, request)."""
        return [(last - self.rounds, serial, requests[index]) for last, serial, index in self._due]

    def ending(self, requests: dict[int, Request]) -> list[Request]:
        """Return the requests whose last token is in flight."""
        return [requests[index] for index in self._running if self._computed[index] >= 0]

    @property
    def serial(self) -> int:
        """Return the largest serial of a request."""
        return self._serial
