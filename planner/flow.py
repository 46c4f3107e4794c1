"""A replica as a fluid at mean lengths: guesses of where it saturates and how full it runs. Never a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from simulator.batch import BatchShape

#: Utilisation of a light load: one request in twenty finds another one.
LIGHT: Final = 0.05
#: A rate this far above saturation is overload whatever the guess got wrong.
OVERLOAD: Final = 1.15
_ROUNDS: Final = 40


@dataclass(frozen=True, slots=True)
class Flow:
    """One replica. seats: sequences that can run at once (limits and KV); token means of the workload."""

    cycle_s: Callable[[BatchShape], float]
    seats: int
    max_num_batched_tokens: int
    input_tokens: float
    output_tokens: float

    def step_s(self, batch: int) -> float:
        """One step that decodes `batch` sequences half way through their outputs. Seconds."""
        context = int(self.input_tokens + self.output_tokens / 2)
        return self.cycle_s(
            BatchShape(decodes=batch, decode_context_sum=batch * context, decode_context_max=2 * context, logits=batch)
        )

    @property
    def prefill_s(self) -> float:
        """Engine time one prompt takes where many share a step: what it adds to a step that runs anyway. Seconds."""
        chunk = max(int(self.input_tokens), 1)
        n = max(1, self.max_num_batched_tokens // chunk)
        shape = BatchShape(prefill_tokens=n * chunk, prefill_pairs=n * chunk**2 / 2, prefill_chunks=n, logits=n)
        return self.cycle_s(shape) / n

    @property
    def saturation_per_s(self) -> float:
        """Requests/s with every seat taken."""
        return 1.0 / (self.step_s(self.seats) * self.output_tokens / self.seats + self.prefill_s)

    @property
    def light_per_s(self) -> float:
        """Requests/s at which requests hardly ever meet."""
        return LIGHT / (self.step_s(1) * max(self.output_tokens, 1.0))

    def latency_s(self, requests_per_s: float, metric: str) -> float:
        """A guess at the mean of a latency metric at this rate, seconds; infinite where overloaded.

        End to end by Little's law; the first token by a lone prompt, the step it waits for, and a queue of prompts
        (M/D/1 on the engine time prompts take).
        """
        in_flight = self.in_flight(requests_per_s)
        if in_flight is None:
            return float("inf")
        step_s = self.step_s(max(int(in_flight), 1))
        lone_s = self.prefill_s + self.output_tokens * self.step_s(1)
        if metric == "e2e":
            return max(in_flight / requests_per_s, lone_s)
        if metric in ("tpot", "itl"):
            return max(in_flight / requests_per_s, lone_s) / max(self.output_tokens, 1.0)
        busy = min(requests_per_s * self.prefill_s, 0.95)
        return self.prefill_s * (1 + busy / (2 * (1 - busy))) + 1.5 * step_s

    def in_flight(self, requests_per_s: float) -> float | None:
        """Requests running at once at this rate (Little's law with the step time they cause); None: overloaded."""
        if requests_per_s > OVERLOAD * self.saturation_per_s:
            return None
        free = max(1.0 - requests_per_s * self.prefill_s, 0.02)
        batch = 1.0
        for _ in range(_ROUNDS):
            batch = min(requests_per_s * self.output_tokens * self.step_s(max(int(batch), 1)) / free, float(self.seats))
        return batch
