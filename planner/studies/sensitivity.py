"""Which input moves the answer most, and where the choice flips: one input changed at a time, simulated again.

Every variant sees the same requests as the answer's search (common random numbers). A capacity found here, with one
seed, is compared with one found the same way without any change, and the ratio applied to the answer's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from catalogs.ui.terminal import ProgressCallback
from planner.answer.schema import Answer
from planner.studies.choice_flips import CAPACITY_TOLERANCE, ChoiceFlips, ComparedCandidate, Flip, flip_words
from planner.studies.rerun import Rerun
from planner.studies.sensitivity_inputs import InputChange, SensitivityInput, dials


@dataclass(frozen=True, slots=True)
class Effect:
    """What a variant does to the chosen plan. None: no rate holds, or no price is known.

    capacity_requests_per_s and usd_per_million_output_tokens as the answer has them; slo_share: value over limit of the
    tightest objective at the planned rate.
    """

    variant: InputChange
    capacity_requests_per_s: float | None
    usd_per_million_output_tokens: float | None
    slo_share: float
    holds: bool  # the objectives, at the planned rate


@dataclass(frozen=True, slots=True)
class Input:
    """One input: what a little less and a little more of it does, and where on either side the choice flips."""

    name: str
    low: Effect | None
    high: Effect | None
    flips: str  # in words
    flip_low: Flip | None = None
    flip_high: Flip | None = None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """inputs in a fixed order."""

    inputs: list[Input]


def sensitivity(answer: Answer, rerun: Rerun | None = None, tell: ProgressCallback = lambda _: None) -> Sensitivity:
    """Return how much the answer depends on each of its inputs, from some dozens of simulated capacities.

    Args:
        answer: An answer with at least one plan.
        rerun: The answer's evaluator, where one is open already.
        tell: Called with a description of each simulation before it starts.

    Raises:
        InputError: The answer was made with another calibration, or its plan cannot be simulated this way.
    """
    rerun = Rerun.of(answer) if rerun is None else rerun
    study = _Study(answer, ChoiceFlips(answer, rerun), tell)
    return Sensitivity([study.input(dial) for dial in dials(answer, rerun)])


@dataclass(frozen=True, slots=True)
class _Study:
    answer: Answer
    rivals: ChoiceFlips
    tell: ProgressCallback

    def input(self, dial: SensitivityInput) -> Input:
        sides: list[tuple[Effect | None, Flip | None]] = []
        never = self.rivals.never(dial)
        for value, end in zip(dial.swing, dial.ends, strict=True):
            seen = None if value is None else self._see(dial, value)
            effect = None if seen is None else self._effect(seen)
            sides.append((effect, None if never else self._flip(dial, end, seen)))
        (low, flip_low), (high, flip_high) = sides
        words = never or flip_words(dial, flip_low, flip_high)
        return Input(dial.name, low, high, words, flip_low, flip_high)

    def _see(self, dial: SensitivityInput, value: float) -> ComparedCandidate:
        self.tell(f"{dial.name} {dial.words(value)}")
        return self.rivals.see(dial.turn(value))

    def _flip(self, dial: SensitivityInput, end: float, seen: ComparedCandidate | None) -> Flip | None:
        self.tell(f"where {dial.name} flips the choice")
        known = seen if seen is not None and seen.variant.value == end else None
        return self.rivals.flip(dial, end, known)

    def _effect(self, seen: ComparedCandidate) -> Effect:
        found, own = seen.capacity_per_s, self.rivals.plan.capacity_requests_per_s
        ratio = None if found is None else found / self.rivals.base
        if ratio is not None and abs(ratio - 1) < CAPACITY_TOLERANCE:
            ratio = 1.0  # not told apart
        scaled = None if ratio is None or own is None else own * ratio
        usd = self._usd(seen.variant, ratio)
        return Effect(seen.variant, scaled, usd, seen.verdict.ratio, seen.verdict.met)

    def _usd(self, variant: InputChange, ratio: float | None) -> float | None:
        """Dollars per million output tokens at the rate served: what was asked for, at most what still holds."""
        cost, rate = self.rivals.plan.cost, self.rivals.rate
        if cost is None or cost.usd_per_million_output_tokens is None or not ratio:
            return None
        own = self.rivals.plan.capacity_requests_per_s or rate
        if not self.answer.request.given:  # as much as holds, and of that the share that the answer plans with
            served = rate * ratio * min(variant.load, 1.0)
        else:
            served = min(rate * variant.load, own * ratio)
        return cost.usd_per_million_output_tokens * variant.price * rate / served / variant.tokens
