"""Step durations: the interface of cost models, and the arithmetic of consecutive decode steps.

The durations of consecutive decode steps form an arithmetic series: step j (0-based) takes first_s + j * slope_s. A
step that several ranks begin together ends when the slowest rank ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import Final, Protocol

from simulator.core.batch import BatchShape, Encoding

#: (t0, slope, steps): while a batch contains only decodes, step j < steps takes t0 + slope * j seconds.
Segment = tuple[float, float, int]

#: Number of steps of a segment without a further breakpoint: larger than any number of steps in a run.
ENDLESS: Final = 1 << 30


def elapsed_s(steps: int, first_s: float, slope_s: float) -> float:
    """Return the seconds that `steps` consecutive steps take."""
    return steps * first_s + slope_s * (0.5 * steps * (steps - 1))


def step_at(now: float, start_s: float, first_s: float, slope_s: float, most: int) -> int:
    """Return the step (counted from 1, at most `most`) that is on the device at `now`."""
    passed_s = now - start_s
    linear = first_s - 0.5 * slope_s
    step = int(2.0 * passed_s / (linear + sqrt(max(0.0, linear * linear + 2.0 * slope_s * passed_s)))) + 1
    while step > 1 and start_s + elapsed_s(step - 1, first_s, slope_s) > now:
        step -= 1
    while step < most and start_s + elapsed_s(step, first_s, slope_s) <= now:
        step += 1
    return step


def no_less(device: float, slope: float, steps: int, least: float, after: float) -> Segment:
    """Return the segment in which each step occupies the device for at least `least` seconds, plus `after`."""
    if device >= least:
        if slope < 0.0:
            steps = min(steps, int((device - least) / -slope) + 1)
        return device + after, slope, steps
    if slope > 0.0:
        steps = min(steps, ceil((least - device) / slope))
    return least + after, 0.0, steps


def slowest(segments: Sequence[Segment]) -> Segment:
    """Return the longest of the segments, limited to the steps before a faster-growing segment overtakes it."""
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
    """A timer that models what the ranks of a group share in a step (StepCost implements it)."""

    def ranks_segment(self, ranks: Sequence[BatchShape | None]) -> Segment:
        """Return the segment of ranks with these shares, at least one of which is not None.

        The segment has one step if any rank computes a prompt.
        """


class EncoderTimer(Protocol):
    """A timer that models the vision tower (StepCost implements it)."""

    def encoding_s(self, encoding: Encoding) -> float:
        """Return the seconds by which encoding these items makes a step longer."""


def encoding_s(timer: StepTimer | EncoderTimer, encoding: Encoding) -> float:
    """Return the seconds by which encoding these items makes a step longer.

    Raises:
        TypeError: The timer does not model a vision tower.
    """
    if not hasattr(timer, "encoding_s"):
        raise TypeError(f"{type(timer).__name__} does not model the encoding of items")
    return timer.encoding_s(encoding)


class OutputTimer(Protocol):
    """A timer that knows which part of a step follows the layers (StepCost implements it)."""

    def output_s(self, shape: BatchShape) -> float:
        """Return the seconds of the output projection and of sampling, which a step's time includes."""


def output_s(timer: StepTimer | OutputTimer, shape: BatchShape) -> float:
    """Return the seconds of a step that follow its layers; 0 from a timer that does not know them."""
    return timer.output_s(shape) if hasattr(timer, "output_s") else 0.0


def segment_of(timer: StepTimer | RankTimer, ranks: Sequence[BatchShape | None]) -> Segment:
    """Return the segment of a group of ranks; a timer without `ranks_segment` yields that of the slowest rank."""
    if hasattr(timer, "ranks_segment"):
        return timer.ranks_segment(ranks)
    return slowest([_alone(timer, rank) for rank in ranks if rank is not None])


def _alone(timer: StepTimer, shape: BatchShape) -> Segment:
    if shape.prefill_tokens:
        return timer.cycle_s(shape), 0.0, 1
    return timer.decode_segment(shape.decodes, shape.decode_context_sum, shape.decode_context_max)


class StepTimer(Protocol):
    """The interface of a cost model that a replica uses (StepCost implements it)."""

    def cycle_s(self, shape: BatchShape) -> float:
        """Return the seconds from the start of this step to the start of the next."""

    def decode_segment(self, decodes: int, context_sum: float, context_max: float) -> tuple[float, float, int]:
        """Return (t0, slope, steps): as long as exactly these decodes run, step j takes t0 + slope * j seconds.

        The formula holds for j < steps.
        """
