"""vLLM V1 with an encoder-decoder model (Whisper).

The blocks for a request's encoder output are taken together with those of its prompt and kept to its end, in the same
pool (CrossAttentionManager: one static allocation by encoder length). A step starts as many encoders as the token
budget holds outputs. The encoder cache has the same size, and its space is freed when a step has run. With steps
scheduled ahead, the encoders of the preceding step therefore still count (`_free_encoder_inputs` in
update_from_output).
"""

from __future__ import annotations

from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1 import VllmV1


class EncoderDecoderV1(VllmV1):
    """vLLM V1 for encoder-decoder models. Prompts are whole, so a step starts one encoder for each of its prompts.

    Raises:
        ValueError: Prompts may be split or shared, or the token budget is smaller than one encoder's output.
    """

    pipelines = False
    takes_over = False  # no KV connector moves encoder caches

    def __init__(self, rules: EngineRules) -> None:
        if rules.chunked_prefill or rules.prefix_caching or rules.max_num_batched_tokens < rules.encoder_tokens:
            raise ValueError("an encoder-decoder model needs whole, unshared prompts within the token budget")
        super().__init__(rules)
        self._encoders = rules.max_num_batched_tokens // rules.encoder_tokens
        self._begun = 0  # encoders started in the preceding step

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, or None if nothing can run."""
        batch = super().schedule()
        self._begun = 0 if batch is None else batch.prefill_chunks
        return batch

    def skip(self, rounds: int) -> None:
        """Schedule `rounds` rounds of the same decodes at once, which start no encoders."""
        if rounds:
            self._begun = 0
        super().skip(rounds)

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        """Admit the head of the queue if its encoder can start and its blocks are free."""
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
        """Return the blocks of a running request, with those of its encoder output."""
        return super().held_blocks(request) + request.spare_blocks
