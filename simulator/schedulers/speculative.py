"""Speculative decoding in the schedulers of vLLM V1, TensorRT-LLM and SGLang.

Every decode brings its last token and all its drafts into a step. The number of accepted drafts is known when the step
has run (vLLM rewinds num_computed_tokens by the rejected drafts). Here it is drawn when the step is scheduled, from the
request's own random stream (`simulator.core.speculation`), so that the round of its last token is known in advance as
without drafts.
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
from simulator.schedulers.vllm.v1 import VllmV1
from simulator.schedulers.vllm.v1_lora import LoraV1


class SpeculativeSet(DecodeSet):
    """Counts over decoding requests that each advance by a different number of tokens.

    A member has base_tokens + rounds tokens in its cache, as in a `DecodeSet`. Its base grows with every token beyond
    the first that a round gives it.

    Blocks are those of vLLM V1: a step that is scheduled while another is in flight counts all drafts of that step as
    accepted. Blocks of drafts that are rejected later are not freed, but need not be taken again.
    """

    def __init__(self, block_size: int, rules: SpeculationRules, lag: int, longest_tokens: int) -> None:
        super().__init__(block_size)
        self._members: dict[Request, AcceptedDrafts] = {}
        self._rules, self._slack, self._longest_tokens = rules, lag, longest_tokens
        self.accepted = 0  # accepted drafts of the last scheduled round
        self.adapted = 0  # members that brought drafts into that round and have an adapter

    def add(self, request: Request) -> None:
        """Add a request with `request.computed_tokens` tokens in its cache, which decodes from the next round on."""
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
        """Remove a request and restore its token counts."""
        advances = self._members.pop(request)
        self.n -= 1
        request.computed_tokens = request.base_tokens + self.rounds
        request.known_tokens = request.computed_tokens + 1
        least = max(-(-request.computed_tokens // self._block_size), request.shared_blocks)
        request.spare_blocks = advances.held_blocks - least

    def end(self, request: Request) -> int:
        """Remove a request whose last token is scheduled; return the tokens of its round that are beyond its end."""
        advances = self._members[request]
        surplus = advances.surplus if advances.round == advances.last_round else 0
        request.base_tokens -= surplus
        self.remove(request)
        return surplus

    def advance(self) -> None:
        """Count a scheduled round and draw the accepted drafts of every request."""
        accepted, rounds, undrafted, adapted = 0, self.rounds, 0, 0
        for request, advances in self._members.items():
            advances.held_blocks = max(advances.held_blocks, self._needs(request, advances))
            advances.before = request.base_tokens + rounds
            more = advances.take() - 1
            request.base_tokens += more
            accepted += more
            undrafted += not advances.drafted
            adapted += advances.drafted and request.adapter >= 0
        self.accepted, self.adapted = accepted, adapted
        self.undrafted = undrafted
        self.rounds = rounds + 1

    def contexts(self) -> tuple[int, int]:
        """Return (sum, maximum) of the tokens in the caches of all members before the next round."""
        tokens = [request.base_tokens + self.rounds for request in self._members]
        return sum(tokens), max(tokens, default=0)

    def blocks_next(self) -> int:
        """Return the blocks that the next round needs."""
        return sum(max(0, self._needs(r, advances) - advances.held_blocks) for r, advances in self._members.items())

    def blocks_for(self, rounds: int) -> int:
        """Return the blocks that the next round needs.

        Raises:
            ValueError: More than one round is requested, because rounds are drawn one by one.
        """
        if rounds > 1:
            raise ValueError("the blocks of speculative rounds are known only one round ahead")
        return self.blocks_next() if rounds else 0

    def _needs(self, request: Request, advances: AcceptedDrafts) -> int:
        """Return the blocks that a request holds in the next round."""
        rules = self._rules
        tokens = request.base_tokens + self.rounds + rules.queries + rules.lookahead_tokens
        if self._slack:
            tokens += advances.in_flight
        return -(-min(tokens, self._longest_tokens) // self._block_size)


class Speculating(ContinuousBatching):
    """The common part of speculative policies; it precedes the policy among the base classes."""

    pipelines = False
    decodes: SpeculativeSet

    def __init__(self, rules: EngineRules) -> None:
        assert rules.speculation is not None
        super().__init__(rules)
        self._speculation: SpeculationRules = rules.speculation
        self.decodes = SpeculativeSet(rules.block_size, rules.speculation, rules.lag, rules.max_model_len)
        self._newest: Batch | None = None  # the last scheduled batch

    def add(self, request: Request) -> None:
        """Add a request, with its stream of accepted drafts."""
        if request.advances is None:
            request.advances = AcceptedDrafts(self._speculation, request.index)
        super().add(request)

    def schedule(self) -> Batch | None:
        """Return the batch that the policy schedules next, with the drafts added, or None if nothing can run."""
        self._newest = batch = super().schedule()  # type: ignore[safe-super]  # the policy's own
        if batch is not None and batch.decodes:
            batch.queries, batch.accepted = self._speculation.queries, self.decodes.accepted
            batch.undrafted = self.decodes.undrafted
        return batch

    def _hits(self, request: Request) -> tuple[int, int, int, int]:
        units, own, queued, tokens = super()._hits(request)
        if not self._speculation.recomputes_block or not tokens:
            return units, own, queued, tokens
        left = tokens - self.rules.block_size  # the drafter needs the hidden states of the tokens before the rest
        return (units, own - 1, queued - 1, left) if own else (units, own, queued, left)

    def retire(self, request: Request) -> None:
        """Stop scheduling a request whose last token has just been scheduled."""
        surplus = self.decodes.end(request)
        if surplus and self._newest is not None:
            self._newest.accepted -= surplus
        request.retired = True

    def quiet_rounds(self, batch: Batch, most: int) -> int:  # noqa: ARG002 (every round gives other tokens)
        """Return 0, because every round gives a different number of tokens."""
        return 0

    def held_blocks(self, request: Request) -> int:
        """Return the blocks that a running request holds, those of its drafts included."""
        if request.computed_tokens < 0 and request.advances is not None:
            return request.advances.held_blocks
        return super().held_blocks(request) + request.spare_blocks

    def context_before(self, request: Request) -> int:
        """Return the tokens that a decoding request had in its cache before the last scheduled round."""
        return request.advances.before if request.advances is not None else super().context_before(request)


class SpeculativeV1(Speculating, VllmV1):
    """The scheduler of vLLM V1 started with `--speculative-config`."""


class SpeculativeLoraV1(Speculating, LoraV1):
    """vLLM V1 with `--speculative-config` and LoRA adapters, which apply to the target alone.

    The drafts of a request are verified with its adapter.
    """

    pipelines = False

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, with the adapters of its tokens and drafts, or None if nothing can run."""
        batch = super().schedule()
        if batch is not None and batch.moves is not None:
            batch.moves.adapter_tokens += self.decodes.adapted * (self._speculation.queries - 1)
        return batch

    def retire(self, request: Request) -> None:
        """Stop scheduling a request whose last token has just been scheduled."""
        self._drop(request.adapter)
        super().retire(request)


class SpeculativeMaxUtilization(Speculating, MaxUtilization):
    """TensorRT-LLM with a speculative_config and MAX_UTILIZATION."""


class SpeculativeTrtLlm(Speculating, TrtLlm):
    """The scheduler of TensorRT-LLM with a speculative_config and GUARANTEED_NO_EVICT."""


class SpeculativeSglang(Speculating, Sglang):
    """The scheduler of SGLang started with `--speculative-algorithm`."""

    def _declared_by_decodes(self) -> int:
        return self._declared(self._decoding())  # each request advances by another number of tokens


#: Speculative schedulers by the policy that they extend.
SPECULATIVE: Final[dict[str, type[Speculating]]] = {
    "vllm-v1": SpeculativeV1,
    "trtllm": SpeculativeTrtLlm,
    "trtllm-max-utilization": SpeculativeMaxUtilization,
    "sglang": SpeculativeSglang,
}
