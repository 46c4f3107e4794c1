"""TensorRT-LLM, PyTorch backend, in-flight batching with the capacity policy GUARANTEED_NO_EVICT.

Context and generation requests share a step as in vLLM V1, first come first served. A request starts only if the cache
holds the worst case, its prompt and all the output it declares, beside the worst cases of all that run; so nothing is
ever preempted. Without chunked context a prompt runs in one step or waits.
"""

from __future__ import annotations

from simulator.batch import Batch
from simulator.request import Request
from simulator.rules import EngineRules
from simulator.schedulers.vllm_v1 import VllmV1


class TrtLlm(VllmV1):
    """See the module."""

    preempts = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self._uncommitted = rules.kv_blocks  # available blocks less what the running requests may still take

    def _worst_blocks(self, request: Request) -> int:
        """Blocks it holds at most, by what it declares."""
        rules = self.rules
        tokens = min(request.input_tokens + rules.max_output_tokens, rules.max_model_len)
        return min(-(-tokens // rules.block_size), rules.kv_blocks)

    def _held_blocks(self, request: Request) -> int:
        return max(-(-self.computed_tokens(request) // self.rules.block_size), request.shared_blocks)

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        worst = self._worst_blocks(request)
        if worst > self._uncommitted:
            self._refused = True  # decodes take what is committed to them: only a release helps
            return 0
        before = self.kv.available
        tokens = super()._admit_head(batch, request, budget)
        if tokens:
            self._uncommitted += self.kv.available - before - (worst - self._held_blocks(request))
        return tokens

    def release(self, request: Request) -> None:
        before, held = self.kv.available, self._held_blocks(request)
        super().release(request)
        self._uncommitted += self.kv.available - before + self._worst_blocks(request) - held

    def _preempt(self) -> None:
        raise RuntimeError("a cache in which every running request has its worst case reserved ran out of blocks")
