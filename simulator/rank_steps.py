"""How long a step takes that several ranks begin together and none ends before the slowest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from simulator.batch import BatchShape
from simulator.series import Segment, slowest

if TYPE_CHECKING:
    from simulator.replica import StepTimer


class RankTimer(Protocol):
    """A timer that knows what ranks share in a step (StepCost is one)."""

    def ranks_segment(self, ranks: Sequence[BatchShape | None]) -> Segment:
        """Of ranks with these shares, one of them at least not None; 1 step where somebody has a prompt."""


def segment_of(timer: StepTimer | RankTimer, ranks: Sequence[BatchShape | None]) -> Segment:
    """What the timer says; of one that knows nothing of groups, the slowest rank alone."""
    if hasattr(timer, "ranks_segment"):
        return timer.ranks_segment(ranks)
    return slowest([_alone(timer, rank) for rank in ranks if rank is not None])


def _alone(timer: StepTimer, shape: BatchShape) -> Segment:
    if shape.prefill_tokens:
        return timer.cycle_s(shape), 0.0, 1
    return timer.decode_segment(shape.decodes, shape.decode_context_sum, shape.decode_context_max)
