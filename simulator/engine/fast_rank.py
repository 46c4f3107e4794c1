"""What the schedulers of the fast path share: the queue, the seats, the blocks and the decodes of one scheduler.

Requests are indices, and everything else is a number. `FastRank` follows `ContinuousBatching`, `DecodeSet` and
`CompletionRounds`, in the same order and with the same arithmetic, for one scheduler: that of a replica, or of one
data-parallel rank. What a step contains is decided by a
class for each policy (`fast_vllm.py`, `fast_sglang.py`, `fast_trtllm.py`), and `fast_lockstep.py` composes several
ranks. A change of one of the classes that they follow has to be made here too;
`tests/simulator/engine/test_fast_path.py` compares both to the last digit.

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
from simulator.schedulers.continuous_batching import ContinuousBatching, blocks_of_rounds
from simulator.schedulers.rules import EngineRules


class FastBatch(BatchShape):
    """The counts of one scheduled step, which its scheduler overwrites when the step has ended."""

    __slots__ = ("next", "parts")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[FastBatch | None] = []  # in lockstep: the share of each rank (None: a dummy batch)
        self.next: FastBatch = self  # the batch that its scheduler fills next


def two_batches() -> FastBatch:
    """Return one of two batches that a scheduler fills in turn: one may run while the other is scheduled."""
    batch = FastBatch()
    batch.next = FastBatch()
    batch.next.next = batch
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
    """The queue, the seats, the blocks and the decodes of one scheduler, whose policy is that of a subclass."""

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
        "_output_tokens",
        "_partial",
        "_partial_tokens",
        "_phases",
        "_running",
        "_seats",
        "_serial",
        "_size",
        "_total",
        "_waiting",
        "ahead",
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
        self._total = rules.kv_blocks
        self._input_tokens, self._output_tokens = counts.input, counts.output
        self._bases, self._computed = counts.bases, counts.computed
        self._batch = two_batches()

        self._waiting: deque[int] = deque()
        self._running: dict[int, None] = {}  # in order of admission
        self._partial, self._partial_tokens = -1, 0  # the running request whose prompt is unfinished; -1: none
        self.available = self._min_available = self._least_left = rules.kv_blocks

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
        return self._may_admit()

    def _may_admit(self) -> bool:
        """Return whether a waiting request could be admitted before anything is released."""
        raise NotImplementedError

    def free(self, index: int) -> None:
        """Free the seat and the blocks of a request whose last output has been processed."""
        self.available += -(-self._computed[index] // self._size)
        del self._running[index]

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
        if self._waiting and self._may_admit():
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

    def restore(self, scheduler: ContinuousBatching, requests: dict[int, Request]) -> None:
        """Write the state into the scheduler of the same policy; `requests` are those of `requests()`."""
        for index in self._running:
            if index != self._partial:
                requests[index].decodes_in = scheduler.decodes
        scheduler.kv.restore(self.available, self._min_available)
        live = [(base, serial, requests[i]) for base, serial, i in self._longest if self._computed[i] < 0]
        scheduler.decodes.restore(self.n_decoding, self.rounds, self._base_sum, self._phases, live, self._serial)

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
