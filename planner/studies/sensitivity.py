"""How far each input moves the answer, and where it flips the choice: one input at a time is changed and simulated.

Every variant has the same requests as the search of the answer (common random numbers). A capacity is found here with
one seed. It is divided by the capacity without a change, found in the same way, and the ratio is applied to the
capacity in the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from catalogs.ui.terminal import ProgressCallback
from planner.answer.schema import Answer
from planner.studies.choice_flips import CAPACITY_TOLERANCE, ChoiceFlips, ComparedCandidate, Flip, flip_words
from planner.studies.rerun import Rerun
from planner.studies.sensitivity_inputs import InputChange, SensitivityInput, inputs_of


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a changed input on the chosen plan.

    Attributes:
        variant: The changed input.
        capacity_requests_per_s: Capacity on the scale of the answer; None if no rate meets the objectives.
        usd_per_million_output_tokens: Cost on the scale of the answer; None if no price is known.
        slo_share: Value over limit of the tightest objective at the planned rate.
        holds: Whether the plan meets the objectives at the planned rate.
    """

    variant: InputChange
    capacity_requests_per_s: float | None
    usd_per_million_output_tokens: float | None
    slo_share: float
    holds: bool


@dataclass(frozen=True, slots=True)
class Input:
    """One input: the effects of a lower and of a higher value, and where the choice flips on either side.

    `flips` describes both flips in words.
    """

    name: str
    low: Effect | None
    high: Effect | None
    flips: str
    flip_low: Flip | None = None
    flip_high: Flip | None = None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The sensitivity of an answer to each of its inputs, in a fixed order."""

    inputs: list[Input]


def sensitivity(answer: Answer, rerun: Rerun | None = None, tell: ProgressCallback = lambda _: None) -> Sensitivity:
    """Return how much the answer depends on each of its inputs, from some dozens of simulated capacities.

    Args:
        answer: An answer with at least one plan.
        rerun: The answer's evaluator, if one is already open.
        tell: Called with a description of each simulation before it starts.

    Raises:
        InputError: The answer was made with another calibration, or its plan cannot be simulated this way.
    """
    flips = ChoiceFlips(answer, Rerun.of(answer) if rerun is None else rerun)
    return Sensitivity([_input(flips, varied, tell) for varied in inputs_of(answer, flips.rerun)])


def _input(flips: ChoiceFlips, varied: SensitivityInput, tell: ProgressCallback) -> Input:
    sides: list[tuple[Effect | None, Flip | None]] = []
    never = flips.never(varied)
    for value, end in zip(varied.swing, varied.ends, strict=True):
        compared = None
        if value is not None:
            tell(f"{varied.name} {varied.words(value)}")
            compared = flips.compare(varied.changed(value))
        effect = None if compared is None else _effect(flips, compared)
        if not never:
            tell(f"where {varied.name} flips the choice")
        sides.append((effect, None if never else flips.flip(varied, end, compared if value == end else None)))
    (low, flip_low), (high, flip_high) = sides
    return Input(varied.name, low, high, never or flip_words(varied, flip_low, flip_high), flip_low, flip_high)


def _effect(flips: ChoiceFlips, compared: ComparedCandidate) -> Effect:
    found, own = compared.capacity_per_s, flips.plan.capacity_requests_per_s
    ratio = None if found is None else found / flips.base
    if ratio is not None and abs(ratio - 1) < CAPACITY_TOLERANCE:
        ratio = 1.0  # within the tolerance of both capacities
    scaled = None if ratio is None or own is None else own * ratio
    usd = _usd(flips, compared.variant, ratio)
    return Effect(compared.variant, scaled, usd, compared.verdict.ratio, compared.verdict.met)


def _usd(flips: ChoiceFlips, variant: InputChange, ratio: float | None) -> float | None:
    """Return dollars per million output tokens at the served rate: the required rate, or at most the capacity.

    `ratio` is the capacity relative to that without a change.
    """
    cost, rate = flips.plan.cost, flips.rate
    if cost is None or cost.usd_per_million_output_tokens is None or not ratio:
        return None
    if flips.answer.request.given:
        served = min(rate * variant.load, (flips.plan.capacity_requests_per_s or rate) * ratio)
    else:  # the same share of the capacity as in the answer
        served = rate * ratio * min(variant.load, 1.0)
    return cost.usd_per_million_output_tokens * variant.price * rate / served / variant.tokens
