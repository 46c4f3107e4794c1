"""The contract of batchers: jobs that wait on one replica, and the batch that an idle instance starts next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from catalogs.deployments.network_deployment import TimeoutAction


@dataclass(slots=True, eq=False)
class QueuedJob:
    """A job as far as an engine knows it.

    Attributes:
        index: Its row in the workload.
        kind: Its kind in the workload.
        shape: Equal for jobs that differ in nothing but their number of items.
        items: Number of items: its size `batch`.
        priority: Its priority as the client states it; lower is served first, 0 is none.
        timeout_s: Longest wait that the client accepts, in seconds from its arrival in the queue.
        session: Its session; -1: none.
        queued_s: When it entered the queue.
        level: Its priority level in the queue, which the batcher sets.
        delayed: Whether it has waited for its timeout and is served after the others of its level.
        gone: Whether it has left the queue without being served.
    """

    index: int
    kind: int = 0
    shape: int = 0
    items: int = 1
    priority: int = 0
    timeout_s: float = inf
    session: int = -1
    queued_s: float = 0.0
    level: int = 0
    delayed: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class BatchRules:
    """The options of a batcher; see `NetworkDeployment` for their meaning.

    Attributes:
        max_batch: Most items of a batch.
        preferred: Batch sizes that start at once.
        delay_s: Longest wait of the oldest job for others.
        instances: Number of instances that the batcher feeds.
        priorities: Number of priority levels; 0: jobs have no priority.
        default_priority: Level of jobs without priority.
        timeout_s: Longest wait of a job.
        timeout_action: Whether a job that has waited so long is rejected or served after the others.
        max_waiting: Most waiting jobs of a priority level; None: no limit.
        some_time_out: Whether a job of the workload has a timeout of its own.
    """

    max_batch: int = 1
    preferred: tuple[int, ...] = ()
    delay_s: float = 0.0
    instances: int = 1
    priorities: int = 0
    default_priority: int = 0
    timeout_s: float = inf
    timeout_action: TimeoutAction = "reject"
    max_waiting: int | None = None
    some_time_out: bool = False


class Batcher(ABC):
    """The queue of one replica. It knows no prices, and the replica knows no rules.

    The replica calls `add` for each arrival, `advance` at every event, and `take` while an instance is idle. It calls
    again at `retry_s`, the time at which a batch may start although nothing arrives. Jobs keep their order of arrival
    within a shape and a priority level.
    """

    def __init__(self, rules: BatchRules) -> None:
        """Create an empty queue."""
        self.rules = rules
        self.n_waiting = 0  # jobs that no instance has started
        self.retry_s = inf

    @abstractmethod
    def add(self, job: QueuedJob) -> bool:
        """Queue a job, whose `queued_s` is now; return False if the queue is full."""

    @abstractmethod
    def take(self, now_s: float) -> Sequence[QueuedJob]:
        """Return the jobs of the batch that an idle instance starts now; empty if none starts."""

    def advance(self, now_s: float, idle: int) -> None:  # noqa: B027 - most batchers only act when an instance is idle
        """Form batches ahead of time, where the engine does; `idle` instances wait for work."""

    def expire(self, job: QueuedJob) -> bool:
        """Apply the timeout of a job that may still wait; return whether it is rejected now."""
        if job.gone:
            return False
        job.gone = True
        self.n_waiting -= 1
        return True
