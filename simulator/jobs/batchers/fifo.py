"""First in, first out: what a loop around `model(batch)` does, such as torch or `pipeline(...)` behind a web server.

An idle instance takes the job that has waited longest, and with it the jobs directly behind it of the same shape, up to
max_batch items. It never waits for more jobs.

vLLM's pooling runner does the same with requests of equal length: each step takes the waiting requests in order, up to
max_num_seqs. Simplification: it would also join requests of other lengths in a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from simulator.jobs.batchers.base import Batcher, BatchRules, QueuedJob


class Fifo(Batcher):
    """The jobs in order of arrival."""

    def __init__(self, rules: BatchRules) -> None:
        super().__init__(rules)
        self._queue: deque[QueuedJob] = deque()

    def add(self, job: QueuedJob) -> bool:
        """Queue a job; the queue has no limit."""
        self._queue.append(job)
        self.n_waiting += 1
        return True

    def take(self, now_s: float) -> Sequence[QueuedJob]:  # noqa: ARG002 - it never waits
        """Return the first job and those of its shape directly behind it."""
        queue, batch, items = self._queue, list[QueuedJob](), 0
        while queue:
            job = queue[0]
            if not job.gone:
                if batch and (job.shape != batch[0].shape or items + job.items > self.rules.max_batch):
                    break
                batch.append(job)
                items += job.items
            queue.popleft()
        for job in batch:
            job.gone = True
        self.n_waiting -= len(batch)
        return batch
