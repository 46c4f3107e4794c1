"""The ranks of the fast path that step together: the decisions of `Lockstep` on numbers.

Each rank is a `FastVllmV1`. Requests are assigned to ranks by the dispatch policy of the general loop itself
(`simulator/schedulers/dp_dispatch.py`).
"""

from __future__ import annotations

from simulator.core.request import Request
from simulator.engine.fast_rank import FastBatch, FastScheduler, RequestCounts, StepEvents, two_batches
from simulator.engine.fast_vllm import FastVllmV1
from simulator.schedulers.data_parallel import Lockstep
from simulator.schedulers.dp_dispatch import RankDispatch
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1 import VllmV1


class FastLockstep(FastScheduler):
    """Several ranks whose steps begin together."""

    __slots__ = ("_batch", "_dispatch", "_going", "_input_tokens", "_place", "ranks")

    def __init__(self, rules: EngineRules, counts: RequestCounts, dispatch: RankDispatch) -> None:
        """Create idle ranks; `rules` are those of the whole group."""
        super().__init__()
        self.ranks = [FastVllmV1(rules.of_rank(), counts) for _ in range(rules.attention_ranks)]
        self._dispatch, self._input_tokens = dispatch, counts.input
        self._place: dict[int, int] = {}  # the rank of each unfinished request
        self._batch = two_batches()
        self._going: list[
            FastVllmV1
        ] = []  # the ranks of a run of steps; an idle rank may get a request in the meantime

    @property
    def n_waiting(self) -> int:
        """Return the number of waiting requests, on all ranks."""
        return sum([rank.n_waiting for rank in self.ranks])

    def add(self, index: int, ahead: int) -> bool:
        """Assign a request to a rank; return whether it could be admitted before anything is released."""
        for rank in self.ranks:
            rank.ahead = ahead
        place = self._dispatch.choose(index, self.ranks)
        rank = self.ranks[place]
        self._place[index] = place
        rank.n_requests += 1
        rank.prompt_tokens += self._input_tokens[index]
        rank.idle = False
        return rank.add(index, ahead)

    def free(self, index: int) -> None:
        """Free the seat and the blocks of a request whose last output has been processed."""
        rank = self.ranks[self._place.pop(index)]
        rank.n_requests -= 1
        rank.prompt_tokens -= self._input_tokens[index]
        rank.free(index)

    def schedule(self, events: StepEvents) -> FastBatch | None:
        """Return the batches of all ranks as one; no rank schedules if one of them has to preempt a request."""
        for rank in self.ranks:
            if rank.available < rank.ample_blocks and rank.lacks_blocks():
                self.preempts = True
                return None
        batch = self._batch
        parts: list[FastBatch | None] = []
        chunks = tokens = decodes = logits = 0
        pairs, context_sum, context_max = 0.0, 0.0, 0.0
        for rank in self.ranks:
            part = None
            if not rank.idle:
                part = rank.schedule(events)
                if part is None:
                    rank.idle = not rank.n_running and not rank.n_waiting
                else:
                    logits += part.logits
                    if part.decodes:
                        decodes += part.decodes
                        context_sum += part.decode_context_sum
                        if part.decode_context_max > context_max:
                            context_max = part.decode_context_max
                    if part.prefill_tokens:
                        tokens += part.prefill_tokens
                        pairs += part.prefill_pairs
                        chunks += part.prefill_chunks
            parts.append(part)
        if not logits and not tokens:
            return None
        batch.parts, batch.decodes, batch.logits = parts, decodes, logits
        batch.decode_context_sum, batch.decode_context_max = context_sum, context_max
        batch.prefill_tokens, batch.prefill_pairs, batch.prefill_chunks = tokens, pairs, chunks
        self._batch = batch.next
        return batch

    def quiet_rounds(self, batch: FastBatch, most: int) -> int:
        """Return the number of further decode steps (0 to `most`) that need no decision on any rank."""
        for rank in self.ranks:
            until = rank.due_round - rank.rounds
            most = until if until < most else most
        going: list[FastVllmV1] = []
        for rank, part in zip(self.ranks, batch.parts, strict=True):
            if most <= 0:
                return 0
            if part is not None:
                going.append(rank)
                most = rank.quiet_rounds(part, most)
            elif not rank.idle:
                return 0
        self._going = going
        return most

    def skip(self, rounds: int, ahead: FastBatch | None, events: StepEvents) -> None:
        """Apply schedule calls that a run of steps has skipped."""
        for rank in self._going:
            rank.skip(rounds, None, events)
        if ahead is not None:
            ahead.decode_context_sum += rounds * ahead.decodes
            ahead.decode_context_max += rounds
            for part in ahead.parts:
                if part is not None:
                    part.decode_context_sum += rounds * part.decodes
                    part.decode_context_max += rounds

    def restore(self, scheduler: Lockstep, requests: list[dict[int, Request]]) -> None:
        """Write the state into a scheduler; `requests` are those of each rank (`FastRank.requests`)."""
        places = {request: place for place, own in enumerate(requests) for request in own.values()}
        scheduler.restore(places, [rank.idle for rank in self.ranks])
        for rank, own, general in zip(self.ranks, requests, scheduler.ranks, strict=True):
            assert isinstance(general, VllmV1)
            rank.restore(general, own)
