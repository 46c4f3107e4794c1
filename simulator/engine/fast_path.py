"""The step loop of plain runs, written as one loop over numbers: the same results in less time.

Most runs of a plan are plain: one replica, vLLM V1's policy, first come first served, no feature besides batching, and
arrivals that are known before the run. `StepLoop`, `VllmV1`, `TokenAccounting` and SimPy's events decide such a run in
about fifty calls a step. `FastPath` takes the same decisions with local variables, in the same order and with the same
arithmetic, so that the log and the times of the requests are equal to the last digit
(`tests/simulator/engine/test_fast_path.py`). A change of one of these classes therefore has to be made here too.

The general loop handles everything that is rare: where a step would preempt a request, and where nothing can run
although requests wait, `FastPath` writes its state into the scheduler and the step loop, which continue from that step.

`RunOptions.fast_path = False` runs the general loop throughout.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf, isnan

from simulator.core.batch import Batch
from simulator.core.outcomes import COMPLETED, UNFINISHED
from simulator.core.request import Request
from simulator.core.step_log import packed_row
from simulator.core.step_timer import elapsed_s, step_at
from simulator.engine.context import EngineContext
from simulator.engine.replica import Replica
from simulator.schedulers.completion_rounds import NEVER
from simulator.schedulers.continuous_batching import blocks_of_rounds
from simulator.schedulers.vllm_v1 import VllmV1

#: A step with prompts: its batch, the requests that are admitted in it, and those whose prompts it completes.
_Prompts = tuple[Batch, list[int], list[int]]


@dataclass(slots=True)
class _Decodes:
    """The decoding requests as sums, as `DecodeSet` and `CompletionRounds` keep them, by index of the request."""

    phases: list[int]
    longest: list[tuple[int, int, int]]  # heap of (-base tokens, serial, index)
    due: list[tuple[int, int, int]]  # heap of (round of the last token, serial, index)
    bases: list[int]
    computed: list[int]  # tokens of each request that has scheduled its last token; -1: it has not
    n: int = 0
    base_sum: int = 0
    rounds: int = 0
    batches: int = 0  # batches with decodes, which CompletionRounds counts
    serial: int = 0


@dataclass(slots=True)
class _Position:
    """What the general loop needs in order to continue, besides the decoding requests; requests are indices."""

    now: float
    waiting: deque[int]
    running: dict[int, None]
    partial: int
    partial_tokens: int
    available: int
    min_available: int
    least_left: int
    most_running: int
    refused: bool
    streamed: tuple[float, float, float]  # TokenStream.left_s, when its loops are free, and the delay of the last token
    current: Batch | None
    events: tuple[list[int], list[int], list[int]]  # admitted, prompted and finishing requests of the current batch


class FastPath:
    """One replica that serves requests in the order in which they arrive at the router."""

    def __init__(self, replica: Replica, context: EngineContext, input_tokens: list[int], refusals: bytes) -> None:
        """Create the loop of an idle replica.

        Args:
            replica: The replica, which has no feature besides batching (`simulator/cluster/open_loop.py`).
            context: Its context.
            input_tokens: The prompt lengths by request index.
            refusals: By request index: 0, or the code of the reason why the request is rejected; empty: all 0.
        """
        self.n_answered = 0  # requests that were served or rejected
        self._replica, self._context = replica, context
        self._input_tokens, self._refusals = input_tokens, refusals

    def serve(self, order: list[int], times_s: list[float]) -> int:
        """Serve requests until all are answered or the general loop has to continue; return how many have arrived.

        If the general loop has to continue, its next event is scheduled, and the requests that have not arrived yet
        still have to.

        Args:
            order: The indices of the requests in the order in which they arrive at the router.
            times_s: The times at which they do, seconds, ascending.
        """
        replica, context, results = self._replica, self._context, self._context.results
        rules, host, timer, number = context.rules, context.rules.host, context.timer, replica.index
        cycle_s, decode_segment, add_row = timer.cycle_s, timer.decode_segment, replica.step_loops[0].log.add_packed
        input_tokens, output_tokens, refusals = self._input_tokens, context.output_tokens, self._refusals
        size, seats, budget_tokens, lag = rules.block_size, rules.max_num_seqs, rules.max_num_batched_tokens, rules.lag
        whole_prompts, output_s = rules.admit_whole_prompt, host.output_s
        api_step_s, api_token_s, api_request_s = replica.outlet.times_s
        routed_s, started_s, prefilled_s = results.routed_s, results.started_s, results.prefilled_s
        first_token_s, last_token_s, decoded_s = results.first_token_s, results.last_token_s, results.decoded_s
        status, holder = results.status, results.replica

        state = _Decodes([0] * size, [], [], [0] * len(input_tokens), [-1] * len(input_tokens))
        phases, longest, due, bases, computed = state.phases, state.longest, state.due, state.bases, state.computed
        n_decoding = base_sum = rounds = batches = serial = 0
        waiting, running = deque[int](), dict[int, None]()
        partial, partial_tokens = -1, 0  # the running request whose prompt is unfinished; -1: none
        available = min_available = least_left = rules.kv_blocks
        most_running, refused, due_round = 0, False, NEVER
        refusal = (-1, 0, 0)  # the last refusal for lack of blocks: (index, budget, available blocks)
        left_s = free_s = late_s = 0.0

        # The batch on the device and, with lag 1, the one that follows it.
        on_device = has_next = False
        decodes = context_sum = context_max = logits = 0
        prompts: _Prompts | None = None
        finishing: list[int] = []
        next_decodes = next_sum = next_max = 0
        next_prompts: _Prompts | None = None
        next_finishing: list[int] = []
        start_s = first_s = slope_s = total_s = 0.0
        planned = planned_blocks = 0  # rounds to skip when the run of steps began, and the blocks that they need
        steps, continues = 0, False  # continues: whether the general loop has to continue

        times_s = [*times_s, inf]
        n_arrived, arrival_s, end_s, now = 0, times_s[0], inf, 0.0  # end_s: the next event of the step loop
        while True:
            if arrival_s < end_s:
                now, index = arrival_s, order[n_arrived]
                n_arrived += 1
                arrival_s = times_s[n_arrived]
                routed_s[index] = now
                if refusals and refusals[index]:
                    status[index] = refusals[index]
                    self.n_answered += 1
                else:
                    status[index], holder[index] = UNFINISHED, number
                    waiting.append(index)
                    if steps > 1 and not refused and len(running) < seats and n_decoding < budget_tokens:
                        until = step_at(now, start_s, first_s, slope_s, steps)
                        if until < steps:
                            steps = until
                            total_s = elapsed_s(steps, first_s, slope_s)
                            end_s = start_s + total_s
                if end_s < inf or not waiting or arrival_s == now:
                    continue  # an idle engine wakes after all arrivals of its time
            elif end_s == inf:
                break
            else:
                now = end_s
                if on_device:
                    behind_s = 0.0
                    if logits:
                        # As TokenStream.stream
                        work_s = logits * api_token_s
                        read_s = (now if steps == 1 else start_s + first_s) + api_step_s
                        left_s = now + api_step_s + work_s
                        full_s = (free_s if free_s > read_s else read_s) + steps * work_s
                        if full_s > left_s:
                            left_s = full_s
                        free_s = left_s
                        behind_s, late_s = left_s - now - late_s, left_s - now
                    if prompts is None:
                        add_row(
                            packed_row(
                                start_s, steps, 0, 0.0, 0, decodes, context_sum, context_max, 0, logits,
                                first_s, slope_s, total_s, 1, behind_s, 0,
                            )
                        )  # fmt: skip
                    else:
                        batch = prompts[0]
                        add_row(
                            packed_row(
                                start_s, 1, batch.prefill_tokens, batch.prefill_pairs, batch.prefill_chunks, decodes,
                                context_sum, context_max, 0, logits, first_s, 0.0, total_s, 1, behind_s, 0,
                            )
                        )  # fmt: skip
                    if steps > 1:  # the schedule calls that were skipped
                        skipped = steps - 1
                        if skipped != planned:
                            planned_blocks = blocks_of_rounds(phases, n_decoding, rounds, skipped)
                        if blocks := planned_blocks:
                            available -= blocks
                            if available < min_available:
                                min_available = available
                        rounds += skipped
                        batches += skipped
                        if has_next:
                            next_sum += skipped * next_decodes
                            next_max += skipped
                        if due_round <= batches:
                            ending = next_finishing if has_next else finishing
                            while due and due[0][0] <= batches:
                                index = heappop(due)[2]
                                base = bases[index]
                                n_decoding -= 1
                                base_sum -= base
                                phases[base % size] -= 1
                                computed[index] = base + rounds
                                ending.append(index)
                            due_round = due[0][0] if due else NEVER
                    if prompts is not None or finishing:
                        seen_s = left_s + output_s
                        if prompts is not None:
                            for index in prompts[1]:
                                started_s[index] = start_s
                            for index in prompts[2]:
                                prefilled_s[index] = now
                                first_token_s[index] = seen_s
                        if finishing:
                            free_s += len(finishing) * api_request_s
                            for index in finishing:
                                last_token_s[index] = seen_s
                                decoded_s[index] = now
                                status[index] = COMPLETED
                                available += -(-computed[index] // size)
                                del running[index]
                            self.n_answered += len(finishing)

            # The batch that was scheduled ahead starts.
            on_device = has_next
            if has_next:
                decodes, context_sum, context_max, prompts = next_decodes, next_sum, next_max, next_prompts
                finishing, has_next = next_finishing, False
                logits = decodes if prompts is None else prompts[0].logits

            # Schedule: decodes, then the unfinished prompt, then waiting requests.
            blocks = phases[-rounds % size] if n_decoding else 0
            budget = budget_tokens - n_decoding
            chunk = more = 0
            if partial >= 0:
                chunk = input_tokens[partial] - partial_tokens
                if chunk > budget:
                    chunk = budget
                more = -(-(partial_tokens + chunk) // size) - -(-partial_tokens // size)
            if blocks + more > available:  # a request has to be preempted
                continues = True
                break
            if n_decoding:
                while computed[longest[0][2]] >= 0:
                    heappop(longest)
                next_sum, next_max = base_sum + n_decoding * rounds, rounds - longest[0][0]
            else:
                next_sum = next_max = 0
            next_decodes, next_prompts, next_finishing = n_decoding, None, []
            available -= blocks + more
            rounds += 1
            refused = False
            if chunk or waiting:
                prefill_tokens, chunks, pairs = 0, 0, 0.0
                admitted: list[int] = []
                prompted: list[int] = []
                index = partial
                room = seats - len(running)
                while True:
                    if not chunk:  # admit the head of the queue
                        if not waiting or budget <= 0 or room <= 0:
                            break
                        index = waiting[0]
                        if index == refusal[0] and budget >= refusal[1] and available <= refusal[2]:
                            refused = True
                            break
                        tokens = input_tokens[index]
                        chunk = tokens if tokens < budget else budget
                        needed, whole = -(-chunk // size), -(-tokens // size)
                        if whole_prompts and whole > needed:
                            if available - whole < least_left:
                                least_left = available - whole
                            if whole > available:
                                needed = whole
                        if needed > available:
                            refused, least_left, refusal = True, -1, (index, budget, available)
                            break
                        waiting.popleft()
                        running[index] = None
                        room -= 1
                        available -= needed
                        admitted.append(index)
                        partial_tokens = 0
                    prefill_tokens += chunk
                    pairs += chunk * (partial_tokens + 0.5 * chunk)
                    chunks += 1
                    budget -= chunk
                    partial_tokens += chunk
                    chunk = 0
                    if partial_tokens < input_tokens[index]:
                        partial = index
                        continue
                    partial = -1
                    prompted.append(index)
                    bases[index] = base = partial_tokens - rounds
                    n_decoding += 1
                    base_sum += base
                    phases[base % size] += 1
                    serial += 1
                    heappush(longest, (-base, serial, index))
                if len(running) > most_running:
                    most_running = len(running)
                if prefill_tokens:
                    ready = next_decodes + len(prompted)
                    batch = Batch(prefill_tokens, pairs, chunks, next_decodes, next_sum, next_max, ready)
                    next_prompts = (batch, admitted, prompted)
            if available < min_available:
                min_available = available
            if not next_decodes and next_prompts is None:
                rounds -= 1
                if not on_device:  # the engine is idle
                    if waiting:
                        continues = True
                        break
                    end_s, steps = inf, 0
                    continue
            else:
                has_next = True
                if next_decodes:
                    batches += 1
                    while due and due[0][0] <= batches:
                        index = heappop(due)[2]
                        base = bases[index]
                        n_decoding -= 1
                        base_sum -= base
                        phases[base % size] -= 1
                        computed[index] = base + rounds
                        next_finishing.append(index)
                if next_prompts is not None:
                    for index in next_prompts[2]:
                        rest = output_tokens[index] - 1
                        if rest:
                            heappush(due, (batches + rest, serial, index))
                            serial += 1
                            continue
                        base = bases[index]
                        n_decoding -= 1
                        base_sum -= base
                        phases[base % size] -= 1
                        computed[index] = base + rounds
                        next_finishing.append(index)
                due_round = due[0][0] if due else NEVER
                if not on_device:
                    if lag:  # an idle device waits for the host
                        sequences = next_decodes + (0 if next_prompts is None else next_prompts[0].prefill_chunks)
                        end_s, steps = now + (host.step_s + host.step_s_per_sequence * sequences), 0
                        continue
                    decodes, context_sum, context_max, prompts = next_decodes, next_sum, next_max, next_prompts
                    finishing, has_next, on_device = next_finishing, False, True
                    logits = decodes if prompts is None else prompts[0].logits

            # The batch runs: one step, or as many as nothing changes in.
            start_s, steps = now, 1
            if prompts is not None:
                first_s, slope_s = cycle_s(prompts[0]), 0.0
            else:
                first_s, slope_s, most = decode_segment(decodes, context_sum, context_max)
                quiet = due_round - batches if due else 0
                if quiet >= most:
                    quiet = most - 1
                if (
                    quiet > 0
                    and not finishing
                    and n_decoding == decodes
                    and partial < 0
                    and (not has_next or (next_prompts is None and not next_finishing and next_decodes == decodes))
                    and (not waiting or refused or len(running) >= seats or n_decoding >= budget_tokens)
                ):
                    planned_blocks = blocks_of_rounds(phases, n_decoding, rounds, quiet)
                    left = available - planned_blocks
                    if left < least_left:
                        least_left = left
                    if left < 0:  # as many rounds as there are blocks for
                        low, high = 0, quiet
                        while high - low > 1:
                            middle = (low + high) // 2
                            if blocks_of_rounds(phases, n_decoding, rounds, middle) <= available:
                                low = middle
                            else:
                                high = middle
                        quiet = low
                        planned_blocks = blocks_of_rounds(phases, n_decoding, rounds, quiet)
                    steps += quiet
                    planned = quiet
            if not first_s > 0.0:
                raise RuntimeError(f"a step must take time: it takes {first_s} s with {decodes} decodes")
            total_s = steps * first_s + slope_s * (0.5 * steps * (steps - 1))
            end_s = now + total_s

        state.n, state.base_sum, state.rounds = n_decoding, base_sum, rounds
        state.batches, state.serial = batches, serial
        current: Batch | None = None
        if continues and on_device:
            current = Batch(0, 0.0, 0, decodes, context_sum, context_max, logits) if prompts is None else prompts[0]
        self._leave(
            _Position(
                now,
                waiting,
                running,
                partial,
                partial_tokens,
                available,
                min_available,
                least_left,
                most_running,
                refused,
                (left_s, free_s, late_s),
                current,
                ([], [], finishing) if prompts is None else (prompts[1], prompts[2], finishing),
            ),
            state,
        )
        if continues:
            replica.step_loops[0].resume(current, now)
        return n_arrived

    def _leave(self, at: _Position, decodes: _Decodes) -> None:
        """Write the state into the replica, its scheduler and its step loop."""
        replica, context = self._replica, self._context
        scheduler, loop = replica.scheduler, replica.step_loops[0]
        assert isinstance(scheduler, VllmV1)
        requests = {index: self._request(index, at, decodes) for index in (*at.running, *at.waiting)}
        for index, request in requests.items():
            if index in at.running and index != at.partial:
                request.decodes_in = scheduler.decodes
        context.clock.now = at.now
        replica.outstanding = len(requests)
        replica.outstanding_tokens = sum([request.input_tokens for request in requests.values()])
        replica.outlet.restore(*at.streamed[:2])
        scheduler.restore(
            [requests[index] for index in at.waiting],
            [requests[index] for index in at.running],
            requests.get(at.partial),
            at.most_running,
            at.least_left,
            at.refused,
        )
        scheduler.kv.restore(at.available, at.min_available)
        live = [(base, serial, requests[i]) for base, serial, i in decodes.longest if decodes.computed[i] < 0]
        scheduler.decodes.restore(decodes.n, decodes.rounds, decodes.base_sum, decodes.phases, live, decodes.serial)
        ending = [requests[index] for index in at.running if decodes.computed[index] >= 0]
        due = [(last, serial, requests[index]) for last, serial, index in decodes.due]
        loop.restore(at.streamed[2], decodes.batches, decodes.serial, due, ending)
        if at.current is not None:
            for name, indices in zip(("admitted", "prompted", "finishing"), at.events, strict=True):
                setattr(at.current, name, tuple(requests[index] for index in indices))

    def _request(self, index: int, at: _Position, decodes: _Decodes) -> Request:
        """Return a request that waits or runs."""
        request = Request(index, self._input_tokens[index])
        request.reached_s = self._context.results.routed_s[index]
        if index not in at.running:
            return request
        request.cached_tokens = 0
        request.emitted = not isnan(self._context.results.prefilled_s[index])
        if index == at.partial:
            request.computed_tokens = at.partial_tokens
            return request
        request.base_tokens = decodes.bases[index]
        request.computed_tokens = ended = decodes.computed[index]  # -1 marks a request that decodes
        if ended >= 0:
            request.retired, request.known_tokens = True, ended + 1
        return request
