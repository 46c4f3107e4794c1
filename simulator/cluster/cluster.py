"""The cluster of a run: all replicas behind one router and one set of clients, with pools, stages and hand-overs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Protocol

import numpy as np
from simpy import Event

from catalogs.arrays import FloatArray
from catalogs.deployments.faults import Retries
from catalogs.deployments.routing import RouterOptions
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.cache.lora_slots import check_adapters
from simulator.cluster.clients import ClientTimeouts, ClosedLoopClients, Frontend, RetryTracker
from simulator.cluster.compiled import Pool
from simulator.cluster.kv_transfer import InstantTransfer, KvTransfer, TransferChannel, TransferModel
from simulator.cluster.options import AS_COMPUTED, DisaggregationPolicy
from simulator.cluster.provisioning import PendingReplicas, ReplicaSlots
from simulator.cluster.routers.base import ReplicaView
from simulator.cluster.routers.registry import make_router
from simulator.cluster.routing_stage import RoutingStage, RunningPool, content_keys
from simulator.core.clock import ARRIVAL, LAST, Callback, Clock, Process, Timetable
from simulator.core.invariants import InvariantViolation
from simulator.core.outcomes import FAILED, NOT_SENT, QUEUE_FULL, UNFINISHED, RequestOutcomes
from simulator.core.request import Request
from simulator.engine.context import EngineContext
from simulator.engine.event_log import EventLog
from simulator.engine.invariants import check_drained, check_schedule
from simulator.engine.replica import Replica
from simulator.schedulers.registry import scheduler_class


class FleetControl(Protocol):
    """The interface through which controllers observe and change the fleet of a run."""

    clock: Clock
    results: RequestOutcomes
    pools: list[RunningPool]
    replicas: list[Replica]  # in order of birth, the dead among them
    on_birth: list[Callable[[Replica], None]]  # called with every new replica
    slots: list[ReplicaSlots]  # by pool
    orders: PendingReplicas
    transfer: TransferChannel
    options: RunOptions
    n_answered: int  # requests that were served, rejected or given up

    def at(self, time_s: float, action: Callable[[], object]) -> None:
        """Call `action` at `time_s`, unless everything is served by then."""

    def every(self, period_s: float, action: Callable[[], object]) -> None:
        """Call `action` again and again, a period from now first, until everything is served."""

    def process(self, story: Process) -> None:
        """Let a process of a controller begin."""

    def after(self, wait_s: float) -> Event:
        """Return what such a process waits for until `wait_s` seconds from now; once all is served, for ever."""

    def living(self, pool: int) -> list[Replica]:
        """Return the replicas of a pool that take requests."""

    def drains(self, replica: Replica) -> bool:
        """Return whether a replica lives and takes no requests."""

    def goes_to(self, index: int, pool: int) -> bool:
        """Return whether a request wants the model of that pool."""

    def n_stranded(self, pool: int) -> int:
        """Return how many requests wait for a replica of the pool's model to be born."""

    def add_replica(self, pool: int) -> Replica:
        """Add a replica that is ready to serve."""

    def drain(self, replica: Replica) -> None:
        """Send a replica no further requests; it ends when it has served those it has."""

    def fail(self, replica: Replica) -> None:
        """End a replica now; the requests it held begin again elsewhere."""


class Controller(Protocol):
    """A controller that changes the fleet during a run, such as an autoscaler; started once when the run begins."""

    def start(self, cluster: FleetControl) -> None:
        """Start processes that wait (`after`) and act (`add_replica`, `drain`, `fail`)."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run; fast_forward, check_laws and processes do not change its results."""

    fast_forward: bool = True
    seed: int | None = None  # for materialising a workload; the simulation itself draws nothing
    router: str | RouterOptions = "round_robin"
    router_staleness_s: float = 0.0  # between two collections of what replicas show; 0: routers see them as they are
    retries: Retries | None = None  # of requests that were lost; None: at once, as often as it takes
    horizon_s: float | None = None  # stop after this time; what is unfinished stays so
    check_laws: bool = False  # check every invariant after every schedule (slow)
    transfer: TransferModel | None = None  # None: instant
    hand_over: DisaggregationPolicy = AS_COMPUTED  # between prefill and decode pools
    controllers: tuple[Controller, ...] = ()
    journal: EventLog | None = None  # where to note what happens in the run
    processes: int = (
        1  # that share the work, where replicas do not depend on each other (simulator/cluster/parallel.py)
    )


class Cluster:
    """One simulated run: create it, call `run` once, and read `results` and the logs of the replicas."""

    def __init__(self, pools: Sequence[Pool], requests: RequestSet, options: RunOptions) -> None:
        self.requests, self.options = requests, options
        self.results, self.clock = RequestOutcomes(requests.n), Clock()
        self._input_tokens: list[int] = requests.input_tokens.tolist()
        self._output_tokens: list[int] = requests.output_tokens.tolist()
        self._adapters = None if requests.adapters is None else requests.adapters.tolist()
        self._models = None if requests.wanted_models is None else requests.wanted_models.tolist()
        carried = options.transfer
        self.transfer: TransferChannel = (
            carried.start(self.clock, options.check_laws) if carried else InstantTransfer(self.clock)
        )
        self.pools = [self._open(pool) for pool in pools]
        self.replicas: list[Replica] = []  # in order of birth, the dead among them
        self.on_birth: list[Callable[[Replica], None]] = []  # controllers that want to know of every new replica
        self.slots = [ReplicaSlots() for _ in pools]
        self._paths = [self._lay_path(model) for model in range(1 + max(pool.model for pool in pools))]
        self._only = self._paths[0] if self._models is None and len(self._paths[0]) == 1 else None  # all go there
        self._draining: set[Replica] = set()
        self._stranded: deque[int] = deque()  # requests that no living replica could take
        self.retries = RetryTracker(options.retries)
        self.n_answered = 0
        closed = requests.concurrency is not None
        self._clients = ClosedLoopClients(self.clock, requests, self._send) if closed else None
        self._timetable = Timetable(self.clock, lambda: self.done, self._plea)
        self.orders = PendingReplicas(self._timetable, self.add_replica)
        for number, pool in enumerate(pools):
            for _ in range(pool.replicas):
                self.add_replica(number)
        self._bounded = any(pool.rules.queueing.max_waiting is not None for pool in pools)
        self._frontend = Frontend(pools, self._models)
        self._on_reach: list[Callback] = [lambda event: self._reach(event.value)]
        self._timeouts = self._client_timeouts()
        self.given_reach_s: FloatArray | None = None  # open loop: when requests reach an engine, where that is known

    def _client_timeouts(self) -> ClientTimeouts | None:
        """Return the client timeouts; None if no request has a timeout, priority or deadline."""
        limits_s = [opened.pool.rules.queueing.timeout_s for opened in self.pools]
        timeout_s = min([limit_s for limit_s in limits_s if limit_s is not None], default=inf)
        timeouts = ClientTimeouts(self.clock, self.requests, self.results, timeout_s, self.answered, self._cancel)
        if timeouts.some_give_up and any(opened.pool.role != "both" for opened in self.pools):
            raise InputError("timeouts are not simulated with prefill and decode pools yet", "timeout_s", "null")
        return timeouts if timeouts.needed else None

    def _open(self, pool: Pool) -> RunningPool:
        # Workloads do not say which max_tokens their clients declare: all declare the same, which is enough for each.
        output_tokens = [1] * self.requests.n if pool.role == "prefill" else self._output_tokens
        declared = max(pool.rules.max_output_tokens, max(output_tokens, default=0))
        check_adapters(self.requests.adapters, pool.rules.lora)
        keys, unit_blocks = content_keys(self.requests, pool.rules)
        scheduler = scheduler_class(pool.rules)
        if pool.role == "prefill" and not scheduler.hands_over:
            raise InputError("this engine hands over no request to a decode replica", pool.rules.policy, "vllm-v1")
        if pool.role == "decode" and not scheduler.takes_over:
            beside = " with LoRA adapters" if pool.rules.lora is not None else ""
            rule = "this scheduler takes over no request from a prefill replica yet"
            raise InputError(rule, pool.rules.policy + beside, "vllm-v1")
        context = EngineContext(
            clock=self.clock,
            rules=replace(pool.rules, unit_blocks=unit_blocks, max_output_tokens=declared),
            timer=pool.timer,
            results=self.results,
            output_tokens=output_tokens,
            on_finish=self._finished,
            hand_over=self._hand_over if pool.role == "prefill" else None,
            fast_forward=self.options.fast_forward,
            check=check_schedule if self.options.check_laws else None,
            event_log=self.options.journal,
        )
        return RunningPool.of(pool, context, self.requests, keys)

    def _lay_path(self, model: int) -> list[RoutingStage]:
        roles = {opened.pool.role for opened in self.pools if opened.pool.model == model}
        if ("prefill" in roles) != ("decode" in roles):
            raise InputError("prefill and decode pools come together", ", ".join(sorted(roles)), "prefill, decode")
        stages = range(2 if "decode" in roles else 1)
        return [RoutingStage(make_router(self.options.router, self._sight())) for _ in stages]

    def _sight(self) -> ReplicaView:
        sessions = self.requests.sessions
        return ReplicaView(self.options.router_staleness_s > 0.0, None if sessions is None else sessions.tolist())

    def _collect(self) -> None:
        for stage in {id(stage): stage for path in self._paths for stage in path}.values():
            stage.router.sight.collect(stage.replicas)

    # ---- for controllers

    def at(self, time_s: float, action: Callable[[], object]) -> None:
        """Call `action` at `time_s`, unless everything is served by then."""
        self._timetable.at(time_s, action)

    def every(self, period_s: float, action: Callable[[], object]) -> None:
        """Call `action` again and again, a period from now first, until everything is served."""
        self._timetable.every(period_s, action)

    def process(self, story: Process) -> None:
        """Let a process of a controller begin."""
        self._timetable.process(story)

    def after(self, wait_s: float) -> Event:
        """Return what such a process waits for until `wait_s` seconds from now; once all is served, for ever."""
        return self._timetable.after(wait_s)

    # ---- births and deaths

    def add_replica(self, pool: int) -> Replica:
        """Add a replica to a pool, ready to serve now."""
        made = self.pools[pool]
        replica = Replica(len(self.replicas), pool, made.context)
        replica.slot = self.slots[pool].take()
        self.replicas.append(replica)
        stage = self._stage_of(replica)
        stage.add(replica, made)
        for _ in range(len(self._stranded)):
            self._reach(self._stranded.popleft())
        for told in self.on_birth:
            told(replica)
        return replica

    def drain(self, replica: Replica) -> None:
        """Send a replica no further requests; it ends when it has served those it has."""
        stage = self._stage_of(replica)
        if replica in stage.replicas:
            stage.replicas.remove(replica)
            self._draining.add(replica)
            self._bury(replica)

    def fail(self, replica: Replica) -> None:
        """End a replica now; its requests restart from their prompts elsewhere and lose what they had streamed."""
        if replica.died_s <= self.clock.now:
            return
        stage = self._stage_of(replica)
        if replica in stage.replicas:
            stage.replicas.remove(replica)
        self._draining.discard(replica)
        self.slots[replica.pool].give(replica.slot)
        for request in replica.fail():
            if request.index not in self._stranded:  # it was leaving, with nowhere to go
                self._again(request.index)

    @property
    def done(self) -> bool:
        """Whether every request of the workload was served, rejected or given up."""
        return self.n_answered == self.requests.n

    def living(self, pool: int) -> list[Replica]:
        """Return the replicas of a pool that accept requests."""
        return [r for r in self.replicas if r.pool == pool and r.died_s > self.clock.now and r not in self._draining]

    def goes_to(self, index: int, pool: int) -> bool:
        """Return whether a request wants the model of a pool."""
        return (self._models[index] if self._models else 0) == self.pools[pool].pool.model

    def n_stranded(self, pool: int) -> int:
        """Return the number of requests that wait for a replica of the pool's model to be added."""
        return sum(self.goes_to(index, pool) for index in self._stranded)

    def drains(self, replica: Replica) -> bool:
        """Return whether a replica is draining: it is live and accepts no requests."""
        return replica in self._draining

    def _plea(self) -> str:
        return f"{len(self._stranded)} requests wait for a replica and none is born"

    def _bury(self, replica: Replica) -> None:
        if replica in self._draining and not replica.outstanding and not replica.incoming:
            self._draining.remove(replica)
            self.slots[replica.pool].give(replica.slot)
            replica.fail()

    # ---- the run

    def run(self) -> None:
        """Run the simulation until all requests are answered, or until the horizon."""
        for controller in self.options.controllers:
            controller.start(self)
        if self.options.router_staleness_s > 0.0:
            self.every(self.options.router_staleness_s, self._collect)
        if self._clients is None:
            self.clock.process(self._arrivals())
        else:
            self._clients.start()
        horizon_s = self.options.horizon_s
        self.clock.run(None if horizon_s is None else self.clock.at(horizon_s, LAST))
        if horizon_s is not None:
            self._stop(horizon_s)
        elif self.options.check_laws:
            self._check_end()

    def _arrivals(self) -> Process:
        """Deliver the requests of an open loop to the router at times that are known before the run."""
        self.results.arrival_s[:] = type(self.results.arrival_s)("d", self.requests.arrival_s.tolist())
        reach_s = self.reach_times_s() if self.given_reach_s is None else self.given_reach_s
        order = np.argsort(reach_s, kind="stable")
        times_s, clock = reach_s[order].tolist(), self.clock
        arrival = clock.at(times_s[0] if times_s else 0.0, ARRIVAL)
        for index, next_s in zip(order.tolist(), [*times_s[1:], None], strict=False):
            yield arrival
            if next_s is not None:  # scheduled before this one acts, to come first among those of its time
                clock.repeat(arrival, next_s, ARRIVAL, [])
            self._reach(index)

    def reach_times_s(self) -> FloatArray:
        """Return when each request of an open loop reaches an engine, in seconds. Shape (n,)."""
        return self._frontend.reach_times_s(self.requests.arrival_s.tolist(), self._input_tokens)

    def _send(self, index: int, now: float) -> None:
        """Send a request of a closed-loop client."""
        self.results.arrival_s[index] = now
        reach_s = self._frontend.admit(index, now, self._input_tokens[index])
        self.clock.at(reach_s, ARRIVAL, self._on_reach, index)

    def _reach(self, index: int) -> None:
        """Route or reject a tokenised request."""
        if self.options.journal is not None:
            self.options.journal.tokenised(index, self.clock.now)
        request = Request(index, self._input_tokens[index])
        if self._timeouts is not None and not self._timeouts.begin(request):
            return
        if self._adapters is not None:
            request.adapter = self._adapters[index]
        refusal, replica = self.route(request)
        self.results.status[index] = refusal or UNFINISHED
        if refusal:
            self.answered(index)
            return
        if replica is None:
            self._stranded.append(index)
        else:
            self.results.replica[index] = replica.index
            replica.receive(request)

    def route(self, request: Request) -> tuple[int, Replica | None]:
        """Return (rejection code or 0, chosen replica); the replica is None if no live replica accepts the request."""
        path = self._only or self._path(request.index)
        for stage in path:
            if stage.refusing and (refusal := stage.refusal(request.index)):
                return refusal, None
        replica = path[0].choose(request)
        return (QUEUE_FULL, None) if self._bounded and replica and replica.full else (0, replica)

    @property
    def blind(self) -> bool:
        """Whether routing depends on no replica signal and on no client timeout."""
        return self._timeouts is None and all(stage.router.blind for path in self._paths for stage in path)

    def _hand_over(self, source_index: int, request: Request) -> bool:
        """Transfer a computed prompt to a decode replica; return False if its single output token was the last."""
        index, now, source = request.index, self.clock.now, self.replicas[source_index]
        computes_again = self.options.hand_over.first_token == "decode"
        if self._output_tokens[index] == 1 and not computes_again:
            return False
        if computes_again:
            self.results.first_token_s[index] = nan
        follower = request.follower(with_first=not computes_again)
        follower.last_token_s = now
        target = self._path(index)[-1].choose(follower)
        if target is None:  # it begins again when a replica can take it
            self.results.started_s[index] = self.results.first_token_s[index] = nan
            self.retries.n += 1
            self._stranded.append(index)
            self.clock.at(now, ARRIVAL, [lambda _: self._release(source, request)])
            return True
        target.incoming += 1
        parcel = KvTransfer(request.input_tokens, source, target, self.results.started_s[index])
        self.clock.process(self._transfer(parcel, request, follower))
        return True

    def _transfer(self, parcel: KvTransfer, request: Request, follower: Request) -> Process:
        """Transfer the blocks of a prompt to the replica that decodes it as `follower`."""
        results, source, target = self.results, parcel.source, parcel.target
        place = len(results.handovers) + 4
        results.handovers.extend((request.index, source.index, target.index, self.clock.now, nan))
        yield self.transfer.begin(parcel)
        results.handovers[place] = now = self.clock.now
        target.incoming -= 1
        if source.died_s <= now:
            self._bury(target)
            return  # its blocks were lost on the way, and it began again
        if target.died_s > now:
            results.replica[request.index] = target.index
            if self.options.hand_over.first_token == "arrival":
                results.first_token_s[request.index] = now + target.rules.host.output_s
                follower.last_token_s = now
            target.receive(follower)
        else:
            self._again(request.index)
        self._release(source, request)

    def _release(self, source: Replica, request: Request) -> None:
        if source.died_s > self.clock.now:
            source.release_transferred(request)
            self._bury(source)

    def _again(self, index: int) -> None:
        """Restart a lost request from its prompt, immediately or according to the router's retry policy."""
        results = self.results
        results.started_s[index] = results.first_token_s[index] = nan
        wait_s = self.retries.wait_s(index)
        if wait_s is None:
            results.status[index] = FAILED
            self.answered(index)
        elif wait_s:
            self.clock.process(self._retry(index, wait_s))
        else:
            self._reach(index)

    def _retry(self, index: int, wait_s: float) -> Process:
        """Wait for the router's back-off and send a request again."""
        self.retries.n_waiting += 1
        yield self.clock.at(self.clock.now + wait_s, ARRIVAL)
        self.retries.n_waiting -= 1
        self._reach(index)

    def _path(self, index: int) -> list[RoutingStage]:
        """Return the routing stages of a request, according to its model.

        There is one stage, or a prefill and a decode stage unless the request stays with a decode replica.
        """
        path = self._paths[self._models[index] if self._models else 0]
        if len(path) > 1 and self.options.hand_over.stays(self._input_tokens[index], path[0].replicas):
            return path[-1:]
        return path

    def _stage_of(self, replica: Replica) -> RoutingStage:
        pool = self.pools[replica.pool].pool
        path = self._paths[pool.model]
        return path[-1 if pool.role == "decode" else 0]

    def _finished(self, replica_index: int, request: Request) -> None:
        """Account for a request that a replica has finished."""
        replica = self.replicas[replica_index]
        if self._draining:
            self._bury(replica)
        if not request.gone:
            self.n_answered += 1
            if self._clients is not None:
                self._clients.answered(request.index, replica.outlet.left_s + replica.rules.host.output_s)

    def answered(self, index: int) -> None:
        """Answer a request that is rejected or given up now; its client sends the next one."""
        self.n_answered += 1
        if self._clients is not None:
            self._clients.answered(index, self.clock.now + self._frontend.output_s(index))

    def _cancel(self, index: int) -> None:
        """Remove a request whose client has given up from the replica that holds it, if any."""
        number = self.results.replica[index]  # the last that had it
        if number >= 0 and self.replicas[number].died_s > self.clock.now:
            replica = self.replicas[number]
            held = next((request for request in replica.held_requests() if request.index == index), None)
            if held is not None:
                replica.cancel(held)

    # ---- the end

    def _stop(self, horizon_s: float) -> None:
        for replica in self.replicas:
            if replica.died_s > horizon_s:
                replica.stop(horizon_s)
        status, arrival_s = self.results.status, self.results.arrival_s
        for index, sent_s in enumerate(arrival_s):
            if status[index] == NOT_SENT and sent_s <= horizon_s:
                status[index] = UNFINISHED

    def _check_end(self) -> None:
        for replica in self.replicas:
            if replica.died_s > self.clock.now:
                check_drained(replica)
        wait = len(self._stranded) == self.requests.concurrency  # all clients, for a replica that is never born
        ends = {i for i, s in enumerate(self.results.status) if s == UNFINISHED or (s == NOT_SENT and not wait)}
        if open_ends := ends.difference(self._stranded):
            raise InvariantViolation(f"arrived != completed + rejected: request {min(open_ends)} was never answered")
