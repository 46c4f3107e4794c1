"""How long a step takes that several ranks begin together and none ends before the slowest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from simulator.batch import BatchShape

if TYPE_CHECKING:
    from simulator.replica import StepTimer

#: (t0, slope, steps): while all ranks only decode, step j < steps takes t0 + slope * j seconds.
Segment = tuple[float, float, int]


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


def slowest(segments: Sequence[Segment]) -> Segment:
    """The longest of them, until one that grows faster would be longer."""
    first_s, slope_s, steps = max(segments)
    for first, slope, most in segments:
        if most < steps:
            steps = most
        if slope > slope_s:
            until = int((first_s - first) / (slope - slope_s)) + 1
            if until < steps:
                steps = until
    return first_s, slope_s, steps
