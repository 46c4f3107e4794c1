"""One engine: its cache, its queue, and its batches in flight (one, or one for each pipeline stage)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from simulator.cache.offload import HostCache
from simulator.cache.retention import RetainingKvCache
from simulator.core.clock import ARRIVAL, Process
from simulator.core.request import Request
from simulator.core.step_log import StepLog
from simulator.core.step_timer import StepTimer
from simulator.engine.api_server import TokenStream
from simulator.engine.context import EngineContext
from simulator.engine.step_loop import StepLoop
from simulator.schedulers.base import Scheduler
from simulator.schedulers.registry import make_scheduler

#: How often a prompt may be computed before its next token; a request that is preempted repeatedly recomputes it often.
#: A judgement: only a run without progress exceeds it.
MOST_RECOMPUTED: Final = 8


class Replica:
    """An engine as routers, controllers and the cluster use it.

    The stages of a pipeline run different batches concurrently. Each request belongs to one of these batches, whose
    step takes the time of the whole pipeline. A stage takes the share of the step that it has of the layers, and the
    last stage also the output projection and sampling. The next batch enters the first stage when the slowest stage has
    had time for the batch before it, so that batches of equal work never wait between stages.
    """

    def __init__(self, index: int, pool: int, context: EngineContext) -> None:
        self.index = index
        self.pool = pool  # index of its pool in the run
        self.created_s = context.clock.now
        self.removed_s = inf
        self.slot = 0  # its slot in the pool, which determines its accelerators
        self.outstanding = 0  # requests sent here and not finished
        self.outstanding_tokens = 0  # prompt tokens of these requests
        self.incoming = 0  # requests whose blocks are being transferred to this replica
        self.n_leaving = 0  # outstanding requests that are being transferred away and still hold seat and blocks
        self.fruitless = 0  # tokens computed since the last output token
        self.rules, self._most_waiting = context.rules, context.rules.queueing.max_waiting
        self.outlet = TokenStream(context.rules.host, context.rules.api_servers)
        self.scheduler: Scheduler = make_scheduler(context.rules)  # of the first loop; all loops share queue and cache
        rules, offload = context.rules, context.rules.offload
        if isinstance(self.scheduler.kv, RetainingKvCache):
            self.scheduler.kv.clock = context.clock
        if offload is not None:
            self.scheduler.host = HostCache(offload, self.scheduler.kv, context.clock, context.kv_pool)
        further = [make_scheduler(rules, self.scheduler) for _ in range(1, rules.pipeline_stages)]
        schedulers = (self.scheduler, *further)
        self._clock, self._event_log = context.clock, context.event_log
        self._on_finish, self._hand_over = context.on_finish, context.hand_over
        self.step_loops = tuple(StepLoop(self, context, each, place) for place, each in enumerate(schedulers))
        self._only = self.step_loops[0] if not further else None
        self._entry_free_s = 0.0  # when the first stage of a pipeline accepts the next batch
        layers = rules.stage_layers or (1,) * rules.pipeline_stages
        self._widest_share, self._last_share = max(layers) / sum(layers), layers[-1] / sum(layers)

    @property
    def logs(self) -> tuple[StepLog, ...]:
        """Return one step log for each batch in flight."""
        return tuple(loop.log for loop in self.step_loops)

    @property
    def schedulers(self) -> tuple[Scheduler, ...]:
        """Return one scheduler for each batch in flight."""
        return tuple(loop.scheduler for loop in self.step_loops)

    @property
    def now(self) -> float:
        """Return the simulated time in seconds since the run began."""
        return self._clock.now

    @property
    def timer(self) -> StepTimer:
        """Return the cost model that currently determines the step times."""
        return self.step_loops[0].timer

    @property
    def n_waiting(self) -> int:
        """Return the number of waiting requests, which have no seat."""
        return self.scheduler.n_waiting

    @property
    def full(self) -> bool:
        """Return whether the queue has reached its limit (max_waiting)."""
        return self._most_waiting is not None and self.n_waiting >= self._most_waiting

    @property
    def kv_used_fraction(self) -> float:
        """Return the fraction of the KV cache that requests hold now."""
        held, total = self.scheduler.cache_blocks
        return (held + sum([loop.blocks_ahead for loop in self.step_loops])) / max(1, total)

    def finish(self, request: Request) -> None:
        """Account for a request that is finished on this replica and holds no resources."""
        self.outstanding -= 1
        self.outstanding_tokens -= request.input_tokens
        self._on_finish(self.index, request)

    def hand_over(self, request: Request) -> bool:
        """Return whether a request, whose last output here is processed, continues on another replica.

        If so, it keeps its blocks until `release_transferred`.
        """
        leaves = self._hand_over is not None and self._hand_over(self.index, request)
        self.n_leaving += leaves
        if leaves:
            self.fruitless = 0  # an encoder replica outputs no tokens
        return leaves

    def receive(self, request: Request) -> None:
        """Accept a request that reaches the engine core now."""
        self.outstanding += 1
        self.outstanding_tokens += request.input_tokens
        request.reached_s = self._clock.now
        self.scheduler.add(request)
        if self._event_log is not None:
            self._event_log.reached(self, request)
        if self._only is not None:
            self._only.on_arrival()
        else:
            self.wake_idle()

    def cancel(self, request: Request) -> None:
        """Cancel a request whose client has given up."""
        request.gone = True
        holders = [loop for loop in self.step_loops if request in loop.scheduler.running_requests()]
        (holders or self.step_loops)[0].cancel(request)

    def fetch(self, requests: Sequence[Request]) -> None:
        """Start to fetch the blocks of these requests from the host now."""
        host = self.scheduler.host
        assert host is not None
        for request in requests:
            end_s = host.fetch(request)
            if self._event_log is not None:
                self._event_log.fetched(self, request, end_s)
            self._clock.process(self._fetch(host, request, end_s))

    def _fetch(self, host: HostCache, request: Request, end_s: float) -> Process:
        """Wait until end_s for the blocks of a request to arrive from the host, then make it schedulable."""
        yield self._clock.at(end_s, ARRIVAL)
        if self.removed_s > self._clock.now:
            host.finish_fetch(request)
            self.scheduler.resume_fetched(request)
            self.step_loops[0].on_arrival()

    def wake_idle(self) -> None:
        """Wake an idle loop if there may be something to do for it."""
        if self.scheduler.feeds_idle_batches:
            for loop in self.step_loops:
                if loop.idle:
                    loop.wake()
                    return

    def release_transferred(self, request: Request) -> None:
        """Free the seat and blocks of a request that has arrived at its decode replica."""
        self.n_leaving -= 1
        self.outstanding -= 1
        self.outstanding_tokens -= request.input_tokens
        holder = self._only or next(
            loop
            for loop in self.step_loops
            if request in loop.scheduler.running_requests() + loop.scheduler.holding_requests()
        )
        holder.scheduler.release(request)
        if self._event_log is not None:
            self._event_log.sample(self)
        if self.scheduler.n_waiting:
            holder.cut()
            self.wake_idle()

    def run_by(self, timer: StepTimer) -> None:
        """Use another cost model from the next step on, for example because an accelerator is slow."""
        for loop in self.step_loops:
            loop.timer = timer
            loop.cut()

    def enter_pipeline(self, now: float, cycle_s: float, output_s: float) -> float:
        """Return when a batch enters the first stage.

        Args:
            now: The time at which the batch is ready.
            cycle_s: Its seconds in the whole pipeline.
            output_s: The part of these seconds that follows the layers, in the last stage.
        """
        start_s = max(now, self._entry_free_s)
        layers_s = cycle_s - output_s
        slowest_s = max(self._widest_share * layers_s, self._last_share * layers_s + output_s)
        self._entry_free_s = start_s + slowest_s
        return start_s

    def check_progress(self) -> None:
        """Check that a waiting request can still be scheduled.

        Raises:
            RuntimeError: If a request is waiting and can never be scheduled; the message names it.
        """
        if self.scheduler.fetching:
            return
        if self.scheduler.n_waiting and not self.n_leaving and all(loop.idle for loop in self.step_loops):
            stuck = (self._holding() or self.scheduler.waiting_requests())[0]
            raise RuntimeError(f"no progress: request {stuck.index} can never be scheduled on replica {self.index}")

    def check_growth(self, tokens: int) -> None:
        """Account for a step that computed `tokens` tokens without output, and check that the engine makes progress.

        Raises:
            RuntimeError: If all held requests could have been computed several times (MOST_RECOMPUTED) since the last
                output token; the message names the first request.
        """
        self.fruitless += tokens + 1
        if self.fruitless > MOST_RECOMPUTED * self.rules.max_model_len:
            held = self.held_requests()
            if self.fruitless > MOST_RECOMPUTED * sum([request.known_tokens + 1 for request in held]):
                stuck = f"request {held[0].index}" if held else "no request"
                raise RuntimeError(f"no progress: {stuck} is recomputed repeatedly on replica {self.index}")

    def held_requests(self) -> list[Request]:
        """Return the running requests, loop by loop in order of service, followed by the waiting requests."""
        running = [request for loop in self.step_loops for request in loop.scheduler.running_requests()]
        return running + self._holding() + self.scheduler.waiting_requests()

    def _holding(self) -> list[Request]:
        """Return the waiting requests of all loops that still hold blocks."""
        return [request for loop in self.step_loops for request in loop.scheduler.holding_requests()]

    def fail(self) -> list[Request]:
        """End the replica now: log its finished steps and return the requests that it held."""
        self.removed_s = self._clock.now
        self.stop(self.removed_s)
        for loop in self.step_loops:
            loop.discard()
        self.outstanding = self.outstanding_tokens = self.n_leaving = 0
        return [request for request in self.held_requests() if not request.gone]

    def stop(self, horizon_s: float) -> None:
        """Stop at the horizon: log the finished steps and record the counts of unfinished requests."""
        for loop in self.step_loops:
            loop.stop(horizon_s)
