"""Which plan of an answer would be chosen if an input were otherwise, and how far it must turn for that."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from catalogs.hardware.catalog import parse_hardware
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.evaluation.capacity import find_capacity
from planner.evaluation.evaluator import Verdict
from planner.problem.candidate import Candidate
from planner.search.objectives import TIE, CandidateTester, RunSizes
from planner.studies.rerun import Rerun
from planner.studies.sensitivity_inputs import PREFIX, PRICE, RATE, InputChange, SensitivityInput

#: Relative: these capacities are only compared with each other.
CAPACITY_TOLERANCE: Final = 0.03

#: Halvings of the distance to a flip, on a logarithmic scale: of x 2, what is left is 4 %.
HALVINGS: Final = 4

#: Another plan, which this answer does not hold: of more hardware, as a rule.
NONE_HERE: Final = -1

RACES: Final = ("cost", "throughput", "goodput")


@dataclass(frozen=True, slots=True)
class ComparedCandidate:
    """The chosen plan under a variant. capacity_per_s: None where no rate holds."""

    variant: InputChange
    bench: CandidateTester
    capacity_per_s: float | None
    verdict: Verdict  # at the planned rate times the variant's load


@dataclass(frozen=True, slots=True)
class Flip:
    """value: of the dial, where another plan takes over (the middle of what is left); rival: which, NONE_HERE where the
    chosen plan no longer carries what was asked for and no other of the answer does."""

    value: float
    rival: int


@dataclass(frozen=True)
class ChoiceFlips:
    """The plans of an answer under the same requests, one seed."""

    answer: Answer
    rerun: Rerun

    @property
    def plan(self) -> Plan:
        return self.answer.plans[0]

    @property
    def rate(self) -> float:
        """Planned."""
        return self.plan.requests_per_s or 0.0

    @cached_property
    def base(self) -> float:
        """Capacity of the chosen plan with nothing changed, requests per second."""
        guess = self.plan.capacity_requests_per_s or self.rate
        return capacity(shorter(self.rerun.bench), self.rerun.candidates[0], guess) or guess

    def see(self, variant: InputChange) -> ComparedCandidate:
        """The chosen plan under a variant."""
        bench, candidate = self._bench(variant), self.rerun.candidates[0]
        found = self.base if variant.world is None else capacity(bench, candidate, self.base)
        return ComparedCandidate(
            variant, bench, found, bench.probe(candidate, self.rate * variant.load, bench.sizes.full)
        )

    def _bench(self, variant: InputChange) -> CandidateTester:
        return replace(shorter(self.rerun.bench), evaluator=variant.world or self.rerun.world)

    def of(self, seen: ComparedCandidate) -> int:
        """The first alternative that beats the chosen plan by more than a tie; 0 where the choice stays."""
        for i, plan in enumerate(self.answer.alternatives, 1):
            if self._beats(plan, self.rerun.candidates[i], seen):
                return i
        return NONE_HERE if self.answer.request.given and not seen.verdict.met else 0

    def _beats(self, plan: Plan, candidate: Candidate, seen: ComparedCandidate) -> bool:
        bench, verdict = seen.bench, seen.verdict
        objective, given = self.answer.request.objective, self.answer.request.given
        takes = self._takes(plan, seen.variant)
        if objective in RACES and not (given and objective == "cost"):
            found = seen.capacity_per_s
            return found is None or holds(bench, candidate, found * takes * (1 + TIE))
        rate = self.rate * seen.variant.load
        if not verdict.met:
            return holds(bench, candidate, rate)
        if objective == "cost":
            return takes < 1 - TIE and holds(bench, candidate, rate)
        other = bench.probe(candidate, rate, bench.sizes.full)
        if objective in ("energy", "carbon"):
            return other.met and other.joules_per_output_token < verdict.joules_per_output_token * (1 - TIE)
        return other.met and other.ratio < verdict.ratio * (1 - TIE)

    def _takes(self, plan: Plan, variant: InputChange) -> float:
        """What an alternative takes over what the chosen plan takes: dollars, accelerators, or nothing that differs."""
        objective = self.answer.request.objective
        if objective == "goodput":
            sizes = [parse_hardware(str(p.deployment["hardware"])).n_accelerators for p in (plan, self.plan)]
            return sizes[0] / sizes[1]
        ours, theirs = self.plan.usd_per_hour, plan.usd_per_hour
        if objective != "cost" or not ours or not theirs:
            return 1.0
        return theirs / ours / (1.0 if self._same_kind(plan) else variant.price)

    def _same_kind(self, plan: Plan) -> bool:
        """Whether its accelerators are of the kind of the chosen plan's, so that their price moves with its."""
        kinds = {parse_hardware(str(p.deployment["hardware"])).accelerator.name for p in (plan, self.plan)}
        return len(kinds) == 1

    # ---- where the choice flips

    def flip(self, dial: SensitivityInput, end: float, at_end: ComparedCandidate | None = None) -> Flip | None:
        """The value nearest to where the dial stands at which another plan takes over, looked for up to `end`; None
        where none does at the end. at_end: what is seen there, if it is known."""
        if end == dial.at:
            return None
        rival = self.of(at_end or self.see(dial.turn(end)))
        if not rival:
            return None
        near, far = dial.at, end
        for _ in range(HALVINGS):
            middle = _between(near, far)
            found = self.of(self.see(dial.turn(middle)))
            if found:
                far, rival = middle, found
            else:
                near = middle
        return Flip(_between(near, far), rival)

    def never(self, dial: SensitivityInput) -> str:
        """Why turning a dial cannot flip the choice; empty where it might."""
        if not self.answer.alternatives and (dial.name == PRICE or not self.answer.request.given):
            return "the answer holds no alternative to flip to"
        if dial.name == PRICE and self.answer.request.objective != "cost":
            return "never: the choice is not by price"
        if dial.name == PRICE and all(map(self._same_kind, self.answer.alternatives)):
            return "never: every plan here is on the same kind of hardware"
        if dial.name == RATE and not self.answer.request.given:
            return "never: no rate was asked for, the plan is for the highest"
        return ""


def _between(a: float, b: float) -> float:
    """The geometric middle; the plain one where one is 0."""
    return math.sqrt(a * b) if a > 0 and b > 0 else (a + b) / 2


def flip_words(dial: SensitivityInput, low: Flip | None, high: Flip | None) -> str:
    """ "below x 0.71 alternative 1, above x 1.3 alternative 2"; or how far none was found."""
    sides = [(low, "below"), (high, "above")]
    said = [f"{side} {dial.words(f.value)}: {_taker(f)}" for f, side in sides if f is not None]
    return "; ".join(said) or f"never {_within(dial)}"


def _taker(flip: Flip) -> str:
    return f"alternative {flip.rival}" if flip.rival > 0 else "no plan of this answer carries it"


def _within(dial: SensitivityInput) -> str:
    low, high = dial.ends
    if dial.name != PREFIX and math.isclose(low * high, 1.0):
        return f"within x {high:g} either way"
    if low >= dial.at:
        return f"up to {dial.words(high)}"
    return f"between {dial.words(low)} and {dial.words(high)}"


def shorter(bench: CandidateTester) -> CandidateTester:
    """Runs half as long: ratios of runs of the same requests need fewer of them than their values do."""
    sizes = bench.sizes
    return replace(bench, sizes=RunSizes(sizes.quick, max(sizes.full // 2, 2 * sizes.quick)))


def capacity(bench: CandidateTester, candidate: Candidate, guess_per_s: float) -> float | None:
    """Highest rate that holds with the bench's one seed; None where even a light load does not."""
    floor = bench.probe(candidate, bench.evaluator.light_requests_per_s(candidate), bench.sizes.quick)
    if not floor.met:
        return None
    probe = lambda rate: bench.probe(candidate, rate, bench.sizes.full)  # noqa: E731
    return find_capacity(probe, guess_per_s, floor, CAPACITY_TOLERANCE).requests_per_s


def holds(bench: CandidateTester, candidate: Candidate, rate: float) -> bool:
    quick = bench.probe(candidate, rate, bench.sizes.quick)
    return not quick.hopeless and bench.probe(candidate, rate, bench.sizes.full).met
