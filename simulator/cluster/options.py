"""How prompts go from prefill replicas to those that decode: which ones do, and who shows the first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from catalogs.engines.profile import FirstToken
from simulator.engine.replica import Replica


@dataclass(frozen=True, slots=True)
class DisaggregationPolicy:
    """Between the pools of one run.

    first_token: whose first token the client sees, and when (EngineProfile.first_token).
    max_local_tokens: prompts up to this length stay with a decode replica, which computes them itself (Dynamo's and
    TensorRT-LLM's max_local_prefill_length, which counts tokens that are not cached there; ours counts all).
    max_queue: so do others while every prefill replica has so many waiting (Dynamo's max_prefill_queue_size).
    """

    first_token: FirstToken = "prefill"
    max_local_tokens: int = 0
    max_queue: int | None = None

    def stays(self, tokens: int, prefill: Sequence[Replica]) -> bool:
        """Whether a prompt of so many tokens is left to a decode replica."""
        if tokens <= self.max_local_tokens:
            return True
        most = self.max_queue
        return most is not None and all(replica.scheduler.n_waiting >= most for replica in prefill)


#: Every prompt is handed over, and its first token shown at once.
AS_COMPUTED: Final = DisaggregationPolicy()
