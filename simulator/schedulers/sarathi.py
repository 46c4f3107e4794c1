"""Sarathi-Serve: all decodes continue in every step, and prompts fill the step up to its chunk size.

sarathi/core/scheduler/sarathi_scheduler.py, and its block managers:

- Decodes come first, in order of arrival, then the unfinished prompt, then waiting requests, first come, first served,
  while the step has fewer than chunk_size tokens (max_num_batched_tokens here). The last prompt is split there.
- A request starts only if the blocks of its whole prompt leave a watermark of 1 % free; it gets them all at once.
- A decode needs a free block to continue, as in vLLM V0. Without one the newest request returns to the head of the
  queue and is recomputed; others may start in the same step.
"""

from __future__ import annotations

from simulator.core.batch import Batch
from simulator.core.request import Request
from simulator.schedulers.vllm.v0 import VllmV0
from simulator.schedulers.vllm.v1 import VllmV1


class Sarathi(VllmV0):
    """The policy of Sarathi-Serve.

    The unfinished prompt is the newest running request and holds the blocks of its whole prompt.
    """

    mixes_phases = True
    chunks = True
    admits_after_preemption = True

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, or None if nothing can run."""
        return VllmV1.schedule(self)

    def _chunk_blocks(self, request: Request, tokens: int) -> int:  # noqa: ARG002
        return 0

    def held_blocks(self, request: Request) -> int:
        """Return the blocks of a running request; an unfinished prompt holds those of all its tokens."""
        return self._blocks(request.known_tokens if request is self._partial else self.computed_tokens(request))

    def _preempt(self) -> None:
        if self._partial is not None and next(reversed(self._running)) is self._partial:
            self._abandon_partial(self._partial)
        super()._preempt()

    def withdraw(self, request: Request) -> bool:
        """Remove a request that its client has cancelled; return False if it already decodes."""
        if request is self._partial:
            self._abandon_partial(request)
        return super().withdraw(request)

    def _abandon_partial(self, partial: Request) -> None:
        partial.computed_tokens = partial.known_tokens  # so that all its blocks are freed with it
