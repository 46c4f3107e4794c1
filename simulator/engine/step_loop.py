"""The step loop of one batch in flight: steps run back to back on the device, and one may be scheduled ahead.

When a step ends, its outputs are processed (finished requests release their seats and blocks), the next scheduled
batch starts, and with lag 1 another one is scheduled and queued. With lag 1, a request that arrives during step i
is first considered when step i + 1 starts, and runs in step i + 2; with lag 0 it runs in step i + 1. An idle engine
schedules immediately. With lag 1 that step starts after the host's step time, which is not hidden by another step
(with lag 0 the cycle time contains it).

Fast-forward: while the scheduled batches consist of the same decodes and nothing can change, several steps are
simulated as one event. An arrival that could be admitted cuts such a run at the next step boundary.

A replica has one loop, or one for each stage of a pipeline; these loops take turns at the first stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING

from simulator.core.batch import Batch
from simulator.core.clock import STEP, WAKE, Callback, TimedEvent
from simulator.core.completion_rounds import CompletionRounds
from simulator.core.request import Request
from simulator.core.step_log import StepLog
from simulator.core.step_timer import elapsed_s, encoding_s, output_s, segment_of, step_at
from simulator.engine.context import EngineContext, ReplicaHandle
from simulator.engine.token_accounting import TokenAccounting
from simulator.schedulers.base import Scheduler
from simulator.schedulers.data_parallel import Lockstep

if TYPE_CHECKING:
    from simpy import Event


class StepLoop:
    """The timing of one batch in flight: what is scheduled, when it starts and when it ends.

    TokenAccounting determines the effect of a step on its requests.
    """

    def __init__(self, replica: ReplicaHandle, context: EngineContext, scheduler: Scheduler, place: int) -> None:
        """Create an idle loop; `place` is its index among the loops of its replica."""
        self.scheduler = scheduler
        self.log = StepLog()
        self.timer = context.timer
        self.current: Batch | None = None  # the batch on the device
        self._replica, self._context = replica, context
        self._clock, self._outlet = context.clock, replica.outlet
        self._end_order, self._wake_order = STEP + replica.index, WAKE + replica.index
        self._stages = context.rules.pipeline_stages
        self._fast_forward = context.fast_forward and self._stages == 1
        self._lag, self._streams = context.rules.lag, scheduler.streams
        self._held_launch_s = context.rules.held_launch_s
        self._queue: deque[Batch] = deque()  # scheduled batches that have not started
        self._on_end: list[Callback] = [self._end_of_step]
        self._event: Event | None = None  # the event this loop waits for, all others are stale; None: the loop is idle
        self._start_s = self._first_s = self._slope_s = 0.0
        self._late_s = 0.0  # delay of the last token after the end of its step
        self._steps, self._total_s = 0, 0.0  # number of steps that the event represents, and their total duration
        self._last_tokens = CompletionRounds()
        if isinstance(scheduler, Lockstep):
            self.log, self._last_tokens = StepLog(len(scheduler.ranks)), scheduler.rounds
            scheduler.rounds_ahead = self.rounds_ahead
        self._accounting = TokenAccounting(replica, context, scheduler, self._last_tokens, place)
        # The features in use are determined here once, so that unused features cost nothing in each step.
        self._timed = context.rules.queueing.max_delay_s > 0.0
        self._event_log, self._check = context.event_log, context.check
        self._shared_links = context.shared_links
        rules = context.rules
        self._noted = self._timed or self._event_log is not None or bool(rules.offload or rules.encoder_limits)

    @property
    def idle(self) -> bool:
        """Return whether no batch is scheduled or running and no wake-up is pending."""
        return self._event is None

    @property
    def running_s(self) -> float:
        """Return the seconds that the current batch has been on the device."""
        return 0.0 if self.current is None else self._clock.now - self._start_s

    @property
    def current_step_s(self) -> float:
        """Return the duration of the step on the device, in seconds; 0 if none is."""
        return 0.0 if self.current is None else self._first_s + self._slope_s * (self._steps_until(self._clock.now) - 1)

    @property
    def blocks_ahead(self) -> int:
        """Return the blocks that a run of steps has used by now and that are not accounted for yet."""
        return self.scheduler.blocks_for(self.rounds_ahead()) if self._steps > 1 else 0

    def rounds_ahead(self) -> int:
        """Return the number of schedule calls that the current run of steps has skipped until now."""
        return self._steps_until(self._clock.now) - 1 if self._steps > 1 else 0

    # ---- reactions to requests and to the replica

    def wake(self) -> None:
        """Schedule an attempt to start a batch after all other events at the current time."""
        self._event = self._clock.at(self._clock.now, self._wake_order, [self._wake])

    def on_arrival(self) -> None:
        """React to a request that entered the queue: wake, or cut a run of steps if the request could be admitted."""
        if self._event is None or (self._timed and self.current is None and not self._queue):
            self.wake()
        elif self._steps > 1 and (
            not self.scheduler.blocked or (self._event_log and self._event_log.needs_schedule(self._replica))
        ):
            self.cut()

    def cancel(self, request: Request) -> None:
        """Cancel a request whose client has given up; it leaves when the step on the device has ended."""
        self._accounting.gone.append(request)
        if self.current is None and not self._queue:
            self._accounting.drop_gone(None)
        else:
            self.cut()

    def cut(self) -> None:
        """End a fast-forwarded run of steps after the step on the device, because something may change then."""
        if self._steps > 1:
            steps = self._steps_until(self._clock.now)
            if steps < self._steps:
                self._steps = steps
                self._total_s = total_s = elapsed_s(steps, self._first_s, self._slope_s)
                self._event = self._clock.at(self._start_s + total_s, self._end_order, self._on_end)

    def discard(self) -> None:
        """Discard the batch on the device and ignore its pending event."""
        self._event = self.current = None
        if self._shared_links is not None:
            self._shared_links.idle(self._replica.index)

    def stop(self, horizon_s: float) -> None:
        """Stop at the horizon: log the finished steps and record the counts of unfinished requests."""
        batch = self.current
        if batch is not None and self._steps > 1:
            steps = self._steps_until(horizon_s) - 1
            if steps:
                total_s = elapsed_s(steps, self._first_s, self._slope_s)
                self.log.add(self._start_s, steps, batch, self._first_s, self._slope_s, total_s)
        self._accounting.stop()

    # ---- steps

    def _wake(self, event: Event) -> None:
        if event is not self._event:
            return
        if self._queue:
            self._begin(self._queue.popleft(), self._clock.now)
        else:
            self._start_next(self._clock.now)

    def _start_next(self, now: float) -> None:
        """Schedule and start a batch on the free device, or become idle."""
        self._steps = 0
        batch = self._schedule()
        if batch is None:
            retry_s = self.scheduler.retry_s
            if retry_s < inf:
                self._event = self._clock.at(max(now, retry_s), self._wake_order, [self._wake])
            else:
                self._event = None
                self._replica.check_progress()
            if self._shared_links is not None:
                self._shared_links.idle(self._replica.index)
            return
        if self._stages > 1:
            timer = self.timer
            start_s = self._replica.enter_pipeline(now, timer.cycle_s(batch), output_s(timer, batch))
        elif self._lag:
            host = self._context.rules.host
            start_s = now + (host.step_s + host.step_s_per_sequence * (batch.decodes + batch.prefill_chunks))
        else:
            start_s = now
        if start_s > now:
            self._queue.append(batch)
            self._event = self._clock.at(start_s, self._end_order, [self._wake])
        else:
            self._begin(batch, now)
        if self._stages > 1:
            self._replica.wake_idle()

    def restore(
        self,
        late_s: float,
        rounds: int,
        serial: int,
        due: list[tuple[int, int, Request]],
        ending: Iterable[Request],
    ) -> None:
        """Take over the state of `fast_path.py`: the delay of the last token, and what `CompletionRounds` holds."""
        self._late_s = late_s
        self._last_tokens.restore(rounds, serial, due, ending)

    def resume(self, batch: Batch | None, now: float) -> None:
        """Continue a run of `fast_path.py` at the start of a step; None: its batch is still to be scheduled."""
        self._event = TimedEvent(self._clock, self._on_end, None)  # begins now
        if batch is None:
            self._start_next(now)
        else:
            self._begin(batch, now)

    def _begin(self, batch: Batch, now: float) -> None:
        """Run `batch` on the device and schedule ahead."""
        self.current = batch
        moves = batch.moves
        if moves is not None and moves.fetches:
            self._replica.fetch(moves.fetches)
        queue = self._queue
        if self._lag and not queue:
            ahead = self._schedule()
            if ahead is not None:
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
        # While transfers use its links, what they delay is known step by step.
        delayed = self._shared_links is not None and self._shared_links.is_delayed_or_shared(self._replica.index)
        if moves is not None and moves.blocks:
            slope_s = 0.0
        elif (
            most > 1
            and not delayed
            and self._fast_forward
            and not (batch.finishing or (batch.prefilled and batch.opens))
        ):
            steps += self._quiet_steps(batch, most - 1)
        if moves is not None:
            first_s += self._context.rules.moving_s(batch)
            if moves.encoding is not None:
                first_s += encoding_s(self.timer, moves.encoding)
        if delayed and self._shared_links is not None:
            first_s += self._shared_links.delay_s(self._replica.index, batch, first_s)
        if not first_s > 0.0:
            raise RuntimeError(f"a step must take time: {batch} takes {first_s} s")
        self._first_s, self._slope_s, self._steps = first_s, slope_s, steps
        self._total_s = total_s = steps * first_s + slope_s * (0.5 * steps * (steps - 1))
        event = self._event
        assert event is not None  # the event that is being processed
        self._clock.repeat(event, now + total_s, self._end_order, self._on_end)

    def _quiet_steps(self, batch: Batch, most: int) -> int:
        """Return the number of steps after this one, at most `most`, that require no scheduling decision."""
        for ahead in self._queue:
            if ahead.prefill_tokens or ahead.finishing or ahead.decodes != batch.decodes:
                return 0
            if ahead.moves is not None and ahead.moves.fetches:
                return 0
        rounds = self._last_tokens.rounds_left()
        return self.scheduler.quiet_rounds(batch, min(most, rounds)) if rounds else 0

    def _steps_until(self, now: float) -> int:
        """Return the step of the current run (counted from 1) that is on the device at `now`."""
        return step_at(now, self._start_s, self._first_s, self._slope_s, self._steps)

    def _end_of_step(self, event: Event) -> None:
        if event is not self._event:  # the run of steps was cut, or the replica failed
            return
        batch, now, steps = self.current, self._clock.now, self._steps
        start_s, first_s = self._start_s, self._first_s
        assert batch is not None
        logits, behind_s = batch.logits, 0.0
        if logits:
            held_s = self._held_until_s(batch, now) if self._held_launch_s else now
            first_end_s = held_s if steps == 1 else start_s + first_s
            tokens = logits + batch.accepted if self._streams else 0
            late_s = self._outlet.stream(first_end_s, held_s, steps, tokens) - now
            behind_s, self._late_s = late_s - self._late_s, late_s
            self._replica.fruitless = 0
        else:
            self._replica.check_growth(batch.prefill_tokens)
        self.log.add(start_s, steps, batch, first_s, self._slope_s, self._total_s, behind_s)
        if steps > 1:
            self._skip(batch, steps - 1)
        self.current = None
        if self._noted:
            if self._event_log is not None:
                self._event_log.sample(self._replica)
            if batch.moves is not None and batch.moves.encoding is not None:
                self.log.add_encoding(batch.moves.encoding)
            if batch.moves is not None and self.scheduler.host is not None:
                for copy in batch.moves.copies:
                    self.scheduler.host.store(copy)
        accounting = self._accounting
        if batch.prompted or batch.finishing or batch.admitted or batch.parting or batch.prefilled:
            accounting.process(batch, now, start_s, first_s)
        queue = self._queue
        if accounting.gone:
            accounting.drop_gone(queue[-1] if queue else None)
        if queue:
            self._steps = 0
            self._begin(queue.popleft(), now)
        else:
            self._start_next(now)

    def _held_until_s(self, batch: Batch, now: float) -> float:
        """Return when the outputs of the last step of `batch`, which ends now, are processed.

        One thread launches the steps one after the other, each as soon as the one before it is launched and the step
        before that is processed. A step of prompts is launched kernel by kernel, and the outputs of the step before it
        wait until that is done. A captured step of decodes is launched at once.
        """
        launch_s, queue = self._held_launch_s, self._queue
        if not (queue and queue[0].prefill_tokens):
            return now
        last_s = self._first_s + self._slope_s * (self._steps - 1)
        launched_s = now - last_s + (2.0 * launch_s if batch.prefill_tokens else launch_s)
        return launched_s if launched_s > now else now

    def _skip(self, batch: Batch, rounds: int) -> None:
        """Apply the schedule calls that a run of steps skipped."""
        self.scheduler.skip(rounds)
        for ahead in self._queue:
            ahead.grow(rounds)
        last_tokens = self._last_tokens
        last_tokens.rounds += rounds
        if last_tokens.due_round <= last_tokens.rounds:
            self._accounting.retire_due(self._queue[-1] if self._queue else batch)

    # ---- schedules

    def _schedule(self) -> Batch | None:
        scheduler = self.scheduler
        batch = self._schedule_and_note() if self._noted else scheduler.schedule()
        if scheduler.preempted:
            last = self._queue[-1] if self._queue else self.current
            self._accounting.note_preempted(scheduler.preempted, last)
        if batch is None:
            return None
        last_tokens = self._last_tokens
        if batch.decodes:
            last_tokens.rounds += 1
        if last_tokens.due_round <= last_tokens.rounds:
            self._accounting.retire_due(batch)
        if batch.prompted or batch.prefilled:
            self._accounting.schedule_completions(batch)
        if self._check is not None:
            self._check(self._replica, scheduler, batch)
        return batch

    def _schedule_and_note(self) -> Batch | None:
        """Schedule with timed batches, fetches from the host or an event log."""
        scheduler = self.scheduler
        if self._timed:
            scheduler.now_s = self._clock.now
        batch = scheduler.schedule()
        if scheduler.fetches:
            if batch is None:
                self._replica.fetch(scheduler.fetches)
            else:
                batch.moving().fetches = tuple(scheduler.fetches)
        if self._event_log is not None:
            self._event_log.scheduled(self._replica, scheduler, batch)
        return batch
