"""The schedulers of the fast path for TensorRT-LLM: `FastVllmV1` with the admission of its capacity policies.

A change of `MaxUtilization` or `TrtLlm` has to be made here too; `tests/simulator/engine/test_fast_path.py` compares
them to the last digit. Ranks that balance their prompts stay with the general loop.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.core.request import Request
from simulator.engine.fast_rank import RequestCounts
from simulator.engine.fast_vllm import FastVllmV1
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.trtllm import TrtLlm


class FastMaxUtilization(FastVllmV1):
    """The capacity policy MAX_UTILIZATION: a request starts if its whole prompt fits now."""

    __slots__ = ()

    def __init__(self, rules: EngineRules, counts: RequestCounts) -> None:
        """Create an idle scheduler."""
        super().__init__(replace(rules, admit_whole_prompt=True), counts)


class FastTrtLlm(FastMaxUtilization):
    """The capacity policy GUARANTEED_NO_EVICT: a request starts if there are blocks for its longest output."""

    __slots__ = ("_free_blocks", "_longest_tokens", "_most_output")

    def __init__(self, rules: EngineRules, counts: RequestCounts) -> None:
        """Create an idle scheduler."""
        super().__init__(rules, counts)
        self._free_blocks = rules.kv_blocks  # `Commitments.free_blocks`
        self._most_output, self._longest_tokens = rules.max_output_tokens, rules.max_model_len

    def free(self, index: int) -> None:
        """Free the seat and the blocks of a request whose last output has been processed."""
        super().free(index)
        self._free_blocks += self._worst_blocks(index)

    def _worst_blocks(self, index: int) -> int:
        """Return the most blocks that a request can hold, by its declared output."""
        tokens = min(self._input_tokens[index] + self._most_output, self._longest_tokens)
        return min(-(-tokens // self._size), self._total)

    def _admit(self, budget: int) -> int:
        if len(self._running) >= self._seats:
            return 0
        worst = self._worst_blocks(self._waiting[0])
        if worst > self._free_blocks:
            self._refused = True
            return 0
        chunk = super()._admit(budget)
        if chunk:
            self._free_blocks -= worst
        return chunk

    def restore(self, scheduler: ContinuousBatching, requests: dict[int, Request]) -> None:
        """Write the state into the scheduler of the same policy; `requests` are those of `requests()`."""
        super().restore(scheduler, requests)
        assert isinstance(scheduler, TrtLlm)
        scheduler.restore_commitments(self._free_blocks)
