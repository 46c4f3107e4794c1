"""One replica: its queue, its idle instances, and the batches on its accelerators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from simpy import Event

from simulator.core.clock import WAKE, Clock
from simulator.jobs.accelerator import SharedAccelerator
from simulator.jobs.batch_log import BatchRecorder
from simulator.jobs.batchers.base import Batcher, QueuedJob
from simulator.jobs.compiled import BatchPrice


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A batch in progress: its row in the log and its jobs."""

    row: int
    jobs: Sequence[QueuedJob]


class JobReplica:
    """A replica as routers and the cluster of jobs use it.

    Its attributes include the signals of replicas that routers read (`simulator/cluster/routers/base.py`). A network
    has no KV cache, and a job counts as one token.
    """

    kv_used_fraction = 0.0

    def __init__(
        self,
        index: int,
        clock: Clock,
        batcher: Batcher,
        price: Callable[[int, int], BatchPrice],
        recorder: BatchRecorder,
        started: Callable[[int, QueuedJob, int], None],
        ended: Callable[[int, QueuedJob], None],
        prepare: Callable[[int, Sequence[QueuedJob]], float] | None = None,
    ) -> None:
        """Create an idle replica.

        Args:
            index: Its number.
            clock: The clock of the run.
            batcher: Its empty queue.
            price: The price of a batch by kind of job and number of items.
            recorder: Where batches are recorded.
            started: Called with the replica, each job that starts, and the row of its batch.
            ended: Called with the replica and each job that ends.
            prepare: The seconds in which a batch brings weights and states to the accelerators; None: always zero.
        """
        self.index, self._clock, self._batcher, self._price = index, clock, batcher, price
        self._recorder, self._started, self._ended, self._prepare = recorder, started, ended, prepare
        self.outstanding = 0  # jobs sent here and not ended
        self._idle = batcher.rules.instances
        self._accelerator: SharedAccelerator[RunningBatch] = SharedAccelerator(clock, index, self._end)
        self._wake_s = inf  # the earliest scheduled wake

    @property
    def outstanding_tokens(self) -> int:
        """Return the number of unfinished jobs, each of which counts as one token."""
        return self.outstanding

    @property
    def n_waiting(self) -> int:
        """Return the number of jobs that no instance has started."""
        return self._batcher.n_waiting

    def receive(self, job: QueuedJob) -> bool:
        """Queue a job that arrives now; return False if the queue is full."""
        job.queued_s = self._clock.now
        if not self._batcher.add(job):
            return False
        self.outstanding += 1
        self._wake(self._clock.now)
        return True

    def expire(self, job: QueuedJob) -> bool:
        """Apply the timeout of a job that may still wait; return whether it is rejected now."""
        rejected = self._batcher.expire(job)
        self.outstanding -= rejected
        self._wake(self._clock.now)
        return rejected

    def _wake(self, time_s: float) -> None:
        """Form batches at a time, after the arrivals of that time."""
        if time_s < self._wake_s:
            self._wake_s = time_s
            self._clock.at(time_s, WAKE + self.index, [self._awake])

    def _awake(self, _: Event) -> None:
        if self._wake_s <= self._clock.now:
            self._wake_s = inf
            self._dispatch()

    def _dispatch(self) -> None:
        """Start batches while instances are idle and the batcher has work."""
        now = self._clock.now
        self._batcher.advance(now, self._idle)
        while self._idle:
            jobs = self._batcher.take(now)
            if not jobs:
                break
            self._idle -= 1
            price = self._price(jobs[0].kind, sum(job.items for job in jobs))
            if self._prepare is not None:
                price = replace(price, seconds=price.seconds + self._prepare(self.index, jobs))
            row = self._recorder.started(self.index, jobs, now, price)
            for job in jobs:
                self._started(self.index, job, row)
            self._accelerator.start(RunningBatch(row, jobs), price)
            self._batcher.advance(now, self._idle)
        if self._batcher.retry_s < inf:
            self._wake(max(now, self._batcher.retry_s))

    def _end(self, batches: list[RunningBatch]) -> None:
        for batch in batches:
            self._idle += 1
            self._recorder.ended(batch.row, self._clock.now)
            self.outstanding -= len(batch.jobs)
            for job in batch.jobs:
                self._ended(self.index, job)
        self._dispatch()
