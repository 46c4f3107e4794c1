"""Decode steps in a row as an arithmetic series: step j (0-based) takes first_s + j * slope_s.

How long a step takes that several ranks begin together and none ends before the slowest.

How long steps take, as the simulation asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import Final, Protocol

from simulator.core.batch import BatchShape

#: (t0, slope, steps): while a batch only decodes, step j < steps takes t0 + slope * j seconds.
Segment = tuple[float, float, int]

#: Steps of one without a further breakpoint: as many as anybody asks for.
ENDLESS: Final = 1 << 30


def elapsed_s(steps: int, first_s: float, slope_s: float) -> float:
    """Seconds that so many steps take."""
    return steps * first_s + slope_s * (0.5 * steps * (steps - 1))


def step_at(now: float, start_s: float, first_s: float, slope_s: float, most: int) -> int:
    """The step (counted from 1, at most `most`) that is on the device at `now`."""
    passed_s = now - start_s
    linear = first_s - 0.5 * slope_s
    step = int(2.0 * passed_s / (linear + sqrt(max(0.0, linear * linear + 2.0 * slope_s * passed_s)))) + 1
    while step > 1 and start_s + elapsed_s(step - 1, first_s, slope_s) > now:
        step -= 1
    while step < most and start_s + elapsed_s(step, first_s, slope_s) <= now:
        step += 1
    return step


def no_less(device: float, slope: float, steps: int, least: float, after: float) -> Segment:
    """A run of steps of which each takes the device no less than `least`, and `after` more."""
    if device >= least:
        if slope < 0.0:
            steps = min(steps, int((device - least) / -slope) + 1)
        return device + after, slope, steps
    if slope > 0.0:
        steps = min(steps, ceil((least - device) / slope))
    return least + after, 0.0, steps


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


class StepTimer(Protocol):
    """What a replica needs of a cost model (StepCost is one)."""

    def cycle_s(self, shape: BatchShape) -> float:
        """Return the seconds from the start of this step to the start of the next."""

    def decode_segment(self, decodes: int, context_sum: int, context_max: int) -> tuple[float, float, int]:
        """Return (t0, slope, steps): while exactly these decodes run, step j < steps takes t0 + slope * j seconds."""
