"""vLLM V1 with an encoder-decoder model (Whisper).

A request's blocks for its encoder's output are taken at once with its prompt's and kept to its end, in the same pool
(CrossAttentionManager: one static allocation by encoder length). A step begins as many encoders as the token budget
holds outputs; room in the encoder cache, of that size too, is given back when a step has run, so that with steps
scheduled ahead what the step before began still counts (`_free_encoder_inputs` in update_from_output).
"""

from __future__ import annotations

from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm_v1 import VllmV1


class EncoderDecoderV1(VllmV1):
    """Prompts are whole, so a step begins an encoder for each of its prompts. Needs a budget of one encoder's output;
    raises ValueError otherwise."""

    pipelines = False
    takes_over = False  # no KV connector moves its caches

    def __init__(self, rules: EngineRules) -> None:
        if rules.chunked_prefill or rules.prefix_caching or rules.max_num_batched_tokens < rules.encoder_tokens:
            raise ValueError("an encoder-decoder model's prompts are whole, unshared and within the token budget")
        super().__init__(rules)
        self._encoders = rules.max_num_batched_tokens // rules.encoder_tokens
        self._begun = 0  # by the step before

    def schedule(self) -> Batch | None:
        batch = super().schedule()
        self._begun = 0 if batch is None else batch.prefill_chunks
        return batch

    def skip(self, rounds: int) -> None:
        if rounds:
            self._begun = 0
        super().skip(rounds)

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        """As for any prompt, if its encoder may begin and its blocks are there."""
        if not request.retired:
            held = self._begun if self.rules.lag else 0
            if batch.prefill_chunks >= self._encoders - held:
                return 0
            if self.rules.cross_blocks - (-request.known_tokens // self.rules.block_size) > self.kv.available:
                self._refused, self._least_left = True, -1
                return 0
        tokens = super()._admit_head(batch, request, budget)
        if tokens:
            self.kv.take(self.rules.cross_blocks)
            request.spare_blocks = self.rules.cross_blocks
        return tokens

    def held_blocks(self, request: Request) -> int:
        return super().held_blocks(request) + request.spare_blocks
