"""Merging of equal shapes, as SGLang-Diffusion's dynamic batching.

The source is `Scheduler.get_next_batch_to_run` in sgl-project/sglang, python/sglang/multimodal_gen/runtime/managers/
scheduler.py, at commit 007d0be (https://docs.sglang.io/docs/sglang-diffusion/dynamic_batching):

- The job that has waited longest is the head. Waiting jobs with the same sampling parameters join it in their order of
  arrival, also across jobs of other shapes, up to max_batch (`--batching-max-size`).
- A batch that is not full waits until the head has waited for the delay (`--batching-delay-ms`). Jobs of other shapes
  wait behind it.
- Jobs with a realtime session are never merged.

The engine counts requests. Here a job counts with its number of items, so that max_batch bounds the memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import inf

from simulator.jobs.batchers.base import Batcher, BatchRules, QueuedJob


class EqualShapes(Batcher):
    """Jobs of the shape of the oldest one, wherever they are in the queue."""

    def __init__(self, rules: BatchRules) -> None:
        super().__init__(rules)
        self._queues: dict[int, deque[QueuedJob]] = {}  # by shape, in order of arrival
        self._added = 0
        self._order: dict[QueuedJob, int] = {}  # number of the arrival of each waiting job

    def add(self, job: QueuedJob) -> bool:
        """Queue a job; the queue has no limit."""
        self._queues.setdefault(job.shape if job.session < 0 else -1 - job.index, deque()).append(job)
        self._order[job] = self._added = self._added + 1
        self.n_waiting += 1
        return True

    def take(self, now_s: float) -> Sequence[QueuedJob]:
        """Return the head and the jobs that join it, unless they wait for more."""
        self.retry_s = inf
        queue = self._oldest()
        if queue is None:
            return ()
        batch, items, full = list[QueuedJob](), 0, False
        for job in islice(queue, self.rules.max_batch + 1):
            if batch and items + job.items > self.rules.max_batch:
                full = True
                break
            batch.append(job)
            items += job.items
        until_s = batch[0].queued_s + self.rules.delay_s
        if batch[0].session < 0 and items < self.rules.max_batch and not full and now_s < until_s:
            self.retry_s = until_s
            return ()
        for job in batch:
            queue.popleft()
            self._leave(job)
        self.n_waiting -= len(batch)
        return batch

    def expire(self, job: QueuedJob) -> bool:
        """Remove a job that still waits; return whether it did."""
        if job.gone:
            return False
        self._queues[job.shape if job.session < 0 else -1 - job.index].remove(job)
        self._leave(job)
        self.n_waiting -= 1
        return True

    def _leave(self, job: QueuedJob) -> None:
        del self._order[job]
        job.gone = True

    def _oldest(self) -> deque[QueuedJob] | None:
        """Return the queue that holds the oldest job; None if no job waits."""
        for shape in [shape for shape, queue in self._queues.items() if not queue]:
            del self._queues[shape]
        return min(self._queues.values(), key=lambda queue: self._order[queue[0]], default=None)
