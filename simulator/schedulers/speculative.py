"""Speculative decoding in the schedulers of vLLM V1, TensorRT-LLM and SGLang.

Every decode brings its last token and all its drafts into a step; how many of them stay is known when the step has run
(vLLM rewinds num_computed_tokens by what was rejected). Here it is drawn when the step is scheduled, from the request's
own stream (acceptance.py), so that the round of its last token is foreseen as ever.
"""

from __future__ import annotations

from typing import Final

from simulator.acceptance import Advances
from simulator.batch import Batch
from simulator.request import Request
from simulator.rules import EngineRules
from simulator.schedulers.batching import ContinuousBatching
from simulator.schedulers.sglang import Sglang
from simulator.schedulers.trtllm import MaxUtilization, TrtLlm
from simulator.schedulers.vllm_v1 import VllmV1
from simulator.speculative_rules import SpeculationRules
from simulator.speculative_set import SpeculativeSet


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
            request.advances = Advances(self._speculation, request.index)
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
