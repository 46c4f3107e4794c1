"""Steps of transformers' continuous batching as they run, in the columns of vLLM's iteration log, and one of their own:
pairs of a query with a key that sdpa computes, all of the step's tokens times all cached tokens of its requests.

The manager's processor (ContinuousBatchProcessor) prepares a batch, runs it and updates its requests, one after the
other in one thread; with asynchronous batching this would be no step's time. Where a release names these parts
otherwise nothing is logged.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd


COLUMNS: Final = (
    "at_s",
    "context_requests",
    "context_tokens",
    "generation_requests",
    "generation_tokens",
    "pairs",
    "seconds",
)


@dataclass(slots=True)
class StepsLog:
    """`on`: whether steps that start now are kept. Written by the engine's thread, read when it is idle or gone."""

    on: bool = False
    watched: bool = False
    rows: list[tuple[float, int, int, int, int, int, float]] = field(default_factory=list)
    _began_s: float | None = None
    _held: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)

    def watch(self, processor: Any) -> None:
        """Keep the steps of this processor, which must not run yet."""
        prepare = getattr(processor, "prepare_next_batch", None)
        update = getattr(processor, "update_batch", None)
        held: Any = getattr(processor, "inputs_and_outputs", None)
        if prepare is None or update is None or not hasattr(held, "requests_in_batch"):
            return

        def preparing() -> bool:
            began_s = time.perf_counter() if self.on else None
            there = bool(prepare())
            self._began_s = began_s if there else None
            if self._began_s is not None:
                self._held = _contents(held.requests_in_batch)
            return there

        def updating() -> None:
            update()
            if self._began_s is not None:
                self.rows.append((self._began_s, *self._held, time.perf_counter() - self._began_s))

        processor.prepare_next_batch, processor.update_batch = preparing, updating
        self.watched = True

    def frame(self) -> pd.DataFrame | None:
        """A row per step; at_s counts from the first."""
        import pandas as pd

        if not self.watched:
            return None
        steps = pd.DataFrame(self.rows, columns=list(COLUMNS))
        return steps.assign(at_s=steps.at_s - steps.at_s.min())


def _contents(batch: Any) -> tuple[int, int, int, int, int]:
    """(requests, tokens) still without an output token, then of those that decode; pairs."""
    decoding = [x.query_length for x in batch if x.state.generated_tokens]
    context = [x.query_length for x in batch if not x.state.generated_tokens]
    keys = sum(x.state.position_offset for x in batch)  # what is cached, with this step's tokens
    return len(context), sum(context), len(decoding), sum(decoding), (sum(context) + sum(decoding)) * keys
