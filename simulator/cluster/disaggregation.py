"""Which prompts are handed from prefill to decode replicas, and which replica shows their first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from catalogs.engines.profile import FirstToken
from simulator.engine.replica import Replica


@dataclass(frozen=True, slots=True)
class DisaggregationPolicy:
    """The policy that decides which prompts prefill replicas compute, and which replica emits the first token.

    By default every prompt is handed over, and its first token is shown as soon as it is computed.

    Attributes:
        first_token: Which replica's first token the client sees, and when (EngineProfile.first_token).
        max_local_tokens: Prompts up to this length are computed by a decode replica itself (Dynamo's and
            TensorRT-LLM's max_local_prefill_length, which counts only tokens that are not cached there; this limit
            counts all tokens).
        max_queue: Longer prompts also stay local while every prefill replica has at least this many waiting requests
            (Dynamo's max_prefill_queue_size).
    """

    first_token: FirstToken = "prefill"
    max_local_tokens: int = 0
    max_queue: int | None = None

    def stays(self, tokens: int, prefill: Sequence[Replica]) -> bool:
        """Return whether a prompt of `tokens` tokens is computed by a decode replica itself."""
        full = self.max_queue is not None and all(r.scheduler.n_waiting >= self.max_queue for r in prefill)
        return full or tokens <= self.max_local_tokens
