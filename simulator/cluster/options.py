"""The policy for handing prompts from prefill replicas to decode replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from catalogs.engines.profile import FirstToken
from simulator.engine.replica import Replica


@dataclass(frozen=True, slots=True)
class DisaggregationPolicy:
    """Which prompts are computed by prefill replicas, and which replica emits the first token.

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
        if tokens <= self.max_local_tokens:
            return True
        most = self.max_queue
        return most is not None and all(replica.scheduler.n_waiting >= most for replica in prefill)


#: Every prompt is handed over, and its first token is shown as soon as it is computed.
AS_COMPUTED: Final = DisaggregationPolicy()
