"""What one engine step holds. `BatchShape` is the narrow waist between scheduling and cost: counts, never requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BatchShape:
    """Counts that decide the time of one step (all ranks see the same step)."""

    prefill_tokens: int = 0
    prefill_pairs: float = 0.0  # sum over chunks of q * (context + q / 2), no window applied
    prefill_chunks: int = 0
    decodes: int = 0
    decode_context_sum: int = 0  # cached tokens the decodes read, in all
    decode_context_max: int = 0
    logits: int = 0  # sequences that need logits: decodes + prompts finished in this step

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decodes
