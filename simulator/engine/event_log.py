"""What happened when, beyond what step logs and results tell. Kept only where somebody wants to look at a run.

Two tables that grow with a run: events of requests (reached a replica, prompt done, preempted, taken over, done), and
samples of a replica's state, taken whenever it changes. Without a journal a run costs and gives exactly the same.
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


#: Kinds of events. TOKENISED: it is ready to be routed (again, if it was stranded or lost). PROMPTED: a prompt is
#: computed (again, after a preemption) and a token comes out. JOINED: the first step on the replica that took it over
#: begins. OPENED: that step ends, and with it comes the first token the client sees.
TOKENISED, REACHED, PROMPTED, PREEMPTED, JOINED, OPENED, FINISHED = range(7)

#: Why the head of a queue waits. STEP: the engine has not looked yet, or it has and the step in flight must end first.
#: TURN: the step's token budget is spent, or the engine waits for more.
STEP, SEATS, BLOCKS, TURN = range(4)

REASONS: Final = ("step", "seats", "blocks", "turn")

EVENT_COLUMNS: Final = ("time_s", "kind", "request", "replica", "lane")

FETCH_COLUMNS: Final = ("request", "replica", "start_s", "end_s")

SAMPLE_COLUMNS: Final = ("time_s", "replica", "held_blocks", "running", "waiting", "reason")


class ReplicaState(Protocol):
    """The replica that something happens to."""

    index: int

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the first batch in flight, which holds the queue and the cache of all."""

    @property
    def schedulers(self) -> Sequence[Scheduler]:
        """One for each batch in flight."""


class EventLog:
    """Append-only; 40 bytes an event, 48 a sample."""

    __slots__ = ("_asked", "_events", "_fetches", "_reasons", "_samples")

    def __init__(self) -> None:
        self._events, self._samples, self._fetches = array("d"), array("d"), array("d")
        self._reasons: dict[int, int] = {}  # by replica: of what its last schedule left waiting
        self._asked: dict[Scheduler, tuple[Request | None, int, bool]] = {}

    def events(self) -> FloatArray:
        """Shape (events, 5), columns in the order of EVENT_COLUMNS, ascending in time."""
        return np.array(self._events, dtype=np.float64).reshape(-1, len(EVENT_COLUMNS))

    def samples(self) -> FloatArray:
        """Shape (samples, 6), columns in the order of SAMPLE_COLUMNS, ascending in time. Each holds until the next of
        its replica; held blocks change evenly from one to the next, and are nan where a run of steps was under way."""
        return np.array(self._samples, dtype=np.float64).reshape(-1, len(SAMPLE_COLUMNS))

    def fetches(self) -> FloatArray:
        """Shape (fetches, 4), columns in the order of FETCH_COLUMNS: blocks that came from host memory or disk."""
        return np.array(self._fetches, dtype=np.float64).reshape(-1, len(FETCH_COLUMNS))

    def fetched(self, replica: ReplicaState, request: Request, end_s: float) -> None:
        """Blocks of a request are on their way to the device from now until then."""
        self._fetches.extend((request.index, replica.index, replica.now, end_s))

    def by_replica(self, n_replicas: int) -> list[FloatArray]:
        """The samples of each replica."""
        table = self.samples()
        table = table[np.argsort(table[:, 1], kind="stable")]
        return np.split(table, np.searchsorted(table[:, 1], np.arange(1, n_replicas)))

    def tokenised(self, index: int, now: float) -> None:
        """A request left the API server for the router."""
        self._events.extend((now, TOKENISED, index, -1, -1))

    def reached(self, replica: ReplicaState, request: Request) -> None:
        """A request came to a replica's queue."""
        self._events.extend((replica.now, REACHED, request.index, replica.index, 0))
        if self._reasons.get(replica.index, STEP) == STEP and _taken(replica.scheduler, _running(replica), 1):
            self._reasons[replica.index] = SEATS  # known before the engine looks
        self._sample(replica, nan)  # a run of steps may be under way, whose blocks are booked when it ends

    def wonders(self, replica: ReplicaState) -> bool:
        """Why the head of its queue waits is not known until the engine has looked."""
        return self._reasons.get(replica.index, STEP) == STEP

    def scheduled(self, replica: ReplicaState, scheduler: Scheduler, batch: Batch | None) -> None:
        """A batch was put together, or none could be."""
        self._reasons[replica.index] = self._reason(scheduler, batch, len(replica.schedulers))
        self.sample(replica)

    def preempted(self, replica: ReplicaState, loop: int, requests: list[Request]) -> None:
        """Requests of a step loop of the replica, by its number, lost their blocks."""
        for request in requests:
            self._event(PREEMPTED, replica.now, request, replica.index, loop)

    def processed(self, replica: ReplicaState, loop: int, batch: Batch, start_s: float) -> None:
        """The outputs of a batch, whose last step ends now, are there."""
        for kind, time_s, requests in (
            (JOINED, start_s, batch.joined),
            (OPENED, replica.now, [request for request in batch.joined if not request.emitted]),
            (PROMPTED, replica.now, batch.prompted),
            (FINISHED, replica.now, batch.finishing),
        ):
            for request in requests:
                self._event(kind, time_s, request, replica.index, loop)

    def sample(self, replica: ReplicaState) -> None:
        """Note the state of a replica now, between two steps."""
        self._sample(replica, replica.scheduler.kv.held)

    def _sample(self, replica: ReplicaState, held_blocks: float) -> None:
        scheduler = replica.scheduler
        waiting = scheduler.n_waiting
        reason = self._reasons.get(replica.index, STEP) if waiting else STEP
        self._samples.extend((replica.now, replica.index, held_blocks, _running(replica), waiting, reason))

    def _reason(self, scheduler: Scheduler, batch: BatchShape | None, n_loops: int) -> int:
        """Why the head of the queue was left there: no seat, no budget, or else no blocks (or what an engine keeps free
        of them for outputs to come); its turn where it would fit even if every running one grew to its limit."""
        if not scheduler.n_waiting:
            return STEP
        if isinstance(scheduler, Lockstep):
            place = scheduler.longest_queue
            part = batch.ranks[place] if batch is not None else None
            return self._reason(scheduler.ranks[place], part, n_loops)
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
        """Asked once for as long as nobody comes or goes."""
        asked, running, fits = self._asked.get(scheduler, (None, 0, False))
        if asked is not head or running != scheduler.n_running:
            running = scheduler.n_running
            room = scheduler.kv.available * scheduler.rules.block_size
            fits = head.known_tokens + (running + 1) * scheduler.rules.max_output_tokens <= room
            self._asked[scheduler] = head, running, fits
        return fits

    def _event(self, kind: int, time_s: float, request: Request, replica: int, loop: int) -> None:
        self._events.extend((time_s, kind, request.index, replica, loop))


def _running(replica: ReplicaState) -> int:
    return sum(scheduler.n_running for scheduler in replica.schedulers)


def _taken(scheduler: Scheduler, running: int, n_loops: int) -> bool:
    """No seat is free: all are taken, or a batch must leave together first."""
    return running >= max(1, scheduler.rules.max_num_seqs // n_loops) or (scheduler.pads and running > 0)
