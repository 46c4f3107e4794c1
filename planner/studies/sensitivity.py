"""How far each input moves the answer, and where it flips the choice: one input at a time is changed and simulated.

Every variant has the same requests as the search of the answer (common random numbers). A capacity is found here with
one seed. It is divided by the capacity without a change, found in the same way, and the ratio is applied to the
capacity in the answer. The value of an input that flips the choice to another plan is found by bisection, with the
capacities of the other plans on the same scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from catalogs.hardware.catalog import parse_hardware
from catalogs.ui.terminal import ProgressCallback
from planner.answer.answer_schema import Answer
from planner.answer.plan_schema import Plan
from planner.evaluation.capacity import find_capacity
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.verdict import Verdict
from planner.problem.candidate import Candidate
from planner.search.candidate_tester import TIE, CandidateTester
from planner.studies.rerun import Rerun
from planner.studies.sensitivity_inputs import PREFIX, PRICE, RATE, InputChange, SensitivityInput, inputs_of

#: Relative tolerance of capacities, which are only compared with each other. A judgement of cost: the changes of
#: interest are larger.
CAPACITY_TOLERANCE: Final = 0.03

#: Number of bisection steps on a logarithmic scale: between a factor of 1 and of 2, 4 % remain.
HALVINGS: Final = 4

#: Stands for a plan that is not in the answer, usually one with more hardware.
NOT_IN_ANSWER: Final = -1

#: Objectives that compare capacities.
CAPACITY_OBJECTIVES: Final = ("cost", "throughput", "goodput")


@dataclass(frozen=True, slots=True)
class ComparedCandidate:
    """The chosen plan, simulated with a changed input.

    Attributes:
        variant: The changed input.
        tester: Simulates candidates with the change.
        capacity_per_s: Capacity of the chosen plan, requests per second; None if no rate meets the objectives.
        verdict: Verdict on the chosen plan at the tested rate, multiplied by the load of the variant.
    """

    variant: InputChange
    tester: CandidateTester
    capacity_per_s: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Flip:
    """The value of an input at which another plan becomes the choice: the middle of the remaining interval.

    `alternative` is the number of that plan. It is NOT_IN_ANSWER if the chosen plan no longer carries the required
    load, and no other plan of the answer does.
    """

    value: float
    alternative: int


#: Least requests of a run whose capacity is compared. A judgement: in shorter runs a queue that grows slowly is not
#: seen.
SETTLED: Final = 2000


@dataclass(frozen=True)
class ChoiceFlips:
    """Compares the plans of an answer under the same requests, with one seed."""

    answer: Answer
    rerun: Rerun

    @property
    def plan(self) -> Plan:
        """Return the plan that the answer recommends, with which the others are compared."""
        return self.answer.plans[0]

    @property
    def rate(self) -> float:
        """Return the planned rate, requests per second."""
        return self.plan.requests_per_s or 0.0

    @cached_property
    def base(self) -> float:
        """Return the capacity of the chosen plan without any change, requests per second."""
        guess = self.plan.capacity_requests_per_s or self.rate
        return capacity(shorter(self.rerun.tester), self.rerun.candidates[0], guess) or guess

    @cached_property
    def tested_rate(self) -> float:
        """Return the rate that loads one seed as the planned rate loads the answer, requests per second.

        One seed finds a capacity above or below that of all seeds. The chosen plan thus has the headroom that it has in
        the answer until an input changes.
        """
        own = self.plan.capacity_requests_per_s
        return self.rate * self.base / own if own else self.rate

    def compare(self, variant: InputChange) -> ComparedCandidate:
        """Simulate the chosen plan with a changed input."""
        tester = replace(shorter(self.rerun.tester), evaluator=variant.evaluator or self.rerun.evaluator)
        candidate = self.rerun.candidates[0]
        found = self.base if variant.evaluator is None else capacity(tester, candidate, self.base)
        verdict = tester.probe(candidate, self.tested_rate * variant.load, tester.sizes.full)
        return ComparedCandidate(variant, tester, found, verdict)

    def choice(self, compared: ComparedCandidate) -> int:
        """Return the first alternative that beats the chosen plan by more than a tie; 0 if the choice remains."""
        for i, plan in enumerate(self.answer.alternatives, 1):
            if self._beats(plan, i, compared):
                return i
        return NOT_IN_ANSWER if self.answer.request.given and not compared.verdict.met else 0

    @cached_property
    def scales(self) -> list[float]:
        """Return, for each plan of the answer, its capacity with one seed over that in the answer, without any change.

        It is relative to that of the chosen plan. Two plans of nearly equal capacity thus keep the order that they have
        in the answer until an input changes.
        """
        tester, own = shorter(self.rerun.tester), self.plan.capacity_requests_per_s
        scales = [1.0]
        for plan, candidate in zip(self.answer.alternatives, self.rerun.candidates[1:], strict=True):
            printed = plan.capacity_requests_per_s
            found = capacity(tester, candidate, printed) if printed and own else None
            scales.append(found / printed * own / self.base if found and printed and own else 1.0)
        return scales

    def _beats(self, plan: Plan, number: int, compared: ComparedCandidate) -> bool:
        if compared.variant.name == PRICE and self._same_kind(plan):
            return False
        tester, verdict, candidate = compared.tester, compared.verdict, self.rerun.candidates[number]
        objective, given = self.answer.request.objective, self.answer.request.given
        ratio = self._ratio(plan, compared.variant)
        if objective in CAPACITY_OBJECTIVES and not (given and objective == "cost"):
            found = compared.capacity_per_s
            return found is None or holds(tester, candidate, found * ratio * (1 + TIE) * self.scales[number])
        rate = self.tested_rate * compared.variant.load
        if not verdict.met:
            return holds(tester, candidate, rate)
        if objective == "cost":
            return ratio < 1 - TIE and holds(tester, candidate, rate)
        other = tester.probe(candidate, rate, tester.sizes.full)
        if objective in ("energy", "carbon"):
            return other.met and other.joules_per_output_token < verdict.joules_per_output_token * (1 - TIE)
        return other.met and other.ratio < verdict.ratio * (1 - TIE)

    def _ratio(self, plan: Plan, variant: InputChange) -> float:
        """Return the dollars or accelerators of an alternative over those of the chosen plan; 1 if neither counts."""
        objective = self.answer.request.objective
        if objective == "goodput":
            ours, theirs = (parse_hardware(p.hardware).n_accelerators for p in (self.plan, plan))
            return theirs / ours
        if objective != "cost" or not self.plan.usd_per_hour or not plan.usd_per_hour:
            return 1.0
        return plan.usd_per_hour / self.plan.usd_per_hour / (1.0 if self._same_kind(plan) else variant.price)

    def _same_kind(self, plan: Plan) -> bool:
        """Return True if a plan has the same kind of accelerator as the chosen one, so that their prices move alike."""
        return len({parse_hardware(p.hardware).accelerator.name for p in (plan, self.plan)}) == 1

    # ---- where the choice flips

    def flip(self, varied: SensitivityInput, end: float, at_end: ComparedCandidate | None = None) -> Flip | None:
        """Return the value nearest to that of the answer at which another plan becomes the choice.

        Args:
            varied: The input.
            end: Value of the input up to which a flip is sought.
            at_end: The comparison at `end`, if it is known.

        Returns:
            The flip, or None if the choice is the same at `end`.
        """
        if end == varied.at:
            return None
        alternative = self.choice(at_end or self.compare(varied.changed(end)))
        if not alternative:
            return None
        near, far = varied.at, end
        for _ in range(HALVINGS):
            middle = _between(near, far)
            found = self.choice(self.compare(varied.changed(middle)))
            if found:
                far, alternative = middle, found
            else:
                near = middle
        return Flip(_between(near, far), alternative)

    def never(self, varied: SensitivityInput) -> str:
        """Return the reason why a change of an input cannot flip the choice; empty if it might."""
        alternatives, request = self.answer.alternatives, self.answer.request
        if not alternatives and (varied.name == PRICE or not request.given):
            return "the answer holds no alternative to flip to"
        if varied.name == PRICE and request.objective != "cost":
            return f"never: price does not enter the objective {request.objective}"
        if varied.name == PRICE and all(map(self._same_kind, alternatives)):
            return "never: every plan here is on the same kind of hardware"
        if varied.name == RATE and not request.given:
            return "never: no rate is required, so the plan is for the highest one"
        return ""


def _between(a: float, b: float) -> float:
    """Return the geometric mean, or the arithmetic mean if a value is 0."""
    return math.sqrt(a * b) if a > 0 and b > 0 else (a + b) / 2


def flip_words(varied: SensitivityInput, low: Flip | None, high: Flip | None) -> str:
    """Return the flips in words: "below x 0.71: alternative 1; above x 1.3: alternative 2", or where none was found."""
    found = [
        f"{side} {varied.words(flip.value)}: "
        + (f"alternative {flip.alternative}" if flip.alternative > 0 else "no plan of this answer meets the load")
        for flip, side in ((low, "below"), (high, "above"))
        if flip is not None
    ]
    if found:
        return "; ".join(found)
    least, most = varied.ends
    if varied.name != PREFIX and math.isclose(least * most, 1.0):
        return f"never within x {most:g} either way"
    lower = "up to" if least >= varied.at else f"between {varied.words(least)} and"
    return f"never {lower} {varied.words(most)}"


def shorter(tester: CandidateTester) -> CandidateTester:
    """Return a tester with half as many requests: ratios of runs of the same requests need fewer than their values.

    Runs keep SETTLED requests, with which a queue that grows slowly is seen.
    """
    sizes = tester.sizes
    return replace(tester, sizes=RunSizes(sizes.quick, max(sizes.full // 2, 2 * sizes.quick, SETTLED)))


def capacity(tester: CandidateTester, candidate: Candidate, guess_per_s: float) -> float | None:
    """Return the highest rate that meets the objectives with one seed; None if even a light load misses one."""
    floor = tester.probe(candidate, tester.evaluator.light_requests_per_s(candidate), tester.sizes.quick)
    if not floor.met:
        return None
    probe = lambda rate: tester.probe(candidate, rate, tester.sizes.full)  # noqa: E731
    return find_capacity(probe, guess_per_s, floor, CAPACITY_TOLERANCE).requests_per_s


def holds(tester: CandidateTester, candidate: Candidate, rate: float) -> bool:
    """Return True if a candidate meets the objectives at a rate; a short run rules out hopeless candidates."""
    quick = tester.probe(candidate, rate, tester.sizes.quick)
    return not quick.clearly_missed and tester.probe(candidate, rate, tester.sizes.full).met


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
            tell(f"searching the value of {varied.name} at which another plan wins")
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
