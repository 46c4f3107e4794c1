"""What the steps of a loop mean for their requests: which tokens come out, which requests end, and when."""

from __future__ import annotations

from simulator.core.batch import Batch
from simulator.core.outcomes import COMPLETED
from simulator.core.request import Request
from simulator.engine.context import EngineContext, ReplicaHandle
from simulator.schedulers.base import Scheduler
from simulator.schedulers.completion_rounds import CompletionRounds


class TokenAccounting:
    """The requests of one step loop, from their first scheduled step to their last token.

    last_tokens: When each decoding request schedules its last token.
    place: The number of the loop among those of its replica.
    """

    def __init__(
        self,
        replica: ReplicaHandle,
        context: EngineContext,
        scheduler: Scheduler,
        last_tokens: CompletionRounds,
        place: int,
    ) -> None:
        self.gone: list[Request] = []  # their clients have given up: they leave when the step on the device has ended
        self._replica, self._scheduler, self._last_tokens, self._place = replica, scheduler, last_tokens, place
        self._clock, self._results, self._journal = context.clock, context.results, context.journal
        self._output_tokens, self._output_s = context.output_tokens, context.rules.host.output_s
        self._outlet, self._streams = replica.outlet, scheduler.streams
        self._hands_over = context.hand_over is not None

    # ---- when batches are scheduled

    def schedule_completions(self, batch: Batch) -> None:
        """Note in which round each request that begins to decode schedules its last token."""
        output_tokens = self._output_tokens
        for request in batch.prompted + batch.joined:
            generated = request.known_tokens - request.input_tokens
            rest = output_tokens[request.index] - generated - 1
            self._last_tokens.foresee(request, rest)
            if not rest:  # its last token is in this batch
                self._retire(request, batch)

    def retire_due(self, batch: Batch) -> None:
        """The last tokens of some requests are in `batch`."""
        for request in self._last_tokens.due():
            self._retire(request, batch)

    def _retire(self, request: Request, batch: Batch) -> None:
        self._scheduler.retire(request)
        batch.finishing += self._scheduler.leaving(request)

    def note_preempted(self, preempted: list[Request], last: Batch | None) -> None:
        """Requests lost their blocks. last: The batch in flight that was scheduled last, which may hold their tokens;
        None: there is none."""
        if self._journal is not None:
            self._journal.preempted(self._replica, self._place, preempted)
        for request in preempted:
            if not self._last_tokens.forget(request):
                continue  # its prompt was unfinished: no token of it is in flight
            if last is None:
                request.last_token_s = self._clock.now
            else:
                last.parting += (request,)

    # ---- when steps end

    def process(self, batch: Batch, now: float, start_s: float, first_s: float) -> None:
        """The outputs of `batch` are there; it ran from start_s until now, and its first step took first_s seconds."""
        if self._journal is not None:
            self._journal.processed(self._replica, self._place, batch, start_s)
        results = self._results
        seen_s = self._outlet.left_s + self._output_s
        for request in batch.admitted:
            results.started_s[request.index] = start_s
        for request in batch.prompted:
            if request.emitted:
                results.gaps_s.append(now - request.last_token_s)
            else:
                request.emitted = True
                if self._streams:
                    results.first_token_s[request.index] = seen_s
        for request in batch.joined:
            if request.emitted:
                results.waits_s.extend((first_s, start_s - request.last_token_s))
            else:
                request.emitted = True
                results.first_token_s[request.index] = seen_s
                results.openings_s.append(first_s)
        for request in batch.parting:
            request.last_token_s = now
        if batch.finishing:
            self._finish(batch.finishing, seen_s)

    def _finish(self, finishing: tuple[Request, ...], seen_s: float) -> None:
        """The last tokens of these requests are out, and their clients see them at seen_s."""
        replica, last_tokens, release = self._replica, self._last_tokens, self._scheduler.release
        results = self._results
        self._outlet.end(len(finishing))
        for request in finishing:
            last_tokens.forget(request)
            if self._hands_over and replica.hand_over(request):
                self._scheduler.park(request)
                continue
            index = request.index
            if not request.gone:
                results.last_token_s[index] = seen_s
                if not self._streams:
                    results.first_token_s[index] = seen_s
                results.status[index] = COMPLETED
            results.preemptions[index] = request.preemptions
            results.cached_tokens[index] = request.cached_tokens
            release(request)
            replica.finish(request)

    def drop_gone(self, ahead: Batch | None, now: float, start_s: float, first_s: float) -> None:
        """Free seats and blocks of requests whose clients are gone; of one that has a token scheduled, when that step
        has ended. ahead: The batch that was scheduled last, if it has not begun; None: nothing is scheduled."""
        scheduler = self._scheduler
        for request in self.gone:
            if request.retired:
                continue  # it ends by itself
            if not self._last_tokens.forget(request):
                if scheduler.withdraw(request):
                    self._replica.finish(request)
                continue
            scheduler.retire(request)
            leaving = scheduler.leaving(request)
            if ahead is not None:
                ahead.finishing += leaving
            elif leaving:
                self.process(Batch(finishing=leaving), now, start_s, first_s)
        self.gone.clear()

    def stop(self) -> None:
        """The run is cut off: note what unfinished requests had."""
        results, scheduler = self._results, self._scheduler
        held = scheduler.running_requests() + scheduler.holding_requests() + scheduler.waiting_requests()
        for request in held:
            results.preemptions[request.index] = request.preemptions
            results.cached_tokens[request.index] = max(0, request.cached_tokens)
