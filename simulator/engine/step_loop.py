"""One batch in flight: steps run back to back on the device, scheduled `lag` steps ahead. The clock of its requests.

When a step ends, its outputs are processed (finished requests give up seat and blocks), the next scheduled batch
starts, and batches are scheduled until `lag` of them wait. With lag 1 a request that arrives during step i is first
considered when step i + 1 starts and runs in step i + 2; with lag 0 in step i + 1. An idle engine schedules at once;
with lag > 0 that step starts after the host's step time, which nothing hides (with lag 0 the cycle contains it).

Fast-forward: while the scheduled batches are the same decodes and nothing can change, several steps are one event. An
arrival that could be admitted cuts the run at the next step boundary.

A replica has one lane, or, as a pipeline, one for each stage: they take turns at the first stage.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from simulator.core.batch import Batch
from simulator.core.clock import WAKE, Tick
from simulator.core.outcomes import COMPLETED
from simulator.core.request import Request
from simulator.core.step_log import RankStepLog, StepLog
from simulator.core.step_timer import elapsed_s, segment_of, step_at
from simulator.engine.invariants import check_lane
from simulator.schedulers.base import Scheduler
from simulator.schedulers.completion_rounds import CompletionRounds
from simulator.schedulers.data_parallel import Lockstep

if TYPE_CHECKING:
    from simulator.engine.replica import Replica, ReplicaContext


class StepLoop:
    """See the module. `replica` is whose it is. More than 29 attributes would slow down each (CPython 3.11)."""

    def __init__(self, replica: Replica, context: ReplicaContext, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.log = StepLog()
        self.timer = context.timer
        self.current: Batch | None = None  # on the device
        self._replica, self._context = replica, context
        self._clock = context.clock
        self._stages = context.rules.pipeline_stages
        self._fast_forward = context.fast_forward and self._stages == 1
        self._lag, self._streams = context.rules.lag, scheduler.streams
        self._queue: deque[Batch] = deque()  # scheduled, not started
        self._on_end = [self._end_of_step]
        self._tick: Tick | None = None  # the event this lane waits for; None: idle
        self._start_s = self._first_s = self._slope_s = self._late_s = 0.0  # late: of the last token behind its step
        self._steps, self._total_s = 0, 0.0  # of the event: steps it stands for, and their time
        self._outlet = replica.outlet
        self._last_tokens = CompletionRounds()
        if isinstance(scheduler, Lockstep):
            self.log, self._last_tokens = RankStepLog(len(scheduler.ranks)), scheduler.rounds
            scheduler.rounds_ahead = self.rounds_ahead
        self._journal = context.journal
        self._abandoned: list[Request] = []  # their clients are gone: they leave when the step on the device has ended
        self._timed = context.rules.queueing.max_delay_s > 0.0
        # What a run does not use costs its steps nothing: here is decided what they look at.
        rules, self._check_laws = context.rules, context.check_laws
        self._noted = self._timed or self._journal is not None or rules.offload is not None

    @property
    def idle(self) -> bool:
        return self._tick is None

    @property
    def running_s(self) -> float:
        """How long the batch on the device has been there."""
        return 0.0 if self.current is None else self._clock.now - self._start_s

    @property
    def blocks_ahead(self) -> int:
        """Blocks that a run of steps has taken by now and has not booked yet."""
        return self.scheduler.blocks_for(self.rounds_ahead()) if self._steps > 1 else 0

    def rounds_ahead(self) -> int:
        """Schedule calls of that run."""
        return self._steps_until(self._clock.now) - 1 if self._steps > 1 else 0

    def wake(self) -> None:
        """It is idle, and something may be scheduled: look, once everything that happens now has happened."""
        self._tick = self._clock.at(self._clock.now, WAKE + self._replica.index, [self._wake])

    def look(self) -> None:
        """Something came to the queue: wake, or end a run of steps if it could be admitted."""
        if self._tick is None or (self._timed and self.current is None and not self._queue):
            self.wake()
        elif self._steps > 1 and (
            not self.scheduler.blocked or (self._journal and self._journal.wonders(self._replica))
        ):
            self._cut(self._clock.now)

    def cut(self) -> None:
        """End a fast-forwarded run with the step that is on the device: something may change then."""
        if self._steps > 1:
            self._cut(self._clock.now)

    def silence(self) -> None:
        """Nothing ends here any more."""
        self._tick = self.current = None

    def _wake(self, tick: Tick) -> None:
        if tick is self._tick:
            self._go_on(self._clock.now)

    def _go_on(self, now: float) -> None:
        """The device is free: start the next batch, or fall idle."""
        self._steps = 0
        if self._queue:
            self._begin(self._queue.popleft(), now)
            return
        batch = self._schedule()
        if batch is None:
            self._rest(now)
            return
        host = self._context.rules.host
        exposed_s = (
            host.step_s + host.step_s_per_sequence * (batch.decodes + batch.prefill_chunks) if self._lag else 0.0
        )
        start_s = now + exposed_s if self._stages == 1 else self._replica.enter_pipeline(now, self.timer.cycle_s(batch))
        if start_s > now:
            self._queue.append(batch)
            self._tick = self._clock.at(start_s, self._replica.index, [self._begin_queued])
        else:
            self._begin(batch, now)
        if self._stages > 1:
            self._replica.stir()

    def _rest(self, now: float) -> None:
        """Nothing can run now."""
        again_s = self.scheduler.look_again_s
        if again_s < inf:  # a batch waits to fill up
            self._tick = self._clock.at(max(now, again_s), WAKE + self._replica.index, [self._wake])
            return
        self._tick = None
        self._replica.check_progress()

    def abandon(self, request: Request) -> None:
        """Its client is gone: it leaves when the step on the device has ended."""
        self._abandoned.append(request)
        if self.current is None and not self._queue:
            self._let_go_abandoned(self._clock.now)
        else:
            self.cut()

    def _let_go_abandoned(self, now: float) -> None:
        """Seats and blocks of those whose clients are gone; of who has a token scheduled, when that step has ended."""
        scheduler = self.scheduler
        for request in self._abandoned:
            if request.retired:
                continue  # it ends by itself
            if not self._last_tokens.forget(request):
                if scheduler.withdraw(request):
                    self._leave(request)
                continue
            scheduler.retire(request)
            leaving = scheduler.leaving(request)
            if self._queue:
                self._queue[-1].finishing += leaving
            elif leaving:
                self._process(Batch(finishing=leaving), now)
        self._abandoned.clear()

    def _leave(self, request: Request) -> None:
        self._replica.finish(request)
        self._context.on_finish(self._replica, request)

    def _begin_queued(self, tick: Tick) -> None:
        if tick is self._tick:
            self._begin(self._queue.popleft(), self._clock.now)

    def _begin(self, batch: Batch, now: float) -> None:
        """Run `batch` on the device, and schedule ahead."""
        self.current = batch
        moves = batch.moves
        if moves is not None and moves.fetches:
            self._replica.fetch(moves.fetches)
        queue = self._queue
        while len(queue) < self._lag:
            ahead = self._schedule()
            if ahead is None:
                break
            queue.append(ahead)
        self._start_s = now
        steps = most = 1
        if batch.ranks:
            first_s, slope_s, most = segment_of(self.timer, batch.ranks)
        elif batch.prefill_tokens:
            first_s, slope_s = self.timer.cycle_s(batch), 0.0
        else:
            first_s, slope_s, most = self.timer.decode_segment(
                batch.decodes, batch.decode_context_sum, batch.decode_context_max
            )
            if batch.passes > 1:  # a further pass costs the same at every context
                first_s = self.timer.cycle_s(batch)
        if moves is not None and moves.blocks:
            slope_s = 0.0
        elif most > 1 and self._fast_forward and not (batch.finishing or (batch.joined and batch.opens)):
            steps += self._quiet_steps(batch, most - 1)
        if moves is not None:
            first_s += self._context.rules.moving_s(batch)
        if not first_s > 0.0:
            raise RuntimeError(f"a step must take time: {batch} takes {first_s} s")
        self._first_s, self._slope_s, self._steps = first_s, slope_s, steps
        self._total_s = total_s = steps * first_s + slope_s * (0.5 * steps * (steps - 1))
        self._tick = self._clock.at(now + total_s, self._replica.index, self._on_end)

    def _quiet_steps(self, batch: Batch, most: int) -> int:
        """Steps after this one that need no decision, at most `most`."""
        for ahead in self._queue:
            if ahead.prefill_tokens or ahead.finishing or ahead.decodes != batch.decodes:
                return 0
            if ahead.moves is not None and ahead.moves.fetches:
                return 0
        rounds = self._last_tokens.rounds_left()
        return self.scheduler.quiet_rounds(batch, min(most, rounds)) if rounds else 0

    def _elapsed_s(self, steps: int) -> float:
        return elapsed_s(steps, self._first_s, self._slope_s)

    def _steps_until(self, now: float) -> int:
        """The step of the present run (counted from 1) that is on the device at `now`."""
        return step_at(now, self._start_s, self._first_s, self._slope_s, self._steps)

    def _cut(self, now: float) -> None:
        """End the run with the step that is on the device: something may be admitted then."""
        steps = self._steps_until(now)
        if steps < self._steps:
            self._steps = steps
            self._total_s = total_s = self._elapsed_s(steps)
            self._tick = self._clock.at(self._start_s + total_s, self._replica.index, self._on_end)

    def _end_of_step(self, tick: Tick) -> None:
        if tick is not self._tick:  # the run was cut, or the replica died
            return
        batch, now, steps = self.current, self._clock.now, self._steps
        start_s, first_s = self._start_s, self._first_s
        assert batch is not None
        logits, behind_s = batch.logits, 0.0
        if logits:
            first_end_s = now if steps == 1 else start_s + first_s
            late_s = self._outlet.stream(first_end_s, now, steps, logits + batch.accepted if self._streams else 0) - now
            behind_s, self._late_s = late_s - self._late_s, late_s
            self._replica.fruitless = 0
        else:
            self._replica.check_growth(batch.prefill_tokens)
        self.log.add(start_s, steps, batch, first_s, self._slope_s, self._total_s, behind_s)
        if steps > 1:
            self._skip(batch, steps - 1)
        self.current = None
        if self._journal is not None:
            self._journal.sample(self._replica)
        if batch.moves is not None and self.scheduler.host is not None:
            for copy in batch.moves.copies:
                self.scheduler.host.store(copy)
        if batch.prompted or batch.finishing or batch.admitted or batch.parting or batch.joined:
            self._process(batch, now)
        if self._abandoned:
            self._let_go_abandoned(now)
        self._go_on(now)

    def _skip(self, batch: Batch, rounds: int) -> None:
        """Catch up with the schedule calls a run left out."""
        self.scheduler.skip(rounds)
        for ahead in self._queue:
            ahead.grow(rounds)
        last_tokens = self._last_tokens
        last_tokens.rounds += rounds
        if last_tokens.due_round <= last_tokens.rounds:
            self._retire_due(self._queue[-1] if self._queue else batch)

    def _schedule(self) -> Batch | None:
        scheduler = self.scheduler
        batch = self._ask_and_note() if self._noted else scheduler.schedule()
        if scheduler.preempted:
            self._note_preempted(scheduler.preempted)
        if batch is None:
            return None
        last_tokens = self._last_tokens
        if batch.decodes:
            last_tokens.rounds += 1
        if last_tokens.due_round <= last_tokens.rounds:
            self._retire_due(batch)
        if batch.prompted or batch.joined:
            self._foresee(batch)
        if self._check_laws:
            check_lane(self._replica, self, batch)
        return batch

    def _ask_and_note(self) -> Batch | None:
        """What is scheduled next, where batches wait for a time, blocks come from the host or a journal is kept."""
        scheduler = self.scheduler
        if self._timed:
            scheduler.now_s = self._clock.now
        batch = scheduler.schedule()
        if scheduler.fetches:
            if batch is None:
                self._replica.fetch(scheduler.fetches)
            else:
                batch.moving().fetches = tuple(scheduler.fetches)
        if self._journal is not None:
            self._journal.scheduled(self._replica, self, batch)
        return batch

    def _foresee(self, batch: Batch) -> None:
        """Note in which round each request that begins to decode schedules its last token."""
        output_tokens = self._context.output_tokens
        for request in batch.prompted + batch.joined:
            generated = request.known_tokens - request.input_tokens
            rest = output_tokens[request.index] - generated - 1
            self._last_tokens.foresee(request, rest)
            if not rest:  # its last token is in this batch
                self.scheduler.retire(request)
                batch.finishing += self.scheduler.leaving(request)

    def _retire_due(self, batch: Batch) -> None:
        scheduler = self.scheduler
        for request in self._last_tokens.due():
            scheduler.retire(request)
            batch.finishing += scheduler.leaving(request)

    def _note_preempted(self, preempted: list[Request]) -> None:
        if self._journal is not None:
            self._journal.preempted(self._replica, self, preempted)
        last = self._queue[-1] if self._queue else self.current
        for request in preempted:
            if not self._last_tokens.forget(request):
                continue  # its prompt was unfinished: no token of it is in flight
            if last is None:
                request.last_token_s = self._clock.now
            else:
                last.parting += (request,)

    def _process(self, batch: Batch, now: float) -> None:
        """The outputs of `batch` are there."""
        if self._journal is not None:
            self._journal.processed(self._replica, self, batch, self._start_s)
        results = self._context.results
        seen_s = self._outlet.left_s + self._context.rules.host.output_s
        for request in batch.admitted:
            results.started_s[request.index] = self._start_s
        for request in batch.prompted:
            if request.emitted:
                results.gaps_s.append(now - request.last_token_s)
            else:
                request.emitted = True
                if self._streams:
                    results.first_token_s[request.index] = seen_s
        for request in batch.joined:
            if request.emitted:
                results.waits_s.extend((self._first_s, self._start_s - request.last_token_s))
            else:
                request.emitted = True
                results.first_token_s[request.index] = seen_s
                results.openings_s.append(self._first_s)
        for request in batch.parting:
            request.last_token_s = now
        hand_over = self._context.hand_over
        if batch.finishing:
            self._outlet.end(len(batch.finishing))
        for request in batch.finishing:
            self._last_tokens.forget(request)
            if hand_over is not None and hand_over(self._replica, request):
                self._replica.n_leaving += 1
                self.scheduler.park(request)
                continue
            self._end(request, seen_s)

    def _end(self, request: Request, seen_s: float) -> None:
        """Its last token is out, and its client sees it then."""
        results, index = self._context.results, request.index
        if not request.gone:
            results.last_token_s[index] = seen_s
            if not self._streams:
                results.first_token_s[index] = seen_s
            results.status[index] = COMPLETED
        results.preemptions[index] = request.preemptions
        results.cached_tokens[index] = request.cached_tokens
        self.scheduler.release(request)
        self._replica.finish(request)
        self._context.on_finish(self._replica, request)

    def stop(self, horizon_s: float) -> None:
        """The run is cut off: log the finished steps of what is on the device, note what unfinished requests had."""
        batch = self.current
        if batch is not None and self._steps > 1:
            steps = self._steps_until(horizon_s) - 1
            if steps:
                self.log.add(self._start_s, steps, batch, self._first_s, self._slope_s, self._elapsed_s(steps))
        results = self._context.results
        scheduler = self.scheduler
        held = scheduler.running_requests() + scheduler.holding_requests() + scheduler.waiting_requests()
        for request in held:
            results.preemptions[request.index] = request.preemptions
            results.cached_tokens[request.index] = max(0, request.cached_tokens)
