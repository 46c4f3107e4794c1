"""How far each input moves the answer, and where it flips the choice: one input at a time is changed and simulated.

Every variant has the same requests as the search of the answer (common random numbers). A capacity is found here with
one seed, by a line through several rates (`planner/studies/fitted_capacity.py`). It is divided by the capacity without
a change, found in the same way, and the ratio is applied to the capacity in the answer. The value of an input that
flips the choice to another plan is found by bisection, with the capacities of the other plans on the same scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final

from catalogs.hardware.catalog import parse_hardware
from catalogs.ui.progress import ProgressCallback
from planner.answer.answer_schema import Answer
from planner.answer.plan_schema import Plan
from planner.evaluation.capacity import WIDEN
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.verdict import Verdict
from planner.problem.candidate import Candidate
from planner.search.candidate_tester import TIE, CandidateTester
from planner.search.workers import ONE_PROCESS, WorkerPool, run_tasks, silent_in_workers
from planner.studies.fitted_capacity import FittedCapacity, fitted_capacity
from planner.studies.rerun import Rerun
from planner.studies.sensitivity_inputs import PREFIX, PRICE, RATE, InputChange, SensitivityInput, inputs_of

#: Relative tolerance of capacities, which are only compared with each other. A judgement of cost: the changes of
#: interest are larger.
CAPACITY_TOLERANCE: Final = 0.03

#: Factor on the capacity of the chosen plan that another plan must reach to take its place: more than a tie, and more
#: than the tolerance of both capacities.
WINNING_FACTOR: Final = (1 + TIE) * (1 + CAPACITY_TOLERANCE)

#: Number of bisection steps on a logarithmic scale: between a factor of 1 and of 2, 9 % remain, so the middle of that
#: interval is off by at most half of it. A judgement: about the tolerance of the capacities.
HALVINGS: Final = 3

#: Stands for a plan that is not in the answer, usually one with more hardware.
NOT_IN_ANSWER: Final = -1

#: The plan of the answer, with which the changes are compared.
UNCHANGED: Final = InputChange("the plan", "unchanged", 1.0)

#: Objectives that compare capacities.
CAPACITY_OBJECTIVES: Final = ("cost", "throughput", "goodput")


@dataclass(frozen=True, slots=True)
class ComparedCandidate:
    """The chosen plan, simulated with a changed input.

    Attributes:
        variant: The changed input.
        tester: Simulates candidates with the change.
        capacity: Capacity of the chosen plan; None if no rate meets the objectives.
        rate_per_s: The tested rate, multiplied by the load of the variant.
    """

    variant: InputChange
    tester: CandidateTester
    capacity: FittedCapacity | None
    rate_per_s: float

    @property
    def met(self) -> bool:
        """Return whether the chosen plan serves the tested rate."""
        return self.capacity is not None and self.capacity.requests_per_s >= self.rate_per_s


@dataclass(frozen=True, slots=True)
class Flip:
    """The value of an input at which another plan becomes the choice: the middle of the remaining interval.

    `alternative` is the number of that plan. It is NOT_IN_ANSWER if the chosen plan no longer serves the required
    load, and no other plan of the answer does.
    """

    value: float
    alternative: int


#: Least requests of a run whose capacity is compared. A judgement: in shorter runs a queue that grows slowly is not
#: seen.
SETTLED: Final = 2000


@dataclass(frozen=True)
class ChoiceFlips:
    """Compares the plans of an answer under the same requests, with one seed.

    Attributes:
        answer: The answer.
        rerun: Its evaluator and candidates.
        known: The capacities found so far, requests per second: by number of the plan and name of the input, then by
            value of the input.
    """

    answer: Answer
    rerun: Rerun
    known: dict[tuple[int, str], dict[float, float]] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """Return the plan that the answer recommends, with which the others are compared."""
        return self.answer.plans[0]

    @property
    def rate(self) -> float:
        """Return the planned rate, requests per second."""
        return self.plan.requests_per_s or 0.0

    @cached_property
    def bases(self) -> list[FittedCapacity | None]:
        """Return the capacity of each plan of the answer without any change."""
        tester, plans = shorter(self.rerun.tester), self.answer.plans
        guesses = [plan.capacity_requests_per_s for plan in plans]
        guesses[0] = guesses[0] or self.rate
        return [
            capacity(tester, candidate, guess) if guess else None
            for candidate, guess in zip(self.rerun.candidates, guesses, strict=True)
        ]

    @property
    def base(self) -> float:
        """Return the capacity of the chosen plan without any change, requests per second."""
        found = self.bases[0]
        return (self.plan.capacity_requests_per_s or self.rate) if found is None else found.requests_per_s

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
        found, base = self._capacity(0, tester, variant), self.bases[0]
        if found and base and abs(found.requests_per_s / base.requests_per_s - 1) < CAPACITY_TOLERANCE:
            found = base  # within the tolerance of both capacities
        return ComparedCandidate(variant, tester, found, self.tested_rate * variant.load)

    def _capacity(self, number: int, tester: CandidateTester, variant: InputChange) -> FittedCapacity | None:
        """Return the capacity of a plan with a changed input, guessed from those at other values of the input."""
        base = self.bases[number]
        if variant.evaluator is None:
            return base
        known = self.known.setdefault((number, variant.name), {})
        guess = guessed(known, variant.value) if known else self.base if base is None else base.requests_per_s
        found = capacity(tester, self.rerun.candidates[number], guess)
        if found is not None:
            known[variant.value] = found.requests_per_s
        return found

    def choice(self, compared: ComparedCandidate) -> int:
        """Return the first alternative that beats the chosen plan by more than a tie; 0 if the choice remains."""
        for i, plan in enumerate(self.answer.alternatives, 1):
            if self._beats(plan, i, compared):
                return i
        return NOT_IN_ANSWER if self.answer.request.given and not compared.met else 0

    @cached_property
    def scales(self) -> list[float]:
        """Return, for each plan of the answer, its capacity with one seed over that in the answer, without any change.

        It is relative to that of the chosen plan. Two plans of nearly equal capacity thus keep the order that they have
        in the answer until an input changes.
        """
        own, scales = self.plan.capacity_requests_per_s, [1.0]
        for plan, found in zip(self.answer.alternatives, self.bases[1:], strict=True):
            printed = plan.capacity_requests_per_s
            scales.append(found.requests_per_s / printed * own / self.base if found and printed and own else 1.0)
        return scales

    def _beats(self, plan: Plan, number: int, compared: ComparedCandidate) -> bool:
        if compared.variant.name == PRICE and self._same_kind(plan):
            return False
        objective, given = self.answer.request.objective, self.answer.request.given
        ratio, own = self._ratio(plan, compared.variant), compared.capacity
        if objective in CAPACITY_OBJECTIVES and not (given and objective == "cost"):
            if own is None:
                return self._capacity(number, compared.tester, compared.variant) is not None
            return self._carries(number, compared, own.requests_per_s * ratio * WINNING_FACTOR)
        if not compared.met:
            return self._carries(number, compared, compared.rate_per_s)
        if objective == "cost":
            return ratio < 1 - TIE and self._carries(number, compared, compared.rate_per_s)
        ours, theirs = (self._verdict(i, compared) for i in (0, number))
        if objective in ("energy", "carbon"):
            less = theirs.joules_per_output_token < ours.joules_per_output_token * (1 - TIE)
        else:
            less = theirs.ratio < ours.ratio * (1 - TIE)
        return less and self._carries(number, compared, compared.rate_per_s)

    def _carries(self, number: int, compared: ComparedCandidate, rate_per_s: float) -> bool:
        """Return whether the capacity of a plan reaches a rate; a short run rules out hopeless plans."""
        tester, scaled_per_s = compared.tester, rate_per_s * self.scales[number]
        if tester.probe(self.rerun.candidates[number], scaled_per_s, tester.sizes.quick).clearly_missed:
            return False
        found = self._capacity(number, tester, compared.variant)
        return found is not None and found.requests_per_s >= scaled_per_s

    def _verdict(self, number: int, compared: ComparedCandidate) -> Verdict:
        """Return the verdict on a plan at the tested rate."""
        tester = compared.tester
        return tester.probe(self.rerun.candidates[number], compared.rate_per_s, tester.sizes.full)

    def value_ratio(self, compared: ComparedCandidate) -> float:
        """Return value / limit of the tightest objective of the chosen plan at the tested rate.

        Near the capacity it is that of the line from which the capacity follows, so that the two agree.
        """
        found = None if compared.capacity is None else compared.capacity.ratio_at(compared.rate_per_s)
        return self._verdict(0, compared).ratio if found is None else found

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
            return "the answer has no alternative that could take over"
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


def guessed(known: dict[float, float], value: float) -> float:
    """Return the capacity at a value of an input from those at the two nearest values, on a line of its logarithm.

    A value beyond all known ones continues their line, by at most a factor of `WIDEN`.
    """
    near = sorted(known, key=lambda at: abs(at - value))[:2]
    low, high = min(near), max(near)
    if low == high:
        return known[low]
    slope = math.log(known[high] / known[low]) / (high - low)
    beyond = math.log(WIDEN)
    return known[near[0]] * math.exp(min(max(slope * (value - near[0]), -beyond), beyond))


def capacity(tester: CandidateTester, candidate: Candidate, guess_per_s: float) -> FittedCapacity | None:
    """Return the rate at which the objectives are just met with one seed; None if even a light load misses one."""
    floor = tester.probe(candidate, tester.evaluator.light_requests_per_s(candidate), tester.sizes.quick)
    if not floor.met:
        return None
    probe = lambda rate: tester.probe(candidate, rate, tester.sizes.full)  # noqa: E731
    return fitted_capacity(probe, guess_per_s, floor, CAPACITY_TOLERANCE)


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a changed input on the chosen plan.

    Attributes:
        change: The change in words, for example "x 0.8".
        words: The input and its change in words.
        capacity_requests_per_s: Capacity on the scale of the answer; None if no rate meets the objectives.
        usd_per_million_output_tokens: Cost on the scale of the answer; None if no price is known.
        slo_share: Value over limit of the tightest objective at the planned rate.
        holds: Whether the plan meets the objectives at the planned rate.
    """

    change: str
    words: str
    capacity_requests_per_s: float | None
    usd_per_million_output_tokens: float | None
    slo_share: float
    holds: bool


#: The effect of a change, if one is simulated, and the flip up to the end of the input's range, if there is one.
Side = tuple[Effect | None, Flip | None]


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
    """The sensitivity of an answer to each of its inputs, in a fixed order, and the plan without any change."""

    unchanged: Effect
    inputs: list[Input]


def sensitivity(
    answer: Answer,
    rerun: Rerun | None = None,
    tell: ProgressCallback = lambda _: None,
    workers: WorkerPool = ONE_PROCESS,
) -> Sensitivity:
    """Return how much the answer depends on each of its inputs, from some dozens of simulated capacities.

    Args:
        answer: An answer with at least one plan.
        rerun: The answer's evaluator, if one is already open.
        tell: Called with a description of each simulation before it starts.
        workers: The processes that simulate the changes.

    Raises:
        InputError: The answer was made with another calibration, or its plan cannot be simulated this way.
    """
    flips = ChoiceFlips(answer, Rerun.of(answer) if rerun is None else rerun)
    inputs = list(inputs_of(answer, flips.rerun))
    _ = flips.bases, flips.scales, flips.tested_rate  # once, and not by each worker
    unchanged = _effect(flips, flips.compare(UNCHANGED))
    told = silent_in_workers(tell)
    # Runs with prefix hits take the longest, so they begin first and the other workers do not wait for them.
    tasks = [(each, side) for each in sorted(inputs, key=lambda i: i.name != PREFIX) for side in (0, 1)]
    found = run_tasks(workers.map, [partial(_side, flips, each, side, told) for each, side in tasks])
    sides = {(each.name, side): result for (each, side), result in zip(tasks, found, strict=True)}
    return Sensitivity(unchanged, [_input(flips, each, sides[each.name, 0], sides[each.name, 1]) for each in inputs])


def _input(flips: ChoiceFlips, varied: SensitivityInput, low: Side, high: Side) -> Input:
    """Return an input with both sides, and with the flips, or the reason why there are none, in words."""
    words = flips.never(varied) or flip_words(varied, low[1], high[1])
    return Input(varied.name, low[0], high[0], words, low[1], high[1])


def _side(flips: ChoiceFlips, varied: SensitivityInput, side: int, tell: ProgressCallback) -> Side:
    """Return the effect and the flip of an input below (side 0) or above (side 1) its value in the answer."""
    # Each side begins with the unchanged plans alone: the result must not depend on which worker did the others.
    for number, base in enumerate(flips.bases):
        flips.known[number, varied.name] = {} if base is None else {varied.at: base.requests_per_s}
    value, end, compared = varied.swing[side], varied.ends[side], None
    if value is not None:
        tell(f"{varied.name} {varied.words(value)}")
        compared = flips.compare(varied.changed(value))
    effect = None if compared is None else _effect(flips, compared)
    if flips.never(varied):
        return effect, None
    tell(f"searching the value of {varied.name} at which another plan wins")
    return effect, flips.flip(varied, end, compared if value == end else None)


def _effect(flips: ChoiceFlips, compared: ComparedCandidate) -> Effect:
    found, own = compared.capacity, flips.plan.capacity_requests_per_s
    ratio = None if found is None else found.requests_per_s / flips.base
    scaled = None if ratio is None or own is None else own * ratio
    usd = _usd(flips, compared.variant, ratio)
    variant, share = compared.variant, flips.value_ratio(compared)
    return Effect(variant.change, variant.words, scaled, usd, share, share <= 1)


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
