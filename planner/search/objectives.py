"""Measure one candidate against the best so far, with as few simulated requests as the comparison needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, Literal, Protocol

from planner.evaluation.capacity import find_capacity
from planner.evaluation.confidence import allowance_for
from planner.evaluation.evaluator import (
    NO_ALLOWANCE,
    SHORT_RUN_MARGIN,
    ErrorAllowance,
    Evaluator,
    Load,
    RequestCounter,
    RunSizes,
    Verdict,
    judge,
)
from planner.evaluation.queueing import OVERLOAD
from planner.problem.candidate import Candidate
from planner.problem.demand import RequiredRates
from planner.problem.slo import Slo
from planner.search.ordering import (
    best_on_most_of_each_kind,
    interleaved,
    most_promising_first,
    one_of_each_placement_first,
    placed_and_typed,
    twins_last,
)

#: Two plans that differ by less than this share tie: bisection resolves no more, and the simpler one is preferred.
TIE: Final = 0.02

#: Added to value / limit if the system does not keep up, so that it ranks after all systems that do.
UNSTABLE: Final = 1000.0

#: A candidate whose estimated energy is above that of the best by this factor is taken to be unable to win, if it
#: differs from the best only in its limits. Estimates of other placements and hardware are off by more than that.
ESTIMATE_MARGIN: Final = 1.3

#: A short run whose energy of a token is above that of the best by more than this factor rules a candidate out
#: (benchmarks/short_runs.py measures how far a short run is above a full one).
SHORT_ENERGY_MARGIN: Final = 1.1

#: Candidates up to this estimated value / limit may meet the objectives.
LIKELY_RATIO: Final = 2.0

#: Halvings of the search for an estimated capacity, on a logarithmic scale.
_GUESS_STEPS: Final = 7

#: The share of the saturation rate at which the energy of a candidate without a required load is estimated.
FULL_LOAD: Final = 0.8

Status = Literal["measured", "tied", "pruned", "infeasible"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of measuring a candidate; rates are of the whole deployment.

    Attributes:
        candidate: The candidate.
        status: How the measurement ended.
        requests_per_s: A rate that meets the objectives (0: none known).
        upper_requests_per_s: A rate that does not (inf: none known).
        ratio: Value / limit of the binding objective in the last run.
        binding: Name of this objective.
        score: The score (lower is better), or None.
        n_requests: Requests simulated for this outcome.
    """

    candidate: Candidate
    status: Status
    requests_per_s: float
    upper_requests_per_s: float
    ratio: float
    binding: str
    score: float | None
    n_requests: int = 0

    @property
    def feasible(self) -> bool:
        """Return whether the candidate meets the objectives."""
        return self.status in ("measured", "tied")

    def as_dict(self) -> dict[str, object]:
        """Return the outcome as a study stores it."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"candidate": self.candidate.as_dict()}

    @classmethod
    def from_dict(cls, stored: dict[str, object], candidate: Candidate) -> Outcome:
        """Return the outcome of a stored dict; the candidate comes from the study and is not parsed again."""
        return cls(**(stored | {"candidate": candidate}))  # type: ignore[arg-type]


class Assess(Protocol):
    """Measures a candidate."""

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate, given the best outcome so far (None: nothing feasible yet)."""


class ObjectiveAssess(Assess, Protocol):
    """Measures candidates for one objective, and estimates without simulation which of them are promising."""

    def outclassed(self, candidate: Candidate, best: Outcome) -> bool:
        """Return whether a candidate is estimated so far behind the best outcome that it cannot win."""

    def in_order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in order of promise by the objective's own estimate."""

    def safest_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in the order in which they are expected to meet the objectives at all."""


@dataclass(frozen=True, slots=True)
class CountedAssess:
    """Measures a candidate and adds the simulated requests to its outcome; `counter` is that of the tester in use."""

    assess: ObjectiveAssess
    counter: RequestCounter

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate, with its simulated requests."""
        self.counter.restart()
        outcome = self.assess(candidate, best)
        return replace(outcome, n_requests=self.counter.n_requests)

    def outclassed(self, candidate: Candidate, best: Outcome) -> bool:
        """Return whether a candidate cannot win."""
        return self.assess.outclassed(candidate, best)

    def in_order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in order of promise."""
        return self.assess.in_order(candidates)

    def safest_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that are expected to meet the objectives first."""
        return self.assess.safest_first(candidates)


def equal_unit_cost(_: Candidate) -> float:
    """Return the same unit cost, 1, for every candidate."""
    return 1.0


@dataclass(frozen=True, slots=True)
class CandidateTester:
    """Runs candidates with one seed against the objectives: every candidate gets the same requests.

    An objective counts as met if it is met with the required confidence: the run has the steps, and the verdict the
    latencies, that are as slow as the stated error has them at that probability level.

    Attributes:
        evaluator: Simulates the candidates.
        slos: The objectives.
        sizes: Requests of quick and full runs.
        seed: The seed of every run.
        confidence: The probability with which each objective must be met.
        requests_per_s: The required rate; None: any.
        required: Determines the required rate if it depends on the candidate.
        counter: Counts the requests of every run.
        fixed_allowance: Replaces the allowance for the stated error where a plan is compared with itself under changed
            inputs: the change alone must show, and not the error of simulating it.
    """

    evaluator: Evaluator
    slos: tuple[Slo, ...]
    sizes: RunSizes
    seed: int
    confidence: float
    requests_per_s: float | None
    required: RequiredRates | None = None
    counter: RequestCounter | None = None
    fixed_allowance: ErrorAllowance | None = None

    def nominal_per_s(self, candidate: Candidate) -> float | None:
        """Return the required rate of a candidate with every replica running; None: any."""
        return self.requests_per_s if self.required is None else self.required.nominal_per_s(candidate)

    def held_per_s(self, candidate: Candidate) -> float | None:
        """Return the rate at which a candidate must meet the objectives: above nominal if replicas may be lost."""
        return self.requests_per_s if self.required is None else self.required.held_per_s(candidate)

    def allowance(self, candidate: Candidate) -> ErrorAllowance:
        """Return the allowance for the stated error of a candidate at the required confidence."""
        if self.fixed_allowance is not None:
            return self.fixed_allowance
        return allowance_for(self.confidence, self.evaluator.stated_error(candidate))

    def probe(self, candidate: Candidate, requests_per_s: float, n_requests: int) -> Verdict:
        """Return the verdict of one run on whether a rate meets the objectives with the required confidence."""
        return self._judged(candidate, requests_per_s, n_requests, self.allowance(candidate))

    def simulated(self, candidate: Candidate, requests_per_s: float, n_requests: int) -> Verdict:
        """Return the verdict of one run at a rate without an allowance for errors: for its mean values."""
        return self._judged(candidate, requests_per_s, n_requests, NO_ALLOWANCE)

    def _judged(self, candidate: Candidate, requests_per_s: float, n: int, allowance: ErrorAllowance) -> Verdict:
        load = Load(requests_per_s * allowance.speed, n, self.seed, patient=n >= self.sizes.full)
        seen = self.evaluator.observe(candidate, load)
        if self.counter is not None:
            self.counter.add(candidate, seen)
        return judge([seen], self.slos, allowance)

    def ruled_out(self, candidate: Candidate, short: Verdict, goal: float = 1.0, guessed_goal: float = 1.0) -> bool:
        """Return whether a short run rules a candidate out: it misses the goal by more than its noise.

        If the estimate reaches `guessed_goal`, one of the two is wrong. The run must then miss the goal, value / limit,
        by twice the noise on a logarithmic scale; otherwise a full run decides.
        """
        over = short.value_ratio / goal
        if not short.far_behind and over <= SHORT_RUN_MARGIN:
            return False
        return over > SHORT_RUN_MARGIN**2 or self.guessed_ratio(candidate, short.requests_per_s) > guessed_goal

    def guessed_ratio(self, candidate: Candidate, requests_per_s: float) -> float:
        """Return the estimated largest value / limit at a rate, with the allowance; infinite if overloaded.

        The allowance is that of a light load, because candidates are compared where they are promising.
        """
        allowance = self.allowance(candidate)
        rate = requests_per_s * allowance.speed
        return max(
            self.evaluator.guess_s(candidate, rate, slo.metric, slo.quantile)
            * allowance.latency(slo, 0.0)
            / slo.limit_s
            for slo in self.slos
        )

    def guessed_capacity_per_s(self, candidate: Candidate) -> float:
        """Return the estimated highest rate that meets the objectives; 0 if a light load is estimated to miss one."""
        low, high = self.evaluator.light_requests_per_s(candidate), self.evaluator.fluid_requests_per_s(candidate)
        if self.guessed_ratio(candidate, low) > 1:
            return 0.0
        for _ in range(_GUESS_STEPS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.guessed_ratio(candidate, middle) <= 1 else (low, middle)
        return low

    def floor_per_s(self, candidate: Candidate) -> float:
        """Return the least rate at which a candidate must meet the objectives: the required rate, or a light load."""
        return self.held_per_s(candidate) or self.evaluator.light_requests_per_s(candidate)

    def safest_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in the order in which they are expected to meet the objectives, whatever they score.

        First comes, for each kind, the candidate with the smallest estimated value / limit on the most accelerators: if
        it fails, the others are expected to fail. Then come in turn those with the smallest estimates at all, those of
        other placements, and those with the highest rate of a full batch, because any estimate may be wrong.
        """
        roomy = most_promising_first(candidates, lambda c: -self.evaluator.fluid_requests_per_s(c))
        ratios = {c: self.guessed_ratio(c, self.floor_per_s(c)) for c in candidates}
        fast = most_promising_first(roomy, lambda c: ratios[c])
        varied = [one_of_each_placement_first(order) for order in (fast, roomy)]
        rest = interleaved(twins_last(fast, lambda c: (ratios[c],), TIE / 2), *varied)
        return list(dict.fromkeys([*best_on_most_of_each_kind(fast), *rest]))

    def refuse(self, candidate: Candidate, best: Outcome | None, verdict: Verdict) -> Outcome:
        """Return the outcome of a candidate that misses; its ratio shows the sampler by how much."""
        ratio = verdict.value_ratio + (0.0 if verdict.stable else UNSTABLE)
        status: Status = "infeasible" if best is None else "pruned"
        return Outcome(candidate, status, 0.0, verdict.requests_per_s, ratio, verdict.worst.name, None)

    def capacity(self, candidate: Candidate, floor: Verdict, guess_per_s: float) -> Outcome:
        """Return the outcome of a search for the highest rate that meets the objectives."""
        found = find_capacity(lambda r: self.probe(candidate, r, self.sizes.full), guess_per_s, floor)
        rate, upper, at = found.requests_per_s, found.upper_requests_per_s, found.at_capacity
        return Outcome(candidate, "measured", rate, upper, at.ratio, at.worst.name, -rate)


@dataclass(frozen=True, slots=True)
class CapacityRace:
    """Finds the highest capacity per unit cost: US dollars per hour (cost), accelerators (goodput), or 1 (throughput).

    A candidate must beat the best so far by more than a tie, in one short run and then in one full run. Only then its
    capacity is bisected, so most candidates cost a single short simulation. A candidate that is simpler than the best
    (see `space.distance_from_defaults`) only needs to tie with it.
    """

    tester: CandidateTester
    distance_from_defaults: Callable[[Candidate], tuple[int, ...]]
    unit_cost: Callable[[Candidate], float] = equal_unit_cost

    def outclassed(self, candidate: Candidate, best: Outcome) -> bool:
        """Return whether the estimated rate with a full batch is far below the rate needed to match the best."""
        most_per_s = self.tester.evaluator.fluid_requests_per_s(candidate) * OVERLOAD
        return most_per_s < self._break_even_per_s(candidate, best) * (1 - TIE)

    def _break_even_per_s(self, candidate: Candidate, best: Outcome) -> float:
        """Return the rate at which a candidate is as good as the best."""
        return best.requests_per_s * self.unit_cost(candidate) / self.unit_cost(best.candidate)

    def in_order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates by their estimated rate with a full batch per unit cost.

        In turn come those with the highest estimated capacity: latency objectives may leave little of that rate.
        """
        fastest = most_promising_first(candidates, self._estimate, default_limits_first=True)
        estimates = {c: -self.tester.guessed_capacity_per_s(c) / self.unit_cost(c) for c in fastest}
        largest = sorted(fastest, key=estimates.__getitem__)
        return twins_last(interleaved(fastest, largest), lambda c: (self._estimate(c), estimates[c]), TIE / 2)

    def safest_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that are expected to meet the objectives first."""
        return self.tester.safest_first(candidates)

    def _estimate(self, candidate: Candidate) -> float:
        return -self.tester.evaluator.fluid_requests_per_s(candidate) / self.unit_cost(candidate)

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate against the best so far, or at the least rate if there is none."""
        tester = self.tester
        if best is None:
            floor = self._race(candidate, tester.floor_per_s(candidate))
            if not floor.met:
                return tester.refuse(candidate, None, floor)
            return self._scored(tester.capacity(candidate, floor, tester.evaluator.fluid_requests_per_s(candidate)))
        break_even_per_s = self._break_even_per_s(candidate, best)
        above = self._race(candidate, max(break_even_per_s * (1 + TIE), tester.held_per_s(candidate) or 0.0))
        if above.met:
            return self._scored(tester.capacity(candidate, above, above.requests_per_s * 1.1))
        if self.distance_from_defaults(candidate) >= self.distance_from_defaults(best.candidate):
            return tester.refuse(candidate, best, above)
        tied = self._race(candidate, max(break_even_per_s * (1 - TIE), tester.held_per_s(candidate) or 0.0))
        if not tied.met:
            return tester.refuse(candidate, best, tied)
        rate, ratio, binding = tied.requests_per_s, tied.ratio, tied.worst.name
        return self._scored(Outcome(candidate, "tied", rate, above.requests_per_s, ratio, binding, -rate))

    def _scored(self, outcome: Outcome) -> Outcome:
        return replace(outcome, score=-outcome.requests_per_s / self.unit_cost(outcome.candidate))

    def _race(self, candidate: Candidate, rate: float) -> Verdict:
        """Return the verdict of a full run, or of a short one that misses clearly; only a full run counts as met."""
        quick = self.tester.probe(candidate, rate, self.tester.sizes.quick)
        if self.tester.ruled_out(candidate, quick):
            return replace(quick, stable=False) if quick.met else quick
        return self.tester.probe(candidate, rate, self.tester.sizes.full)


@dataclass(frozen=True, slots=True)
class LowestEnergy:
    """Finds the fewest joules per output token, at the required rate or else at the candidate's own capacity.

    Runs with the allowance for errors have a higher rate than the required one, and so fuller batches and fewer joules
    for each token. A candidate that needs more than the best even there cannot win, whether it meets the objectives or
    not, and is not simulated further.

    Attributes:
        tester: Runs the candidates.
        weight: Returns the factor on a candidate's joules: 1, or for carbon the grams per kWh of its electricity.
    """

    tester: CandidateTester
    weight: Callable[[Candidate], float] = equal_unit_cost
    _estimates: dict[tuple[Candidate, float], float] = field(default_factory=dict, repr=False, compare=False)

    def outclassed(self, candidate: Candidate, best: Outcome) -> bool:
        """Return whether idle power alone is too much, or its estimate is far above that of the best."""
        if best.score is None or self._idle(candidate) > best.score:
            return best.score is not None
        alike = placed_and_typed(candidate) == placed_and_typed(best.candidate)
        return alike and self._estimate(candidate) > ESTIMATE_MARGIN * self._estimate(best.candidate)

    def in_order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates by their estimated energy, those first that are estimated to meet the objectives."""
        tester = self.tester
        ratios = {c: tester.guessed_ratio(c, tester.held_per_s(c) or tester.floor_per_s(c)) for c in candidates}
        estimates = {c: self._estimate(c) for c in candidates}
        orders = (most_promising_first(candidates, lambda c: estimates[c], first) for first in (False, True))
        thriftiest = twins_last(interleaved(*orders), lambda c: (estimates[c], ratios[c]), TIE / 2)
        return sorted(thriftiest, key=lambda c: ratios[c] > LIKELY_RATIO)

    def safest_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that are expected to meet the objectives first."""
        return self.tester.safest_first(candidates)

    def _idle(self, candidate: Candidate) -> float:
        """Return the energy of an output token that idle power alone would need: a deployment cannot use less."""
        tester = self.tester
        idle_w = tester.evaluator.guess_w(candidate, tester.evaluator.light_requests_per_s(candidate))
        rate = tester.nominal_per_s(candidate) or tester.evaluator.fluid_requests_per_s(candidate) * OVERLOAD
        return self.weight(candidate) * idle_w / (rate * tester.evaluator.mean_output_tokens)

    def _estimate(self, candidate: Candidate) -> float:
        tester = self.tester
        nominal = tester.nominal_per_s(candidate)
        full_per_s = tester.evaluator.fluid_requests_per_s(candidate)
        rate = FULL_LOAD * full_per_s if nominal is None else min(nominal, full_per_s)
        if (candidate, rate) not in self._estimates:
            joules = tester.evaluator.guess_w(candidate, rate) / (rate * tester.evaluator.mean_output_tokens)
            self._estimates[candidate, rate] = self.weight(candidate) * joules
        return self._estimates[candidate, rate]

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate against the best so far."""
        tester, sizes = self.tester, self.tester.sizes
        nominal, held = tester.nominal_per_s(candidate), tester.held_per_s(candidate)
        if nominal is not None and held is not None:
            quick = tester.probe(candidate, held, sizes.quick)
            if tester.ruled_out(candidate, quick):
                return tester.refuse(candidate, best, quick)
            if self._loses(candidate, best, quick, SHORT_ENERGY_MARGIN):
                return tester.refuse(candidate, best, quick)
            strained = tester.probe(candidate, held, sizes.full)
            if not strained.met or self._loses(candidate, best, strained, 1 + TIE):
                return tester.refuse(candidate, best, strained)
            return self._scored(candidate, nominal, strained)
        guess = tester.evaluator.fluid_requests_per_s(candidate)
        if best is not None and best.score is not None:
            full_load = tester.simulated(candidate, guess, sizes.quick)  # batches are at least as full as at capacity
            if self._loses(candidate, best, full_load, SHORT_ENERGY_MARGIN):
                return tester.refuse(candidate, best, full_load)
        floor = tester.probe(candidate, tester.floor_per_s(candidate), sizes.quick)
        if tester.ruled_out(candidate, floor):
            return tester.refuse(candidate, None, floor)
        found = find_capacity(lambda r: tester.probe(candidate, r, sizes.quick), guess, floor, 0.05)
        rate = found.requests_per_s
        verdict = tester.probe(candidate, rate, sizes.full)
        while not verdict.met and rate > tester.floor_per_s(candidate):
            rate *= 1 - 2 * TIE  # the short runs were slightly too optimistic
            verdict = tester.probe(candidate, rate, sizes.full)
        return self._scored(candidate, rate, verdict) if verdict.met else tester.refuse(candidate, best, verdict)

    def _loses(self, candidate: Candidate, best: Outcome | None, verdict: Verdict, margin: float) -> bool:
        """Return whether a run with batches at least as full needs more energy than the best, by more than a factor."""
        if best is None or best.score is None:
            return False
        return self.weight(candidate) * verdict.joules_per_output_token > best.score * margin

    def _scored(self, candidate: Candidate, rate: float, verdict: Verdict) -> Outcome:
        """Return the outcome of a candidate that meets the objectives, with the energy of a run without allowance."""
        plain = self.tester.simulated(candidate, rate, self.tester.sizes.full)
        score = self.weight(candidate) * plain.joules_per_output_token
        return Outcome(candidate, "measured", rate, float("inf"), verdict.ratio, verdict.worst.name, score)


@dataclass(frozen=True, slots=True)
class LowestLatency:
    """Finds the smallest worst value / limit at the required rate, or else under a light load common to all."""

    tester: CandidateTester

    def outclassed(self, candidate: Candidate, best: Outcome) -> bool:  # noqa: ARG002
        """Return False: estimates of percentiles are too uncertain to rule a candidate out."""
        return False

    def in_order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates by their estimated largest value / limit; at equal estimates, the fastest first.

        Every other candidate is the first of its placement, so that many limits of one placement do not come first.
        """
        fastest = most_promising_first(candidates, lambda c: -self.tester.evaluator.fluid_requests_per_s(c))
        ratios = {c: self.tester.guessed_ratio(c, self.tester.floor_per_s(c)) for c in fastest}
        orders = (most_promising_first(fastest, lambda c: ratios[c], first) for first in (False, True))
        return twins_last(interleaved(*orders), lambda c: (ratios[c],), TIE / 2)

    def safest_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that are expected to meet the objectives first."""
        return self.tester.safest_first(candidates)

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate against the best so far."""
        tester, sizes = self.tester, self.tester.sizes
        rate = tester.floor_per_s(candidate)
        quick = tester.probe(candidate, rate, sizes.quick)
        goals = (1.0, 1.0)
        if best is not None and best.score is not None and best.score < 1:
            goals = best.score, tester.guessed_ratio(best.candidate, rate)
        if tester.ruled_out(candidate, quick, *goals):
            return tester.refuse(candidate, best, quick)
        full = tester.probe(candidate, rate, sizes.full)
        if not full.met:
            return tester.refuse(candidate, best, full)
        return Outcome(candidate, "measured", rate, float("inf"), full.ratio, full.worst.name, full.ratio)


def assess_for(
    objective: str,
    tester: CandidateTester,
    distance_from_defaults: Callable[[Candidate], tuple[int, ...]],
    unit_cost: Callable[[Candidate], float],
    gco2e_per_kwh: Callable[[Candidate], float] = equal_unit_cost,
) -> ObjectiveAssess:
    """Return what measures the candidates of a search for an objective (see PlanRequest.objective)."""
    if objective in ("energy", "carbon"):
        return LowestEnergy(tester, gco2e_per_kwh if objective == "carbon" else equal_unit_cost)
    if objective == "latency":
        return LowestLatency(tester)
    with_load = tester.requests_per_s is not None or tester.required is not None
    equal = objective == "cost" and with_load  # the groups of the search have one price each
    return CapacityRace(tester, distance_from_defaults, equal_unit_cost if equal else unit_cost)
