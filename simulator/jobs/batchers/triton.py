"""Triton's dynamic batcher, as its source forms batches.

The source is triton-inference-server/core at commit 73aad7c (June 2026): `DynamicBatchScheduler::BatcherThread` and
`GetDynamicBatch` in src/dynamic_batch_scheduler.cc, `PriorityQueue` in src/scheduler_utils.cc, `InstanceQueue::Dequeue`
in src/instance_queue.cc, `RateLimiter::PayloadSlotAvailable` in src/rate_limiter.cc. The documented rules are in
https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/batcher.html:

- The largest preferred size that the waiting jobs make starts at once. Without preferred sizes, it is max_batch.
- Otherwise the batch waits until its oldest job has waited for the delay, and then starts with all jobs that fit.
  Without a delay, it starts at once.
- Jobs of a lower priority level join only behind all jobs of the levels before it.
- A job that has waited for its timeout is rejected, or (`delay`) served after the others of its level.
- A batch has one shape. A job of another shape closes the batch before it.

The source adds what the documentation leaves out. Without priorities, timeouts and a limit of the queue, batches are
formed ahead: up to two for each instance wait in front of the instances. A batch that waits there still grows, until it
is closed: without a delay at any preferred size, otherwise at the largest. An instance that takes a batch, where there
is a delay, merges it with the batches behind it whose oldest job has waited longer than the delay. With priorities,
timeouts or a limit, a batch is formed only when an instance is idle.

Three simplifications: the thread acts without delay at every event, jobs that arrive together are seen together, and a
timeout is noticed when it ends, not up to half a second later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from simulator.jobs.batchers.base import Batcher, BatchRules, QueuedJob


@dataclass(slots=True)
class Level:
    """The jobs of one priority level: those before their timeout, and those delayed behind them.

    Jobs that have left the level in another way stay in `fresh` until they are at its head.
    """

    fresh: deque[QueuedJob] = field(default_factory=deque)
    delayed: deque[QueuedJob] = field(default_factory=deque)
    n: int = 0

    def __iter__(self) -> Iterator[QueuedJob]:
        """Return the jobs in the order of service."""
        while self.fresh and (self.fresh[0].gone or self.fresh[0].delayed):
            self.fresh.popleft()
        yield from (job for job in self.fresh if not (job.gone or job.delayed))
        yield from (job for job in self.delayed if not job.gone)


class PriorityQueue:
    """The waiting jobs by priority level; the lowest level is served first."""

    def __init__(self) -> None:
        """Create an empty queue."""
        self._levels: dict[int, Level] = {}

    def __iter__(self) -> Iterator[QueuedJob]:
        """Return the jobs in the order of service."""
        for number in sorted(self._levels):
            yield from self._levels[number]

    def waiting(self, level: int) -> int:
        """Return the number of jobs of a level."""
        found = self._levels.get(level)
        return found.n if found else 0

    def push(self, job: QueuedJob) -> None:
        """Add a job to its level."""
        level = self._levels.setdefault(job.level, Level())
        level.fresh.append(job)
        level.n += 1

    def delay(self, job: QueuedJob) -> None:
        """Move a job behind the others of its level."""
        job.delayed = True
        self._levels[job.level].delayed.append(job)

    def remove(self, job: QueuedJob) -> None:
        """Take a job out of its level, which forgets it when it comes to its head."""
        job.gone = True
        level = self._levels[job.level]
        level.n -= 1
        while level.delayed and level.delayed[0].gone:
            level.delayed.popleft()
        while level.fresh and (level.fresh[0].gone or level.fresh[0].delayed):
            level.fresh.popleft()


@dataclass(slots=True)
class Payload:
    """A batch that is being formed or waits for an instance (Triton's `Payload`)."""

    jobs: list[QueuedJob] = field(default_factory=list)
    items: int = 0
    queued: bool = False  # whether it waits in front of the instances
    taken: bool = False  # whether it can grow no more because an instance has taken it or looked at it
    other_shape_follows: bool = False  # whether it is not merged with what is behind it

    @property
    def oldest_s(self) -> float:
        """Return when the first of its jobs was queued, seconds."""
        return min(job.queued_s for job in self.jobs)


class Triton(Batcher):
    """The dynamic batcher of one model."""

    def __init__(self, rules: BatchRules) -> None:
        super().__init__(rules)
        self._preferred = frozenset(rules.preferred) or frozenset({rules.max_batch})
        self._largest = max(self._preferred)
        limited = rules.max_waiting is not None or rules.timeout_s < inf or rules.some_time_out
        self._ahead = not (rules.priorities or limited)
        self._queue = PriorityQueue()
        self._n_queued = 0
        self._payload, self._closed = Payload(), False
        self._ready: deque[Payload] = deque()

    def add(self, job: QueuedJob) -> bool:
        """Queue a job; return False if its priority level is full.

        A priority outside of the levels is the default level (`InferenceRequest::SetPriority`).
        """
        known = 1 <= job.priority <= self.rules.priorities
        job.level = job.priority if known else self.rules.default_priority
        if self.rules.max_waiting is not None and self._queue.waiting(job.level) >= self.rules.max_waiting:
            return False
        self._queue.push(job)
        self._n_queued += 1
        self.n_waiting += 1
        return True

    def expire(self, job: QueuedJob) -> bool:
        """Reject or delay a job whose timeout ends; return whether it is rejected."""
        if job.gone or job.delayed:
            return False
        if self.rules.timeout_action == "delay":
            self._queue.delay(job)
            return False
        self._queue.remove(job)
        self._n_queued -= 1
        self.n_waiting -= 1
        return True

    def take(self, now_s: float) -> Sequence[QueuedJob]:
        """Return the jobs of the first batch that waits in front of the instances."""
        if not self._ready:
            return ()
        payload = self._ready.popleft()
        payload.taken = True
        if self.rules.delay_s > 0.0 and self.rules.max_batch > 1 and not payload.other_shape_follows:
            self._merge(payload, now_s)
        self.n_waiting -= len(payload.jobs)
        return payload.jobs

    def _merge(self, payload: Payload, now_s: float) -> None:
        """Merge the batches behind a taken one whose oldest job has waited longer than the delay."""
        while self._ready:
            front = self._ready[0]
            if front.other_shape_follows or not now_s > front.oldest_s + self.rules.delay_s:
                return
            front.taken = True
            fits = payload.items + front.items <= self.rules.max_batch
            if not fits or front.jobs[0].shape != payload.jobs[0].shape:
                return
            payload.jobs += front.jobs
            payload.items += front.items
            self._ready.popleft()

    def advance(self, now_s: float, idle: int) -> None:
        """Form batches until one waits for an idle instance, no more may wait, or more jobs or time are needed."""
        self.retry_s = inf
        while True:
            if self._closed or self._payload.taken:
                self._payload, self._closed = Payload(), False
            if not self._n_queued or not self._slot(idle):
                return
            count, until_s = self._examine(now_s)
            if until_s is not None:
                self.retry_s = until_s
                return
            self._move(count)
            if not count and not self._closed:  # another shape waits until an instance has taken the batch before it
                return
            if not self._payload.queued and self._payload.jobs:
                self._payload.queued = True
                self._ready.append(self._payload)

    def _slot(self, idle: int) -> bool:
        """Return whether one more batch may be formed now."""
        if idle:  # an idle instance takes a batch as soon as it waits there
            return not self._ready
        return self._ahead and len(self._ready) < 2 * self.rules.instances

    def _move(self, count: int) -> None:
        """Move the first `count` jobs of the queue into the batch that is being formed."""
        jobs = list(islice(self._queue, count))
        for job in jobs:
            self._queue.remove(job)
            self._payload.items += job.items
        self._n_queued -= len(jobs)
        self._payload.jobs += jobs

    def _examine(self, now_s: float) -> tuple[int, float | None]:
        """Return (number of jobs to move into the batch now, None), or (0, time to examine the queue again).

        It follows `GetDynamicBatch` step by step: the cursor moves over the queue, marks the last preferred size, and
        stops where the batch is full or the shape changes.
        """
        rules, before = self.rules, self._payload.items
        pending, count, oldest_s = 0, 0, inf
        best_count, found, full = 0, False, False
        shape = self._payload.jobs[0].shape if self._payload.jobs else None
        for job in self._queue:
            size = before + pending + job.items
            if shape is None:
                shape = job.shape
            else:
                if size > self._largest and not found:
                    found, best_count, self._closed = pending > 0, count, True
                if size > rules.max_batch:
                    full = True
                    break
                if job.shape != shape:
                    self._payload.other_shape_follows = full = True
                    break
            pending += job.items
            count += 1
            oldest_s = min(oldest_s, job.queued_s)
            if before + pending in self._preferred:
                found, best_count = True, count
        delay_over = rules.delay_s > 0.0 and now_s >= oldest_s + rules.delay_s
        if found and not delay_over:
            if not rules.delay_s:
                self._closed = True
            return best_count, None
        if not count:
            return 0, None
        if full or before + pending >= self._largest:
            self._closed = True
            return count, None
        if delay_over or not rules.delay_s:
            return count, None
        if not self._closed and before and before not in self._preferred:
            return count, None
        return 0, oldest_s + rules.delay_s
