"""Log of the steps of transformers' continuous batching, in the columns of vLLM's iteration log.

One column is added: `pairs`, the query-key pairs that sdpa computes, which are all tokens of the step times all cached
tokens of its requests. The manager's processor (ContinuousBatchProcessor) prepares a batch, runs it and updates its
requests, one after the other in one thread. With asynchronous batching, these times would not be those of a step.
Nothing is logged for a release in which these parts have other names.
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
    """The steps of one engine.

    Steps that start while `on` is true are kept. The engine's thread writes the rows; they are read when it is idle or
    has ended.
    """

    on: bool = False
    has_processor: bool = False
    rows: list[tuple[float, int, int, int, int, int, float]] = field(default_factory=list)
    _start_s: float | None = None
    _batch: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)

    def attach(self, processor: Any) -> None:
        """Log the steps of a processor, which must not be running yet."""
        prepare = getattr(processor, "prepare_next_batch", None)
        update = getattr(processor, "update_batch", None)
        source: Any = getattr(processor, "inputs_and_outputs", None)
        if prepare is None or update is None or not hasattr(source, "requests_in_batch"):
            return

        def prepare_logged() -> bool:
            start_s = time.perf_counter() if self.on else None
            is_prepared = bool(prepare())
            self._start_s = start_s if is_prepared else None
            if self._start_s is not None:
                self._batch = _contents(source.requests_in_batch)
            return is_prepared

        def update_logged() -> None:
            update()
            if self._start_s is not None:
                self.rows.append((self._start_s, *self._batch, time.perf_counter() - self._start_s))

        processor.prepare_next_batch, processor.update_batch = prepare_logged, update_logged
        self.has_processor = True

    def frame(self) -> pd.DataFrame | None:
        """Return one row per step with `at_s` counted from the first step, or None where no processor is logged."""
        import pandas as pd

        if not self.has_processor:
            return None
        steps = pd.DataFrame(self.rows, columns=list(COLUMNS))
        return steps.assign(at_s=steps.at_s - steps.at_s.min())


def _contents(batch: Any) -> tuple[int, int, int, int, int]:
    """Return the requests and tokens in prefill, the requests and tokens in decode, and the query-key pairs."""
    decoding = [x.query_length for x in batch if x.state.generated_tokens]
    context = [x.query_length for x in batch if not x.state.generated_tokens]
    keys = sum(x.state.position_offset for x in batch)  # cached tokens, including those of this step
    return len(context), sum(context), len(decoding), sum(decoding), (sum(context) + sum(decoding)) * keys
