"""The cluster of a run: all replicas behind one router and one set of clients, with pools, stages and hand-overs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan, nan
from typing import Any, Protocol

from catalogs.arrays import FloatArray
from catalogs.deployments.faults import Retries
from catalogs.deployments.routing import RouterOptions
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.cache.lora_slots import check_adapters
from simulator.cluster.clients import ClientTimeouts, ClosedLoopClients, Frontend, RetryTracker
from simulator.cluster.compiled import Pool, kv_pools
from simulator.cluster.disaggregation import DisaggregationPolicy
from simulator.cluster.kv_transfer import InstantTransfer, KvTransfer, LinkTraffic, TransferLinks
from simulator.cluster.open_loop import serve_open_loop
from simulator.cluster.plain_runs import is_plain
from simulator.cluster.provisioning import PendingReplicas, ReplicaSlots
from simulator.cluster.request_paths import RequestPaths
from simulator.cluster.routers.base import ReplicaView
from simulator.cluster.routers.registry import make_router
from simulator.cluster.routing_stage import RoutingStage, RunningPool, content_keys, items_alone, of_items
from simulator.cluster.session_clients import SessionClients
from simulator.core.clock import ARRIVAL, LAST, Callback, Clock, Process, Timetable
from simulator.core.invariants import InvariantViolation
from simulator.core.outcomes import FAILED, NOT_SENT, QUEUE_FULL, UNFINISHED, RequestOutcomes
from simulator.core.request import Request
from simulator.engine.context import EngineContext
from simulator.engine.event_log import EventLog
from simulator.engine.fast_path import FastPath
from simulator.engine.invariants import check_drained, check_schedule
from simulator.engine.replica import Replica
from simulator.schedulers.registry import check_role


class Controller(Protocol):
    """A controller that changes the replicas during a run, such as an autoscaler; started once when the run begins."""

    def start(self, cluster: Cluster) -> None:
        """Start processes that wait (`cluster.timetable`) and act (`add_replica`, `drain`, `fail`)."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run; fast_*, check_invariants, processes and spread do not change its results."""

    fast_forward: bool = True
    fast_path: bool = True  # plain runs use simulator/engine/fast_path.py
    router: str | RouterOptions = "round_robin"
    router_staleness_s: float = 0.0  # between two collections of replica signals; 0: routers see current signals
    retries: Retries | None = None  # of requests that were lost; None: immediately and without limit
    horizon_s: float | None = None  # the time at which the run stops, even if requests are unfinished
    check_invariants: bool = False  # check every invariant after every schedule (slow)
    transfer: TransferLinks | None = None  # None: transfers take no time
    hand_over: DisaggregationPolicy = field(default_factory=DisaggregationPolicy)  # between prefill and decode pools
    controllers: tuple[Controller, ...] = ()
    event_log: EventLog | None = None  # the log to which the run appends its events
    processes: int = 1  # number of processes that share independent replicas (simulator/cluster/parallel.py)
    # Computes a function, which can be pickled, for 0 to n - 1 on other machines; None: on this one
    spread: Callable[[Callable[[int], Any], int], Sequence[Any]] | None = None


class Cluster:
    """One simulated run: create it, call `run` once, and read `results` and the logs of the replicas.

    Controllers wait with `timetable`, observe the attributes, and change the replicas with `add_replica`, `drain` and
    `fail`. `orders` holds the replicas that are being provisioned, and `slots` the accelerators of each pool.
    """

    def __init__(self, pools: Sequence[Pool], requests: RequestSet, options: RunOptions) -> None:
        self.requests, self.options = requests, options
        self.results, self.clock = RequestOutcomes(requests.n), Clock()
        self._input_tokens: list[int] = requests.input_tokens.tolist()
        self._output_tokens: list[int] = requests.output_tokens.tolist()
        self._adapters = None if requests.adapters is None else requests.adapters.tolist()
        self._models = None if requests.requested_models is None else requests.requested_models.tolist()
        self.transfer: InstantTransfer | LinkTraffic = InstantTransfer(self.clock)
        if options.transfer is not None:
            self.transfer = options.transfer.start(self.clock, options.check_invariants)
        self._kv_pools = kv_pools(pools)
        self.pools = [self._open(number, pool) for number, pool in enumerate(pools)]
        self.replicas: list[Replica] = []  # in order of creation, including those that have ended
        self.on_new_replica: list[Callable[[Replica], None]] = []  # called with every new replica
        self.slots = [ReplicaSlots() for _ in pools]
        self._paths = RequestPaths(self.pools, self._models, self._input_tokens, options.hand_over, self._new_stage)
        self._draining: set[Replica] = set()
        self._stranded: deque[int] = deque()  # requests that no live replica could accept
        self.retries = RetryTracker(options.retries)
        self.n_answered = 0  # requests that were served, rejected or given up
        self._clients = self._open_clients()
        self.timetable = Timetable(self.clock, lambda: self.n_answered == requests.n, self._stranded_text)
        self.orders = PendingReplicas(self.timetable, self.add_replica)
        for number, pool in enumerate(pools):
            for _ in range(pool.replicas):
                self.add_replica(number)
        self._bounded = any(pool.rules.queueing.max_waiting is not None for pool in pools)
        self._frontend = Frontend(pools, self._models, self.requests.random_prompts)
        self._on_arrival: list[Callback] = [lambda event: self._admit(event.value)]
        self.known_arrivals_s: FloatArray | None = None  # of an open loop, if known before the run; shape (n,)
        timeout_s = min((t for p in pools if (t := p.rules.queueing.timeout_s) is not None), default=inf)
        timeouts = ClientTimeouts(self.clock, requests, self.results, timeout_s, self.answered, self._cancel)
        if timeouts.some_give_up and any(pool.role != "both" for pool in pools):
            raise InputError("timeouts are not simulated with prefill and decode pools yet", "timeout_s", "null")
        self._timeouts = timeouts if timeouts.needed else None

    def _open_clients(self) -> ClosedLoopClients | SessionClients | None:
        """Return the clients that send requests according to the answers; None if all arrival times are known."""
        if self.requests.graph is not None:
            return SessionClients(self.clock, self.requests, self._send)
        return None if self.requests.concurrency is None else ClosedLoopClients(self.clock, self.requests, self._send)

    def _open(self, number: int, pool: Pool) -> RunningPool:
        # Workloads do not contain the max_tokens that clients declare: all declare the longest output.
        # Encoder replicas answer without tokens; here each of their requests ends with one that no client sees.
        output_tokens = [1] * self.requests.n if pool.role in ("prefill", "encode") else self._output_tokens
        declared = max(pool.rules.max_output_tokens, max(output_tokens, default=0))
        check_adapters(self.requests.adapters, pool.rules.lora)
        keys, unit_blocks = content_keys(self.requests, pool.rules)
        check_role(pool.rules, pool.role)
        context = EngineContext(
            clock=self.clock,
            rules=replace(pool.rules, unit_blocks=unit_blocks, max_output_tokens=declared),
            timer=pool.timer,
            results=self.results,
            output_tokens=output_tokens,
            on_finish=self._finished,
            hand_over={"prefill": self._hand_over, "encode": self._send_embeddings}.get(pool.role),
            fast_forward=self.options.fast_forward,
            check=check_schedule if self.options.check_invariants else None,
            event_log=self.options.event_log,
            shared_links=self.transfer.shared_links(number),
            kv_pool=self._kv_pools.get(pool.model) if pool.rules.offload and pool.rules.offload.shared else None,
        )
        return RunningPool.of(
            pool, context, items_alone(self.requests) if pool.role == "encode" else self.requests, keys
        )

    def _new_stage(self) -> RoutingStage:
        stale = self.options.router_staleness_s > 0.0
        sessions = None if self.requests.sessions is None else self.requests.sessions.tolist()
        return RoutingStage(make_router(self.options.router, ReplicaView(stale, sessions)))

    def _collect_signals(self) -> None:
        for stage in self._paths.stages:
            stage.router.view.collect(stage.replicas)

    # ---- the replicas

    def add_replica(self, pool: int) -> Replica:
        """Add a replica to a pool, ready to serve now."""
        replica = Replica(len(self.replicas), pool, self.pools[pool].context)
        replica.slot = self.slots[pool].take()
        self.replicas.append(replica)
        self._paths.stage_of(replica).add(replica, self.pools[pool])
        for _ in range(len(self._stranded)):
            self._admit(self._stranded.popleft())
        for call in self.on_new_replica:
            call(replica)
        return replica

    def drain(self, replica: Replica) -> None:
        """Send a replica no further requests; it ends when it has served those it has."""
        stage = self._paths.stage_of(replica)
        if replica in stage.replicas:
            stage.replicas.remove(replica)
            self._draining.add(replica)
            self._end_if_drained(replica)

    def fail(self, replica: Replica) -> None:
        """End a replica now; its requests restart from their prompts elsewhere and lose what they had streamed."""
        if replica.removed_s <= self.clock.now:
            return
        stage = self._paths.stage_of(replica)
        if replica in stage.replicas:
            stage.replicas.remove(replica)
        self._draining.discard(replica)
        self.slots[replica.pool].give(replica.slot)
        for request in replica.fail():
            if request.index not in self._stranded:  # it waits for a decode replica already
                self._restart(request.index)

    def live_replicas(self, pool: int) -> list[Replica]:
        """Return the replicas of a pool that accept requests."""
        return [r for r in self.replicas if r.pool == pool and r.removed_s > self.clock.now and r not in self._draining]

    def wants_model_of(self, index: int, pool: int) -> bool:
        """Return whether a request wants the model of a pool."""
        return self._paths.model(index) == self.pools[pool].pool.model

    def n_stranded(self, pool: int) -> int:
        """Return the number of requests that wait for a replica of the pool's model to be added."""
        return sum(self.wants_model_of(index, pool) for index in self._stranded)

    def is_draining(self, replica: Replica) -> bool:
        """Return whether a replica is draining: it is live and accepts no requests."""
        return replica in self._draining

    def _stranded_text(self) -> str:
        return f"{len(self._stranded)} requests wait for a replica, and no replica is created"

    def _end_if_drained(self, replica: Replica) -> None:
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
            self.timetable.every(self.options.router_staleness_s, self._collect_signals)
        begin = self._serve_open_loop if self._clients is None else self._clients.start
        begin()
        horizon_s = self.options.horizon_s
        self.clock.run(None if horizon_s is None else self.clock.at(horizon_s, LAST))
        if horizon_s is None:
            if self.options.check_invariants:
                self._check_end()
            return
        for replica in self.replicas:
            if replica.removed_s > horizon_s:
                replica.stop(horizon_s)
        for index, sent_s in enumerate(self.results.arrival_s):
            if self.results.status[index] == NOT_SENT and sent_s <= horizon_s:
                self.results.status[index] = UNFINISHED

    def _serve_open_loop(self) -> None:
        """Schedule the arrivals of an open loop, or serve it at once where it is plain."""
        self.results.arrival_s[:] = type(self.results.arrival_s)("d", self.requests.arrival_s.tolist())
        arrival_s = self.router_arrivals_s() if self.known_arrivals_s is None else self.known_arrivals_s
        plain = None
        if len(self.replicas) == len(self.pools) == 1 and self.is_plain and not self.on_new_replica:
            plain = FastPath(self.replicas[0], self.pools[0].context, self._input_tokens, self.pools[0].refusals)
        serve_open_loop(self.clock, arrival_s, self._admit, plain)
        self.n_answered = plain.n_answered if plain else 0

    def router_arrivals_s(self) -> FloatArray:
        """Return when each request of an open loop arrives at the router, in seconds. Shape (n,)."""
        return self._frontend.router_arrivals_s(self.requests.arrival_s.tolist(), self._input_tokens)

    def _send(self, index: int, now: float) -> None:
        """Send a request of a closed-loop client."""
        self.results.arrival_s[index] = now
        arrival_s = self._frontend.admit(index, now, self._input_tokens[index])
        self.clock.at(arrival_s, ARRIVAL, self._on_arrival, index)

    def _admit(self, index: int) -> None:
        """Route or reject a tokenised request."""
        if self.options.event_log is not None:
            self.options.event_log.tokenised(index, self.clock.now)
        routed_s = self.results.routed_s
        if isnan(routed_s[index]):
            routed_s[index] = self.clock.now
        request = self._request(index)
        if self._timeouts is not None and not self._timeouts.begin(request):
            return
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

    def _request(self, index: int) -> Request:
        """Return a request as the first replica that it passes gets it: an encoder replica gets its items alone."""
        request = self._whole_request(index)
        return of_items(request) if request.media and self._paths.encoders(index) is not None else request

    def _whole_request(self, index: int) -> Request:
        """Return a request with its prompt, its items and its adapter."""
        request = Request(index, self._input_tokens[index])
        if self._adapters is not None:
            request.adapter = self._adapters[index]
        if self.requests.media is not None:
            request.media = self.requests.media.of_request(index)
        return request

    def route(self, request: Request) -> tuple[int, Replica | None]:
        """Return (rejection code or 0, chosen replica); the replica is None if no live replica accepts the request."""
        path = self._paths.whole(request)
        for stage in path:
            if stage.refusing and (refusal := stage.refusal(request.index)):
                return refusal, None
        replica = path[0].choose(request)
        return (QUEUE_FULL, None) if self._bounded and replica and replica.full else (0, replica)

    @property
    def routes_ahead(self) -> bool:
        """Return whether routing depends on no replica signal and on no client timeout, so that it is known ahead."""
        return self._timeouts is None and all(stage.router.ignores_replicas for stage in self._paths.stages)

    @property
    def is_plain(self) -> bool:
        """Return whether the fast path can serve an open loop on each replica: no replica affects another one."""
        return self.routes_ahead and all(is_plain(p.context, p.keys, self.requests, self.options) for p in self.pools)

    def _hand_over(self, source_index: int, request: Request) -> bool:
        """Transfer a computed prompt to a decode replica; return False if its single output token was the last."""
        index, now, source = request.index, self.clock.now, self.replicas[source_index]
        shown = self.options.hand_over.first_token
        computes_again = shown == "decode"
        if self._output_tokens[index] == 1 and not computes_again:
            return False
        if shown != "prefill":
            self.results.first_token_s[index] = nan
        follower = request.follower(with_first=not computes_again)
        follower.last_token_s = now
        target = self._paths.after_encoders(index)[-1].choose(follower)
        if target is None:  # the request restarts when a replica can accept it
            self.results.started_s[index] = self.results.first_token_s[index] = nan
            self.retries.n += 1
            self._stranded.append(index)
            self.clock.at(now, ARRIVAL, [lambda _: self._release(source, request)])
            return True
        target.incoming += 1
        transfer = KvTransfer(request.input_tokens, source, target, self.results.started_s[index])
        self.clock.process(self._transfer(transfer, request, follower))
        return True

    def _transfer(self, transfer: KvTransfer, request: Request, follower: Request) -> Process:
        """Transfer the blocks of a prompt to the replica that decodes it as `follower`."""
        results, source, target = self.results, transfer.source, transfer.target
        place = len(results.handovers) + 4
        results.handovers.extend((request.index, source.index, target.index, self.clock.now, nan))
        yield self.transfer.begin(transfer)
        results.handovers[place] = now = self.clock.now
        target.incoming -= 1
        if source.removed_s <= now:
            self._end_if_drained(target)
            return  # the blocks were lost with their source, and the request has restarted
        if target.removed_s > now:
            results.replica[request.index] = target.index
            follower.announces = self.options.hand_over.first_token == "admission"
            target.receive(follower)
        else:
            self._restart(request.index)
        self._release(source, request)

    def _send_embeddings(self, source_index: int, request: Request) -> bool:
        """Send the embeddings of a request's items to a replica that computes its prompt; return True."""
        index, now, results = request.index, self.clock.now, self.results
        source, whole = self.replicas[source_index], self._whole_request(index)
        began_s = results.started_s[index]
        # No client sees the token that ends the request here.
        results.started_s[index] = results.prefilled_s[index] = results.first_token_s[index] = nan
        target = self._paths.after_encoders(index)[0].choose(whole)
        embeddings = sum(item.layout.embeddings for item in whole.media)
        number = -1 if target is None else target.index
        results.encodings.extend((index, source_index, number, request.reached_s, began_s, now, nan, embeddings))
        if target is None:  # the request restarts when a replica can accept it
            self.retries.n += 1
            self._stranded.append(index)
            self.clock.at(now, ARRIVAL, [lambda _: self._release(source, request)])
            return True
        target.incoming += 1
        place = len(results.encodings) - 2
        self.clock.process(self._carry(KvTransfer(embeddings, source, target, began_s), request, whole, place))
        return True

    def _carry(self, transfer: KvTransfer, request: Request, whole: Request, place: int) -> Process:
        """Carry the embeddings of `request` to the replica that computes its prompt as `whole`."""
        source, target = transfer.source, transfer.target
        yield self.transfer.begin(transfer)
        now = self.clock.now
        target.incoming -= 1
        if source.removed_s <= now:
            self._end_if_drained(target)
            return  # the embeddings were lost with their source, and the request has restarted
        self.results.encodings[place] = now
        if target.removed_s <= now:
            self._restart(request.index)
        elif self._bounded and target.full:
            self.results.status[request.index] = QUEUE_FULL
            self.answered(request.index)
            self._end_if_drained(target)
        else:
            self.results.replica[request.index] = target.index
            target.receive(whole)
        self._release(source, request)

    def _release(self, source: Replica, request: Request) -> None:
        if source.removed_s > self.clock.now:
            source.release_transferred(request)
            self._end_if_drained(source)

    def _restart(self, index: int) -> None:
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
            self._admit(index)

    def _retry(self, index: int, wait_s: float) -> Process:
        """Wait for the router's back-off and send a request again."""
        self.retries.n_waiting += 1
        yield self.clock.at(self.clock.now + wait_s, ARRIVAL)
        self.retries.n_waiting -= 1
        self._admit(index)

    def _finished(self, replica_index: int, request: Request) -> None:
        """Account for a request that a replica has finished."""
        replica = self.replicas[replica_index]
        if self._draining:
            self._end_if_drained(replica)
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
        number = self.results.replica[index]  # the last replica that held it
        if number >= 0 and self.replicas[number].removed_s > self.clock.now:
            for request in [held for held in self.replicas[number].held_requests() if held.index == index]:
                self.replicas[number].cancel(request)

    def _check_end(self) -> None:
        for replica in self.replicas:
            if replica.removed_s > self.clock.now:
                check_drained(replica)
        # Clients may wait for a replica that never comes.
        blocked = bool(self._stranded) and (
            self.requests.graph is not None or len(self._stranded) == self.requests.concurrency
        )
        status = enumerate(self.results.status)
        unanswered = {i for i, s in status if s == UNFINISHED or (s == NOT_SENT and not blocked)} - {*self._stranded}
        if unanswered:
            raise InvariantViolation(f"arrived != completed + rejected: request {min(unanswered)} was never answered")
