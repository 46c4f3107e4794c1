"""An optional event log of a run, with details beyond the step logs and results.

The log consists of tables that grow during a run: events of requests (reached a replica, prompt computed, preempted,
transferred, finished), samples of each replica's state, taken whenever it changes, and fetches of KV blocks. Recording
the log does not change the results of a run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from catalogs.arrays import FloatArray
from simulator.schedulers.base import Scheduler
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.data_parallel import Lockstep

if TYPE_CHECKING:
    from simulator.core.batch import Batch, BatchShape
    from simulator.core.request import Request


#: Kinds of events. TOKENISED: the request is ready to be routed (again, if it was stranded or lost). PROMPTED: a
#: prompt is computed (again, after a preemption) and a token is output. JOINED: the first step of a transferred request
#: on its decode replica begins. OPENED: that step ends and outputs the first token that the client sees.
TOKENISED, REACHED, PROMPTED, PREEMPTED, JOINED, OPENED, FINISHED = range(7)

#: Why the request at the head of a queue waits. STEP: the engine has not considered it yet, or the step in flight must
#: end first. SEATS: no seat is free. BLOCKS: too few KV blocks are free. TURN: the token budget of the step is used up,
#: or the engine waits for more requests.
STEP, SEATS, BLOCKS, TURN = range(4)

EVENT_COLUMNS: Final = ("time_s", "kind", "request", "replica", "loop")

FETCH_COLUMNS: Final = ("request", "replica", "start_s", "end_s")

SAMPLE_COLUMNS: Final = ("time_s", "replica", "held_blocks", "running", "waiting", "reason")


class ReplicaState(Protocol):
    """The interface of a replica that the event log reads."""

    index: int

    @property
    def now(self) -> float:
        """Return the simulated time in seconds since the run began."""

    @property
    def scheduler(self) -> Scheduler:
        """Return the scheduler of the first batch in flight, which owns the shared queue and cache."""

    @property
    def schedulers(self) -> Sequence[Scheduler]:
        """Return one scheduler for each batch in flight; all of them share a queue and a cache."""


class EventLog:
    """An append-only log with 40 bytes per event and 48 bytes per sample."""

    def __init__(self) -> None:
        self._events, self._samples, self._fetches = array("d"), array("d"), array("d")
        self._reasons: dict[int, int] = {}  # by replica: why the last schedule left the head of the queue waiting
        # By scheduler: the head of the queue, the number of running requests, and whether the head fits (see `_fits`)
        self._fitting: dict[Scheduler, tuple[Request | None, int, bool]] = {}

    def events(self) -> FloatArray:
        """Return the events in ascending order of time. Shape (events, 5), columns in the order of EVENT_COLUMNS."""
        return np.array(self._events, dtype=np.float64).reshape(-1, len(EVENT_COLUMNS))

    def samples(self) -> FloatArray:
        """Return the samples in ascending order of time. Shape (samples, 6), columns in the order of SAMPLE_COLUMNS.

        Each sample is valid until the next sample of the same replica. The number of held blocks changes evenly from
        one sample to the next, and is nan if a run of steps was in progress.
        """
        return np.array(self._samples, dtype=np.float64).reshape(-1, len(SAMPLE_COLUMNS))

    def fetches(self) -> FloatArray:
        """Return the fetches of KV blocks from host memory or disk. Shape (fetches, 4), columns FETCH_COLUMNS."""
        return np.array(self._fetches, dtype=np.float64).reshape(-1, len(FETCH_COLUMNS))

    def fetched(self, replica: ReplicaState, request: Request, end_s: float) -> None:
        """Record that blocks of a request are fetched to the device from now until end_s."""
        self._fetches.extend((request.index, replica.index, replica.now, end_s))

    def by_replica(self, n_replicas: int) -> list[FloatArray]:
        """Return the samples of each replica. Shape (samples of the replica, 6) each, columns SAMPLE_COLUMNS."""
        table = self.samples()
        table = table[np.argsort(table[:, 1], kind="stable")]
        return np.split(table, np.searchsorted(table[:, 1], np.arange(1, n_replicas)))

    def tokenised(self, index: int, now: float) -> None:
        """Record that a request left the API server for the router."""
        self._events.extend((now, TOKENISED, index, -1, -1))

    def reached(self, replica: ReplicaState, request: Request) -> None:
        """Record that a request entered a replica's queue."""
        self._events.extend((replica.now, REACHED, request.index, replica.index, 0))
        if self._reasons.get(replica.index, STEP) == STEP and _taken(replica.scheduler, _running(replica), 1):
            self._reasons[replica.index] = SEATS  # certain before the engine considers the request
        self.sample(replica, nan)  # a run of steps may be in progress, whose blocks are accounted for at its end

    def needs_schedule(self, replica: ReplicaState) -> bool:
        """Return whether the engine must schedule before the log knows why the head of the queue waits."""
        return self._reasons.get(replica.index, STEP) == STEP

    def scheduled(self, replica: ReplicaState, scheduler: Scheduler, batch: Batch | None) -> None:
        """Record that a batch was scheduled, or that none could be (None)."""
        self._reasons[replica.index] = self._reason(scheduler, batch, len(replica.schedulers))
        self.sample(replica)

    def preempted(self, replica: ReplicaState, loop: int, requests: list[Request]) -> None:
        """Record that requests of the step loop with number `loop` were preempted."""
        for request in requests:
            self._events.extend((replica.now, PREEMPTED, request.index, replica.index, loop))

    def processed(self, replica: ReplicaState, loop: int, batch: Batch, start_s: float) -> None:
        """Record the outputs of a batch that began at start_s and ends now."""
        for kind, time_s, requests in (
            (JOINED, start_s, batch.prefilled),
            (OPENED, replica.now, [request for request in batch.prefilled if not request.emitted]),
            (PROMPTED, replica.now, batch.prompted),
            (FINISHED, replica.now, batch.finishing),
        ):
            for request in requests:
                self._events.extend((time_s, kind, request.index, replica.index, loop))

    def sample(self, replica: ReplicaState, held_blocks: float | None = None) -> None:
        """Record the state of a replica now; `held_blocks` is nan if a run of steps may be in progress."""
        scheduler = replica.scheduler
        held_blocks = scheduler.kv.held if held_blocks is None else held_blocks
        waiting = scheduler.n_waiting
        reason = self._reasons.get(replica.index, STEP) if waiting else STEP
        self._samples.extend((replica.now, replica.index, held_blocks, _running(replica), waiting, reason))

    def _reason(self, scheduler: Scheduler, batch: BatchShape | None, n_loops: int) -> int:
        """Return why the head of the queue was not scheduled.

        The reason is SEATS or TURN if no seat or no token budget was left. Otherwise it is BLOCKS, which includes
        blocks that an engine reserves for future outputs, unless the request would fit even if every running request
        grew to its limit; then it is TURN.
        """
        if not scheduler.n_waiting:
            return STEP
        if isinstance(scheduler, Lockstep):
            ranks = scheduler.ranks
            place = max(range(len(ranks)), key=lambda place: ranks[place].n_waiting)  # the longest queue
            return self._reason(ranks[place], batch.ranks[place] if batch is not None else None, n_loops)
        rules = scheduler.rules
        if _taken(scheduler, scheduler.n_running, n_loops):
            return SEATS
        head = scheduler.head if isinstance(scheduler, ContinuousBatching) else None
        if head is None:
            return STEP
        left = rules.max_num_batched_tokens - (batch.tokens if batch is not None else 0)
        if left <= 0 or rules.balance_steps or (not rules.chunked_prefill and head.known_tokens > left):
            return TURN
        return TURN if self._fits(scheduler, head) and not scheduler.preempted else BLOCKS

    def _fits(self, scheduler: Scheduler, head: Request) -> bool:
        """Return whether the head fits with every running request at its limit; cached until the requests change."""
        request, running, fits = self._fitting.get(scheduler, (None, 0, False))
        if request is not head or running != scheduler.n_running:
            running = scheduler.n_running
            needed = head.known_tokens + (running + 1) * scheduler.rules.max_output_tokens
            fits = needed <= scheduler.kv.available * scheduler.rules.block_size
            self._fitting[scheduler] = head, running, fits
        return fits


def _running(replica: ReplicaState) -> int:
    return sum(scheduler.n_running for scheduler in replica.schedulers)


def _taken(scheduler: Scheduler, running: int, n_loops: int) -> bool:
    """Return whether no seat is free: all are occupied, or a padded batch must finish as a whole first."""
    return running >= max(1, scheduler.rules.max_num_seqs // n_loops) or (scheduler.pads and running > 0)
