"""One engine: its cache, its queue, and the batches it has in flight: one, or one for each pipeline stage."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from simulator.cache.offload import HostCache
from simulator.core.clock import ARRIVAL, Process
from simulator.core.request import Request
from simulator.core.step_log import StepLog
from simulator.core.step_timer import StepTimer
from simulator.engine.api_server import TokenStream
from simulator.engine.context import EngineContext
from simulator.engine.step_loop import StepLoop
from simulator.schedulers.base import Scheduler
from simulator.schedulers.registry import make_scheduler

#: Times a prompt may be computed before its next token comes out; one that keeps being preempted comes back often.
MOST_RECOMPUTED: Final = 8


class Replica:
    """What a router, a controller and the cluster see of an engine.

    The stages of a pipeline run different batches at once. Each request belongs to one of them, which takes the whole
    pipeline's time for a step; the next batch enters the first stage when that has done its even share of the work.
    """

    def __init__(self, index: int, pool: int, context: EngineContext) -> None:
        self.index = index
        self.pool = pool  # its place among the run's pools
        self.born_s = context.clock.now
        self.died_s = inf
        self.slot = 0  # its place in the pool: which accelerators it uses
        self.outstanding = 0  # requests sent here and not finished
        self.outstanding_tokens = 0  # of their prompts
        self.incoming = 0  # requests whose blocks are on their way here
        self.n_leaving = 0  # of the outstanding, handed over and not gone yet: they keep seat and blocks
        self.fruitless = 0  # tokens computed since the last one came out
        self.rules, self._most_waiting = context.rules, context.rules.queueing.max_waiting
        self.outlet = TokenStream(context.rules.host, context.rules.attention_ranks)
        self.scheduler: Scheduler = make_scheduler(context.rules)  # of the first loop; all share its queue and cache
        rules, offload = context.rules, context.rules.offload
        if offload is not None:
            self.scheduler.host = HostCache(offload, rules.unit_blocks, rules.block_size, context.clock)
        further = [make_scheduler(context.rules, self.scheduler) for _ in range(1, context.rules.pipeline_stages)]
        self._clock, self._journal = context.clock, context.journal
        self._on_finish, self._hand_over = context.on_finish, context.hand_over
        self.step_loops = tuple(
            StepLoop(self, context, scheduler, place) for place, scheduler in enumerate((self.scheduler, *further))
        )
        self._only = self.step_loops[0] if not further else None
        self._entry_free_s = 0.0  # when the first stage of a pipeline takes the next batch

    @property
    def logs(self) -> tuple[StepLog, ...]:
        """One per batch in flight."""
        return tuple(loop.log for loop in self.step_loops)

    @property
    def schedulers(self) -> tuple[Scheduler, ...]:
        """One per batch in flight."""
        return tuple(loop.scheduler for loop in self.step_loops)

    @property
    def now(self) -> float:
        return self._clock.now

    @property
    def timer(self) -> StepTimer:
        return self.step_loops[0].timer

    @property
    def n_waiting(self) -> int:
        """Requests without a seat."""
        return self.scheduler.n_waiting

    @property
    def full(self) -> bool:
        """No further request may wait."""
        return self._most_waiting is not None and self.n_waiting >= self._most_waiting

    @property
    def kv_used_fraction(self) -> float:
        """Of the KV cache, held by requests now."""
        kv = self.scheduler.kv
        return (kv.held + sum(loop.blocks_ahead for loop in self.step_loops)) / max(1, kv.total)

    def finish(self, request: Request) -> None:
        """A request is done here, and holds nothing any more."""
        self.outstanding -= 1
        self.outstanding_tokens -= request.input_tokens
        self._on_finish(self.index, request)

    def hand_over(self, request: Request) -> bool:
        """The last output of a request here is processed: return whether the request goes on at another replica. It
        then keeps its blocks until `release_transferred`."""
        leaves = self._hand_over is not None and self._hand_over(self.index, request)
        self.n_leaving += leaves
        return leaves

    def receive(self, request: Request) -> None:
        """A request reaches the engine core now."""
        self.outstanding += 1
        self.outstanding_tokens += request.input_tokens
        request.reached_s = self._clock.now
        self.scheduler.add(request)
        if self._journal is not None:
            self._journal.reached(self, request)
        if self._only is not None:
            self._only.on_arrival()
        else:
            self.wake_idle()

    def cancel(self, request: Request) -> None:
        """The client of a request is gone."""
        request.gone = True
        holders = [loop for loop in self.step_loops if request in loop.scheduler.running_requests()]
        (holders or self.step_loops)[0].cancel(request)

    def fetch(self, requests: Sequence[Request]) -> None:
        """Blocks of these start to come from the host, now."""
        host = self.scheduler.host
        assert host is not None
        for request in requests:
            end_s = host.fetch(request)
            if self._journal is not None:
                self._journal.fetched(self, request, end_s)
            self._clock.process(self._fetch(host, request, end_s))

    def _fetch(self, host: HostCache, request: Request, end_s: float) -> Process:
        """The blocks of a request are on their way from the host until end_s; then it can be scheduled."""
        yield self._clock.at(end_s, ARRIVAL)
        if self.died_s > self._clock.now:
            host.landed(request)
            self.scheduler.landed(request)
            self.step_loops[0].on_arrival()

    def wake_idle(self) -> None:
        """Wake an idle loop, if a request waits."""
        if self.scheduler.n_waiting:
            for loop in self.step_loops:
                if loop.idle:
                    loop.wake()
                    return

    def release_transferred(self, request: Request) -> None:
        """A request that was handed over has arrived there: its seat and blocks are free here."""
        self.n_leaving -= 1
        self.outstanding -= 1
        self.outstanding_tokens -= request.input_tokens
        holder = self._only or next(
            loop
            for loop in self.step_loops
            if request in (*loop.scheduler.running_requests(), *loop.scheduler.holding_requests())
        )
        holder.scheduler.release(request)
        if self._journal is not None:
            self._journal.sample(self)
        if self.scheduler.n_waiting:
            holder.cut()
            self.wake_idle()

    def run_by(self, timer: StepTimer) -> None:
        """Steps take other times from the next one on (a slow accelerator)."""
        for loop in self.step_loops:
            loop.timer = timer
            loop.cut()

    def enter_pipeline(self, now: float, cycle_s: float) -> float:
        """When a batch that takes the pipeline so long enters its first stage."""
        start_s = max(now, self._entry_free_s)
        self._entry_free_s = start_s + cycle_s / len(self.step_loops)
        return start_s

    def check_progress(self) -> None:
        """Raises RuntimeError, naming the request, where one waits and nothing will ever happen."""
        if self.scheduler.n_fetching:
            return
        if self.scheduler.n_waiting and not self.n_leaving and all(loop.idle for loop in self.step_loops):
            stuck = (self._holding() or self.scheduler.waiting_requests())[0]
            raise RuntimeError(f"no progress: request {stuck.index} can never be scheduled on replica {self.index}")

    def check_growth(self, tokens: int) -> None:
        """A step computed so many and none came out. Raises RuntimeError, naming the request, where all that is here
        could have been computed several times since the last one did: steps go on and lead nowhere."""
        self.fruitless += tokens + 1
        if self.fruitless > MOST_RECOMPUTED * self.rules.max_model_len:
            held = self.held_requests()
            if self.fruitless > MOST_RECOMPUTED * sum(request.known_tokens + 1 for request in held):
                stuck = f"request {held[0].index}" if held else "nobody"
                raise RuntimeError(f"no progress: {stuck} is computed again and again on replica {self.index}")

    def held_requests(self) -> list[Request]:
        """Those with a seat, loop by loop in order of service, then those that wait."""
        running = [request for loop in self.step_loops for request in loop.scheduler.running_requests()]
        return running + self._holding() + self.scheduler.waiting_requests()

    def _holding(self) -> list[Request]:
        """Those that wait and hold blocks, whichever batch they were in."""
        return [request for loop in self.step_loops for request in loop.scheduler.holding_requests()]

    def fail(self) -> list[Request]:
        """The replica is gone, now: finished steps are logged, and every request it held is returned."""
        self.died_s = self._clock.now
        self.stop(self.died_s)
        for loop in self.step_loops:
            loop.silence()
        self.outstanding = self.outstanding_tokens = self.n_leaving = 0
        return [request for request in self.held_requests() if not request.gone]

    def stop(self, horizon_s: float) -> None:
        """The run is cut off: log the finished steps of what is on the device, note what unfinished requests had."""
        for loop in self.step_loops:
            loop.stop(horizon_s)
