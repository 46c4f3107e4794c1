"""The step loop of plain runs, written as one loop over numbers: the same results in less time.

Most runs of a plan are plain: one replica, the policy of vLLM V1, SGLang or TensorRT-LLM, first come first served, no
feature besides batching, and arrivals that are known before the run. `StepLoop`, `TokenAccounting`, `TokenStream` and
SimPy's events carry out a step of such a run in many calls. `FastPath.serve` does the same with local variables, in the
same order and with the same arithmetic, so that the log and the times of the requests are equal to the last digit
(`tests/simulator/engine/test_fast_path.py`). It calls methods only for what does not happen in every step, because a
call in each step costs what the loop saves. A change of one of these classes has to be made here too.

What a step contains is decided by a `FastScheduler`: one of vLLM V1 alone (`fast_vllm.py`), its ranks in lockstep
(`fast_lockstep.py`), or one of SGLang (`fast_sglang.py`) or TensorRT-LLM (`fast_trtllm.py`). Where it cannot decide,
because a step would preempt a request or nothing can run although requests wait, `FastPath` writes its state into the
general loop, which continues from that step.

`RunOptions.fast_path = False` runs the general loop throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from simulator.core.batch import Batch
from simulator.core.outcomes import COMPLETED, UNFINISHED
from simulator.core.request import Request
from simulator.core.step_log import packed_row, packed_shares
from simulator.core.step_timer import elapsed_s, segment_of, step_at
from simulator.engine.context import EngineContext
from simulator.engine.fast_lockstep import FastLockstep
from simulator.engine.fast_rank import FastBatch, FastRank, FastScheduler, RequestCounts, StepEvents
from simulator.engine.fast_sglang import FastSglang
from simulator.engine.fast_trtllm import FastMaxUtilization, FastTrtLlm
from simulator.engine.fast_vllm import FastVllmV1
from simulator.engine.replica import Replica
from simulator.schedulers.base import Scheduler
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.data_parallel import Lockstep
from simulator.schedulers.sglang import Sglang
from simulator.schedulers.trtllm import MaxUtilization, TrtLlm
from simulator.schedulers.vllm.v1 import VllmV1

#: The scheduler of the fast path for each class of the general loop that it follows.
FAST_RANKS: Final[dict[type[Scheduler], type[FastRank]]] = {
    VllmV1: FastVllmV1,
    Sglang: FastSglang,
    TrtLlm: FastTrtLlm,
    MaxUtilization: FastMaxUtilization,
}


class FastPath:
    """One replica that serves requests in the order in which they arrive at the router."""

    def __init__(self, replica: Replica, context: EngineContext, input_tokens: list[int], refusals: bytes) -> None:
        """Create the loop of an idle replica.

        Args:
            replica: The replica, which has no feature besides batching (`simulator/cluster/plain_runs.py`).
            context: Its context.
            input_tokens: The prompt lengths by request index.
            refusals: By request index: 0, or the code of the reason why the request is rejected; empty: all 0.
        """
        self.n_answered = 0  # requests that were served or rejected
        self._replica, self._context, self._refusals = replica, context, refusals
        counts, rules, general = RequestCounts(input_tokens, context.output_tokens), context.rules, replica.scheduler
        self._lockstep = FastLockstep(rules, counts, general.dispatch) if isinstance(general, Lockstep) else None
        self._ranks: Sequence[FastRank] = (
            [FAST_RANKS[type(general)](rules, counts)] if self._lockstep is None else self._lockstep.ranks
        )
        self._scheduler: FastScheduler = self._ranks[0] if self._lockstep is None else self._lockstep
        # As TokenStream: when the last tokens have left, and when the loops of the API server are free, in seconds.
        self._left_s = self._free_s = self._late_s = 0.0

    # Each turn of the loop of `serve` takes the next event, which is one of these:
    # 1. A request arrives: it is rejected or added, and may cut the equal steps that run short.
    # 2. No request and no step is left: the loop ends.
    # 3. The steps on the device end: their tokens are streamed and logged, and finished requests leave.
    # After 3, or when an idle engine wakes, the batch that was scheduled ahead starts, and the next one is scheduled
    # (the general loop continues where that is impossible). The batch runs for as many steps as nothing changes in.
    def serve(self, order: list[int], times_s: list[float]) -> int:
        """Serve requests until all are answered or the general loop has to continue; return how many have arrived.

        If the general loop has to continue, its next event is scheduled, and the requests that have not arrived yet
        still have to.

        Args:
            order: The indices of the requests in the order in which they arrive at the router.
            times_s: The times at which they do, seconds, ascending.
        """
        scheduler, host, lag = self._scheduler, self._context.rules.host, self._context.rules.lag
        timer, lockstep, launch_s = self._context.timer, self._lockstep is not None, self._context.rules.held_launch_s
        cycle_s, decode_segment = timer.cycle_s, timer.decode_segment
        log = self._replica.step_loops[0].log
        add_row, add_shares = log.add_packed, log.add_packed_shares
        api_step_s, api_token_s, api_request_s = self._replica.outlet.times_s
        left_s = free_s = late_s = 0.0  # as TokenStream
        results, refusals, number = self._context.results, self._refusals, self._replica.index
        status, holder, routed_s, output_s = results.status, results.replica, results.routed_s, host.output_s

        # The batch on the device and, with lag 1, the one that follows it.
        current: FastBatch | None = None
        ahead: FastBatch | None = None
        events, ahead_events = StepEvents(), StepEvents()
        start_s = first_s = slope_s = total_s = 0.0
        steps, continues = 0, False  # continues: whether the general loop has to continue

        times_s = [*times_s, inf]
        n_arrived, arrival_s, end_s, now = 0, times_s[0], inf, 0.0  # end_s: the next event of the step loop
        while True:
            if arrival_s < end_s:  # a request arrives
                now, index = arrival_s, order[n_arrived]
                n_arrived += 1
                arrival_s = times_s[n_arrived]
                routed_s[index] = now
                if refusals and refusals[index]:
                    status[index] = refusals[index]
                    self.n_answered += 1
                else:
                    status[index], holder[index] = UNFINISHED, number
                    until = step_at(now, start_s, first_s, slope_s, steps) if steps > 1 else 1
                    if scheduler.add(index, until - 1) and until < steps:  # it cuts the run of steps
                        steps = until
                        total_s = elapsed_s(steps, first_s, slope_s)
                        end_s = start_s + total_s
                if end_s < inf or arrival_s == now or not scheduler.n_waiting:
                    continue  # an idle engine wakes after all arrivals of its time
            elif end_s == inf:
                break
            else:
                now = end_s
                if current is not None:  # the outputs of the step are processed
                    logits, behind_s = current.logits, 0.0
                    if logits:  # as TokenStream.stream
                        held_s = now
                        if launch_s and ahead is not None and ahead.prefill_tokens:  # as StepLoop._held_until_s
                            launches_s = 2.0 * launch_s if current.prefill_tokens else launch_s
                            held_s = now - (first_s + slope_s * (steps - 1)) + launches_s
                            if held_s < now:
                                held_s = now
                        work_s = logits * api_token_s
                        read_s = (held_s if steps == 1 else start_s + first_s) + api_step_s
                        left_s = held_s + api_step_s + work_s
                        full_s = (free_s if free_s > read_s else read_s) + steps * work_s
                        if full_s > left_s:
                            left_s = full_s
                        free_s = left_s
                        behind_s, late_s = left_s - now - late_s, left_s - now
                    add_row(
                        packed_row(
                            start_s, steps, current.prefill_tokens, current.prefill_pairs, current.prefill_chunks,
                            current.decodes, current.decode_context_sum, current.decode_context_max, 0, logits,
                            first_s, slope_s, total_s, 1, behind_s, 0,
                        )
                    )  # fmt: skip
                    if lockstep:
                        add_shares(packed_shares(current.parts))
                    if steps > 1:
                        scheduler.skip(steps - 1, ahead, events if ahead is None else ahead_events)
                    if current.prefill_tokens:
                        self._process_prompts(events, start_s, now, left_s + output_s)
                    if events.finishing:
                        free_s += len(events.finishing) * api_request_s
                        self._finish(events, now, left_s + output_s)

            # The batch that was scheduled ahead starts, and the next one is scheduled.
            current, ahead = ahead, None
            events, ahead_events = ahead_events, events
            batch = scheduler.schedule(ahead_events)
            if batch is None:
                if scheduler.preempts:
                    continues = True
                    break
                if current is None:  # the engine is idle
                    if scheduler.n_waiting:
                        continues = True
                        break
                    end_s, steps = inf, 0
                    continue
            elif current is not None:
                ahead = batch
            elif lag:  # an idle device waits for the host
                ahead = batch
                end_s = now + (host.step_s + host.step_s_per_sequence * (batch.decodes + batch.prefill_chunks))
                steps = 0
                continue
            else:
                current = batch
                events, ahead_events = ahead_events, events

            # The batch runs: one step, or as many as nothing changes in.
            start_s, steps, most = now, 1, 1
            if lockstep:
                first_s, slope_s, most = segment_of(timer, current.parts)
            elif current.prefill_tokens:
                first_s, slope_s = cycle_s(current), 0.0
            else:
                first_s, slope_s, most = decode_segment(
                    current.decodes, current.decode_context_sum, current.decode_context_max
                )
            if most > 1 and not events.finishing and not ahead_events.finishing:
                same = ahead is None or (not ahead.prefill_tokens and ahead.decodes == current.decodes)
                steps += scheduler.quiet_rounds(current, most - 1) if same else 0
            if not first_s > 0.0:
                raise RuntimeError(f"a step must take time: it takes {first_s} s with {current}")
            total_s = steps * first_s + slope_s * (0.5 * steps * (steps - 1))
            end_s = now + total_s

        self._left_s, self._free_s, self._late_s = left_s, free_s, late_s
        self._hand_over(now, current, events, continues)
        return n_arrived

    def _process_prompts(self, events: StepEvents, start_s: float, now: float, seen_s: float) -> None:
        """Record the times of the requests that a step admitted, and of those whose prompts it completed.

        Args:
            events: The events of the step, which are emptied.
            start_s: When the step began, seconds.
            now: Seconds.
            seen_s: When the clients receive the tokens of the step, seconds.
        """
        results = self._context.results
        for index in events.admitted:
            results.started_s[index] = start_s
        for index in events.prompted:
            results.prefilled_s[index] = now
            results.first_token_s[index] = seen_s
        events.admitted, events.prompted = [], []

    def _finish(self, events: StepEvents, now: float, seen_s: float) -> None:
        """Finish the requests whose last tokens a step computed; the arguments are those of `_process_prompts`."""
        results, scheduler = self._context.results, self._scheduler
        for index in events.finishing:
            results.last_token_s[index] = seen_s
            results.decoded_s[index] = now
            results.status[index] = COMPLETED
            scheduler.free(index)
        self.n_answered += len(events.finishing)
        events.finishing = []

    def _hand_over(self, now: float, current: FastBatch | None, events: StepEvents, continues: bool) -> None:
        """Write the state into the replica, its scheduler and its step loop.

        Args:
            now: Seconds.
            current: The batch that starts now, if any.
            events: Its events.
            continues: Whether the general loop has to continue.
        """
        replica, scheduler, loop = self._replica, self._replica.scheduler, self._replica.step_loops[0]
        own = [rank.requests(self._context.results) for rank in self._ranks]
        requests = {index: request for each in own for index, request in each.items()}
        self._context.clock.now = now
        replica.outstanding = len(requests)
        replica.outstanding_tokens = sum([request.input_tokens for request in requests.values()])
        replica.outlet.restore(self._left_s, self._free_s)
        if isinstance(scheduler, Lockstep):
            assert self._lockstep is not None
            self._lockstep.restore(scheduler, own)
        else:
            assert isinstance(scheduler, ContinuousBatching)
            self._ranks[0].restore(scheduler, requests)
        due, ending = [], []
        for rank, each in zip(self._ranks, own, strict=True):
            due += rank.last_tokens(each)
            ending += rank.ending(each)
        loop.restore(self._late_s, 0, max([rank.serial for rank in self._ranks]), due, ending)
        if continues:
            loop.resume(None if current is None else _general(current, events, requests), now)


def _general(batch: FastBatch, events: StepEvents, requests: dict[int, Request]) -> Batch:
    """Return a batch of the fast path as the general loop has it."""
    parts = tuple(None if part is None else _counts_of(part) for part in batch.parts)
    made = _counts_of(batch, parts)
    made.admitted = tuple(requests[index] for index in events.admitted)
    made.prompted = tuple(requests[index] for index in events.prompted)
    made.finishing = tuple(requests[index] for index in events.finishing)
    return made


def _counts_of(batch: FastBatch, parts: tuple[Batch | None, ...] = ()) -> Batch:
    return Batch(
        batch.prefill_tokens,
        batch.prefill_pairs,
        batch.prefill_chunks,
        batch.decodes,
        batch.decode_context_sum,
        batch.decode_context_max,
        batch.logits,
        1,
        parts,
    )
