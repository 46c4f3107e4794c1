"""Speculative decoding in the schedulers of vLLM V1, TensorRT-LLM and SGLang.

Every decode brings its last token and all its drafts into a step; how many of them stay is known when the step has run
(vLLM rewinds num_computed_tokens by what was rejected). Here it is drawn when the step is scheduled, from the request's
own stream (acceptance.py), so that the round of its last token is foreseen as ever.

The requests that decode, where each advances by as many tokens as it has drafts accepted: one by one.
"""

from __future__ import annotations

from typing import Final

from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.core.speculation import AcceptedDrafts, SpeculationRules
from simulator.schedulers.continuous_batching import ContinuousBatching, DecodeSet
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.sglang import Sglang
from simulator.schedulers.trtllm import MaxUtilization, TrtLlm
from simulator.schedulers.vllm_v1 import VllmV1


class SpeculativeSet(DecodeSet):
    """Counts over decoding requests. A member has base_tokens + rounds tokens in its cache, as in a DecodeSet: its base
    grows with every token beyond one that a round gives it.

    Blocks are those of vLLM V1: a step that is scheduled while another is in flight counts all drafts of that as
    accepted; what is rejected later is not given back, but need not be taken again.
    """

    __slots__ = ("_longest_tokens", "_members", "_rules", "_slack", "accepted")

    def __init__(self, block_size: int, rules: SpeculationRules, lag: int, longest_tokens: int) -> None:
        super().__init__(block_size)
        self._members: dict[Request, AcceptedDrafts] = {}
        self._rules, self._slack, self._longest_tokens = rules, lag, longest_tokens
        self.accepted = 0  # drafts of the round scheduled last

    def add(self, request: Request) -> None:
        advances = request.advances
        assert advances is not None
        tokens = request.computed_tokens
        advances.before, advances.in_flight = tokens - 1, 0
        advances.held_blocks = max(-(-tokens // self._block_size), request.shared_blocks)
        request.base_tokens, request.decodes_in = tokens - self.rounds, self
        request.computed_tokens = -1
        self.n += 1
        self._members[request] = advances

    def remove(self, request: Request) -> None:
        advances = self._members.pop(request)
        self.n -= 1
        request.computed_tokens = request.base_tokens + self.rounds
        request.known_tokens = request.computed_tokens + 1
        request.spare_blocks = advances.held_blocks - self._least(request)

    def end(self, request: Request) -> int:
        """Its last token is scheduled: it leaves. Returns how many tokens of the round were beyond its end."""
        advances = self._members[request]
        surplus = advances.surplus if advances.round == advances.last_round else 0
        request.base_tokens -= surplus
        self.remove(request)
        return surplus

    def advance(self) -> None:
        accepted, rounds = 0, self.rounds
        for request, advances in self._members.items():
            advances.held_blocks = max(advances.held_blocks, self._needs(request, advances))
            advances.before = request.base_tokens + rounds
            more = advances.take() - 1
            request.base_tokens += more
            accepted += more
        self.accepted = accepted
        self.rounds = rounds + 1

    def contexts(self) -> tuple[int, int]:
        tokens = [request.base_tokens + self.rounds for request in self._members]
        return sum(tokens), max(tokens, default=0)

    def blocks_next(self) -> int:
        return sum(max(0, self._needs(r, advances) - advances.held_blocks) for r, advances in self._members.items())

    def blocks_for(self, rounds: int) -> int:
        if rounds > 1:
            raise ValueError("how many blocks speculative rounds need is known one by one")
        return self.blocks_next() if rounds else 0

    def _needs(self, request: Request, advances: AcceptedDrafts) -> int:
        """Blocks it holds in the next round."""
        rules = self._rules
        tokens = request.base_tokens + self.rounds + rules.queries + rules.lookahead_tokens
        if self._slack:
            tokens += advances.in_flight
        return -(-min(tokens, self._longest_tokens) // self._block_size)

    def _least(self, request: Request) -> int:
        """Blocks of its tokens alone."""
        return max(-(-request.computed_tokens // self._block_size), request.shared_blocks)


class Speculating(ContinuousBatching):
    """What a policy does differently; stands before it among the bases."""

    decodes: SpeculativeSet

    def __init__(self, rules: EngineRules) -> None:
        if rules.speculation is None:
            raise ValueError("a scheduler that speculates needs speculation rules")
        super().__init__(rules)
        self._speculation: SpeculationRules = rules.speculation
        self.decodes = SpeculativeSet(rules.block_size, rules.speculation, rules.lag, rules.max_model_len)
        self._newest: Batch | None = None  # scheduled last

    def add(self, request: Request) -> None:
        if request.advances is None:
            request.advances = AcceptedDrafts(self._speculation, request.index)
        super().add(request)

    def _with_drafts(self, batch: Batch | None) -> Batch | None:
        """What the policy has just scheduled."""
        self._newest = batch
        if batch is not None and batch.decodes:
            batch.queries, batch.accepted = self._speculation.queries, self.decodes.accepted
        return batch

    def _hits(self, request: Request) -> tuple[int, int, int, int]:
        units, own, queued, tokens = super()._hits(request)
        if not self._speculation.recomputes_block or not tokens:
            return units, own, queued, tokens
        left = tokens - self.rules.block_size  # the drafter needs the hidden states of what comes before the rest
        return (units, own - 1, queued - 1, left) if own else (units, own, queued, left)

    def retire(self, request: Request) -> None:
        surplus = self.decodes.end(request)
        if surplus and self._newest is not None:
            self._newest.accepted -= surplus
        request.retired = True

    def quiet_rounds(self, batch: Batch, most: int) -> int:  # noqa: ARG002 - every round has its own tokens
        return 0

    def held_blocks(self, request: Request) -> int:
        if request.computed_tokens < 0 and request.advances is not None:
            return request.advances.held_blocks
        return super().held_blocks(request) + request.spare_blocks

    def context_before(self, request: Request) -> int:
        return request.advances.before if request.advances is not None else super().context_before(request)


class SpeculativeV1(Speculating, VllmV1):
    """vLLM V1 with `--speculative-config`."""

    pipelines = False

    def schedule(self) -> Batch | None:
        return self._with_drafts(super().schedule())


class SpeculativeMaxUtilization(Speculating, MaxUtilization):
    """TensorRT-LLM with a speculative_config, MAX_UTILIZATION."""

    def schedule(self) -> Batch | None:
        return self._with_drafts(super().schedule())


class SpeculativeTrtLlm(Speculating, TrtLlm):
    """TensorRT-LLM with a speculative_config, GUARANTEED_NO_EVICT: a request's worst case has its drafts."""

    def schedule(self) -> Batch | None:
        return self._with_drafts(super().schedule())

    def _worst_blocks(self, request: Request) -> int:
        rules = self.rules
        tokens = request.input_tokens + rules.max_output_tokens + self._speculation.most_spare_tokens(rules.lag)
        return min(-(-min(tokens, rules.max_model_len) // rules.block_size), rules.kv_blocks)

    def _held_blocks(self, request: Request) -> int:
        return max(self.held_blocks(request), request.shared_blocks)


class SpeculativeSglang(Speculating, Sglang):
    """SGLang with `--speculative-algorithm`."""

    def schedule(self) -> Batch | None:
        return self._with_drafts(super().schedule())


#: By the policy they change.
SPECULATIVE: Final[dict[str, type[Speculating]]] = {
    "vllm-v1": SpeculativeV1,
    "trtllm": SpeculativeTrtLlm,
    "trtllm-max-utilization": SpeculativeMaxUtilization,
    "sglang": SpeculativeSglang,
}
