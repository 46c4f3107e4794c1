"""The effect of a loop's steps on requests: which tokens are output, which requests end, and when."""

from __future__ import annotations

from simulator.core.batch import Batch
from simulator.core.completion_rounds import CompletionRounds
from simulator.core.outcomes import COMPLETED
from simulator.core.request import Request
from simulator.engine.context import EngineContext, ReplicaHandle
from simulator.schedulers.base import Scheduler


class TokenAccounting:
    """The accounting for the requests of one step loop, from their first scheduled step to their last token."""

    def __init__(
        self,
        replica: ReplicaHandle,
        context: EngineContext,
        scheduler: Scheduler,
        last_tokens: CompletionRounds,
        place: int,
    ) -> None:
        """Create the accounting of one loop.

        Args:
            replica: The replica of the loop.
            context: The context of the replica's pool.
            scheduler: The scheduler of the loop.
            last_tokens: The rounds in which each decoding request schedules its last token.
            place: The index of the loop among those of its replica.
        """
        self.gone: list[Request] = []  # cancelled requests, which leave at the end of the step on the device
        self._replica, self._scheduler, self._last_tokens, self._place = replica, scheduler, last_tokens, place
        self._clock, self._results, self._event_log = context.clock, context.results, context.event_log
        self._output_tokens, self._output_s = context.output_tokens, context.rules.host.output_s
        self._outlet, self._streams = replica.outlet, scheduler.streams
        self._hands_over = context.hand_over is not None

    # ---- when batches are scheduled

    def schedule_completions(self, batch: Batch) -> None:
        """Record in which round each request that begins to decode schedules its last token."""
        output_tokens = self._output_tokens
        for request in batch.prefilled:
            if request.announces:
                self._announce(request)
        for request in batch.prompted + batch.prefilled:
            generated = request.known_tokens - request.input_tokens
            rest = output_tokens[request.index] - generated - 1
            self._last_tokens.schedule_completion(request, rest)
            if not rest:  # this batch contains its last token
                self._retire(request, batch)

    def _announce(self, request: Request) -> None:
        """Output the first token that a request brought from a prefill replica."""
        request.announces = False
        request.last_token_s = self._clock.now
        self._results.first_token_s[request.index] = self._clock.now + self._output_s

    def retire_due(self, batch: Batch) -> None:
        """Retire the requests that schedule their last token in `batch`."""
        for request in self._last_tokens.due():
            self._retire(request, batch)

    def _retire(self, request: Request, batch: Batch) -> None:
        self._scheduler.retire(request)
        batch.finishing += self._scheduler.leaving(request)

    def note_preempted(self, preempted: list[Request], last: Batch | None) -> None:
        """Account for preempted requests.

        Args:
            preempted: Requests that lost their blocks.
            last: The most recently scheduled batch in flight, which may contain their tokens; None if there is none.
        """
        if self._event_log is not None:
            self._event_log.preempted(self._replica, self._place, preempted)
        for request in preempted:
            if not self._last_tokens.forget(request):
                continue  # its prompt was unfinished, so none of its tokens is in flight
            if last is None:
                request.last_token_s = self._clock.now
            else:
                last.parting += (request,)

    # ---- when steps end

    def process(self, batch: Batch, now: float, start_s: float, first_s: float) -> None:
        """Process the outputs of `batch`, which ran from start_s until now; its first step took first_s seconds."""
        if self._event_log is not None:
            self._event_log.processed(self._replica, self._place, batch, start_s)
        results = self._results
        seen_s = self._outlet.left_s + self._output_s
        for request in batch.admitted:
            results.started_s[request.index] = start_s
        for request in batch.prompted:
            if request.emitted:
                results.gaps_s.append(now - request.last_token_s)
            else:
                request.emitted = True
                results.prefilled_s[request.index] = now
                if self._streams:
                    results.first_token_s[request.index] = seen_s
        for request in batch.prefilled:
            if request.emitted:
                results.waits_s.extend((first_s, start_s - request.last_token_s))
            else:
                request.emitted = True
                results.first_token_s[request.index] = seen_s
                results.prefilled_s[request.index] = now
                results.openings_s.append(first_s)
        for request in batch.parting:
            request.last_token_s = now
        if batch.finishing:
            self._finish(batch.finishing, now, seen_s)

    def _finish(self, finishing: tuple[Request, ...], now: float, seen_s: float) -> None:
        """Finish requests whose last tokens have been computed by now and reach their clients at seen_s."""
        replica, last_tokens, release = self._replica, self._last_tokens, self._scheduler.release
        results = self._results
        self._outlet.end(len(finishing))
        for request in finishing:
            last_tokens.forget(request)
            if self._hands_over and replica.hand_over(request):
                self._scheduler.hold_for_transfer(request)
                continue
            index = request.index
            if not request.gone:
                results.last_token_s[index] = seen_s
                results.decoded_s[index] = now
                if not self._streams:
                    results.first_token_s[index] = seen_s
                results.status[index] = COMPLETED
            results.preemptions[index] = request.preemptions
            results.cached_tokens[index] = request.cached_tokens
            release(request)
            replica.finish(request)

    def drop_gone(self, ahead: Batch | None) -> None:
        """Free the seats and blocks of cancelled requests.

        A request with a scheduled token is freed when that step has ended.

        Args:
            ahead: The most recently scheduled batch, if it has not begun; None if no batch is scheduled.
        """
        scheduler = self._scheduler
        for request in self.gone:
            if request.retired:
                continue  # its last token is already in flight
            if not self._last_tokens.forget(request):
                if scheduler.withdraw(request):
                    self._replica.finish(request)
                continue
            scheduler.retire(request)
            leaving = scheduler.leaving(request)
            if ahead is not None:
                ahead.finishing += leaving
            elif leaving:
                ended = Batch()
                ended.finishing = leaving
                self.process(ended, self._clock.now, self._clock.now, 0.0)
        self.gone.clear()

    def stop(self) -> None:
        """Record the counts of unfinished requests when the run stops at its horizon."""
        results, scheduler = self._results, self._scheduler
        held = scheduler.running_requests() + scheduler.holding_requests() + scheduler.waiting_requests()
        for request in held:
            results.preemptions[request.index] = request.preemptions
            results.cached_tokens[request.index] = max(0, request.cached_tokens)
