"""The cluster of a run of jobs: clients, sessions, the router and the replicas.

The clock, its order of simultaneous events and the routers are those of requests of language models
(`simulator/core/clock.py`, `simulator/cluster/routers`): a batch ends before a job arrives at the same time, timeouts
end before arrivals, and idle instances look for work after all arrivals of that time.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Final, cast

import numpy as np
from simpy import Event

from catalogs.deployments.network_deployment import NetworkEngine
from catalogs.deployments.routing import RouterOptions, parse_router
from catalogs.errors import InputError
from catalogs.workloads.jobs import JobSet
from simulator.cluster.routers.base import ReplicaView
from simulator.cluster.routers.registry import make_router
from simulator.core import outcomes
from simulator.core.clock import ARRIVAL, CONTROL, LAST, Clock, Process, Timetable
from simulator.core.request import Request
from simulator.engine.replica import Replica
from simulator.jobs.batch_log import BatchRecorder
from simulator.jobs.batchers.base import BatchRules, QueuedJob
from simulator.jobs.batchers.registry import make_batcher
from simulator.jobs.compiled import BatchPrice
from simulator.jobs.replica import JobReplica
from simulator.jobs.residency import SessionStates, Weights

#: Routers that read the KV cache or the tokens of requests, which a network does not have.
_NEED_TOKENS: Final = frozenset({"least_tokens", "prefix_aware", "kv_aware", "scored"})


@dataclass(frozen=True, slots=True)
class KindRules:
    """A kind of job as an engine knows it: its number of items, and the numbers of its shape and of its network."""

    items: int = 1
    shape: int = 0
    model: int = 0


@dataclass(frozen=True)
class JobServing:
    """How jobs are served, without names and prices in dollars: all that a run needs.

    Attributes:
        engine: The engine, and so the batcher.
        rules: Its options.
        price: The price of a batch by kind of job and number of items.
        kinds: Each kind of job.
        replicas: Number of replicas.
        router: The router in front of them.
        router_staleness_s: Age of its view.
        state_bytes: State of one session on each accelerator of its replica; 0: none.
        states_bytes: Memory of one accelerator for states.
        weights_bytes: Weights of each network on one accelerator, where several share it.
        all_weights_bytes: Memory of one accelerator for weights.
        host_bytes_per_s: Rate between host and accelerator.
    """

    engine: NetworkEngine
    rules: BatchRules
    price: Callable[[int, int], BatchPrice]
    kinds: tuple[KindRules, ...] = (KindRules(),)
    replicas: int = 1
    router: str | RouterOptions = "round_robin"
    router_staleness_s: float = 0.0
    state_bytes: float = 0.0
    states_bytes: float = inf
    weights_bytes: tuple[float, ...] = ()
    all_weights_bytes: float = inf
    host_bytes_per_s: float = inf


class JobOutcomes:
    """One row for each job in workload order; times are nan until the event happens."""

    def __init__(self, n: int) -> None:
        """Create the rows of n jobs that were not sent yet."""
        blank, none = array("d", [nan]) * n, array("q", [-1]) * n
        self.arrival_s, self.started_s, self.ended_s = blank[:], blank[:], blank[:]
        self.replica, self.batch = none[:], none[:]
        self.status = array("b", [outcomes.NOT_SENT]) * n


class SessionOrder:
    """The jobs of each session, one after the other: a job waits until the one before it has ended."""

    def __init__(self) -> None:
        """Create the order without jobs."""
        self._waiting: dict[int, deque[QueuedJob]] = {}  # of each session with a job in progress: those behind it

    def begins(self, job: QueuedJob) -> bool:
        """Return whether a job that arrives may be served now; otherwise it waits."""
        if job.session < 0:
            return True
        waiting = self._waiting.get(job.session)
        if waiting is None:
            self._waiting[job.session] = deque()
            return True
        waiting.append(job)
        return False

    def next(self, job: QueuedJob) -> QueuedJob | None:
        """Return the job that may be served after the end of another one of its session."""
        if job.session < 0:
            return None
        waiting = self._waiting[job.session]
        if waiting:
            return waiting.popleft()
        del self._waiting[job.session]
        return None


class JobCluster:
    """One simulated run: create it, call `run` once, and read `results`, `recorder` `states` and `weights`."""

    def __init__(self, serving: JobServing, jobs: JobSet, horizon_s: float | None = None) -> None:
        options = parse_router(serving.router) if isinstance(serving.router, str) else serving.router
        if options.name in _NEED_TOKENS:
            rule = "networks have no tokens and no KV cache, which this router reads"
            raise InputError(rule, options.name, "least_outstanding")
        self.jobs, self.serving, self.horizon_s = jobs, serving, horizon_s
        self.clock, self.results, self.recorder = Clock(), JobOutcomes(jobs.n), BatchRecorder()
        self._rules = replace(serving.rules, some_time_out=_some_time_out(jobs))
        self.states = (
            SessionStates(serving.state_bytes, serving.states_bytes, serving.host_bytes_per_s, serving.replicas)
            if serving.state_bytes
            else None
        )
        self.weights = (
            Weights(serving.weights_bytes, serving.all_weights_bytes, serving.host_bytes_per_s, serving.replicas)
            if len(serving.weights_bytes) > 1
            else None
        )
        self.replicas = [self._open(index) for index in range(serving.replicas)]
        sessions = None if jobs.sessions is None else jobs.sessions.tolist()
        self._view = ReplicaView(serving.router_staleness_s > 0.0, sessions)
        self._router = make_router(options, self._view)
        self._order = SessionOrder()
        self._n_ended = self._n_sent = 0
        self._kinds = jobs.kind.tolist()
        self._sessions = [-1] * jobs.n if sessions is None else sessions
        terms = jobs.terms
        self._priorities = [0] * jobs.n if terms is None else terms.priority.tolist()
        self._timeouts_s = [inf] * jobs.n if terms is None else terms.timeout_s.tolist()
        self._think_s = None if jobs.think_s is None else jobs.think_s.tolist()

    def _open(self, index: int) -> JobReplica:
        serving = self.serving
        return JobReplica(
            index,
            self.clock,
            make_batcher(serving.engine, self._rules),
            serving.price,
            self.recorder,
            self._started,
            self._ended,
            self._prepare if self.states or self.weights else None,
        )

    def _prepare(self, replica: int, jobs: Sequence[QueuedJob]) -> float:
        """Bring weights and states for a batch to a replica and return the seconds of the copies."""
        seconds = 0.0
        if self.weights is not None:
            seconds += self.weights.load_s(replica, self.serving.kinds[jobs[0].kind].model)
        if self.states is not None:
            seconds += self.states.move_s(replica, [job.session for job in jobs])
        return seconds

    def run(self) -> None:
        """Run until all jobs have ended, or until the horizon."""
        if self.serving.router_staleness_s > 0.0:
            timetable = Timetable(self.clock, lambda: self._n_ended == self.jobs.n, lambda: "jobs wait for nothing")
            timetable.every(self.serving.router_staleness_s, self._collect)
        if self.jobs.concurrency is None:
            self.clock.process(self._arrivals(self.jobs.arrival_s.tolist()))
        else:
            for _ in range(min(self.jobs.concurrency, self.jobs.n)):
                self._send_next()
        horizon_s = self.horizon_s
        self.clock.run(None if horizon_s is None else self.clock.at(horizon_s, LAST))

    def _collect(self) -> None:
        self._view.collect(cast(Sequence[Replica], self.replicas))

    def _arrivals(self, arrival_s: Sequence[float]) -> Process:
        """Deliver the jobs of an open loop."""
        clock = self.clock
        arrival = clock.at(arrival_s[0] if arrival_s else 0.0, ARRIVAL)
        for index, next_s in zip(range(self.jobs.n), [*arrival_s[1:], None], strict=False):
            yield arrival
            if next_s is not None:  # scheduled first, to come first among events of its time
                clock.repeat(arrival, next_s, ARRIVAL, [])
            self._arrive(index)

    def _send_next(self) -> None:
        """Let a client of a closed loop send the next job of the workload after its think time, if any remain."""
        index = self._n_sent
        if index < self.jobs.n:
            self._n_sent = index + 1
            wait_s = 0.0 if self._think_s is None else self._think_s[index]
            self.clock.at(self.clock.now + wait_s, ARRIVAL, [lambda _: self._arrive(index)])

    def _arrive(self, index: int) -> None:
        """Accept a job from its client."""
        kind = self._kinds[index]
        rules = self.serving.kinds[kind]
        job = QueuedJob(index, kind, rules.shape, rules.items, self._priorities[index], self._timeouts_s[index])
        job.session = self._sessions[index]
        self.results.arrival_s[index] = self.clock.now
        self.results.status[index] = outcomes.UNFINISHED
        if self._order.begins(job):
            self._route(job)

    def _route(self, job: QueuedJob) -> None:
        """Send a job to the replica that the router chooses; its timeout counts from here."""
        request = Request(job.index, 1)
        replica = self.replicas[self._router.choose(request, cast(Sequence[Replica], self.replicas))]
        self.results.replica[job.index] = replica.index
        if not replica.receive(job):
            self._leave(job, outcomes.QUEUE_FULL)
            return
        timeout_s = min(self._rules.timeout_s, job.timeout_s)
        if timeout_s < inf:
            self.clock.at(self.clock.now + timeout_s, CONTROL, [lambda _: self._expire(replica, job)])

    def _expire(self, replica: JobReplica, job: QueuedJob) -> None:
        if not job.gone and replica.expire(job):
            self._leave(job, outcomes.TIMED_OUT)

    def _started(self, _: int, job: QueuedJob, row: int) -> None:
        self.results.started_s[job.index] = self.clock.now
        self.results.batch[job.index] = row

    def _ended(self, _: int, job: QueuedJob) -> None:
        self.results.ended_s[job.index] = self.clock.now
        self._leave(job, outcomes.COMPLETED)

    def _leave(self, job: QueuedJob, status: int) -> None:
        """Answer a job now; the next one of its session is served, and its client sends its next one."""
        self.results.status[job.index] = status
        self._n_ended += 1
        follower = self._order.next(job)
        if follower is not None:
            self.clock.at(self.clock.now, ARRIVAL, [self._follow], follower)
        if self.jobs.concurrency is not None:
            self._send_next()

    def _follow(self, event: Event) -> None:
        job = cast(QueuedJob, event.value)
        self._route(job)


def _some_time_out(jobs: JobSet) -> bool:
    return jobs.terms is not None and bool(np.isfinite(jobs.terms.timeout_s).any())
