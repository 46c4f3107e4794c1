"""Measure candidates for each objective: each against the best so far, with as few simulated requests as needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from planner.evaluation.capacity import WIDEN, find_capacity
from planner.evaluation.stability import OVERLOAD
from planner.evaluation.verdict import Verdict
from planner.problem.candidate import Candidate
from planner.search.candidate_tester import HALF_TIE, TIE, Assess, CandidateTester, Outcome, RequestCounter
from planner.search.ordering import interleaved, most_promising_first, placed_and_typed, redundant_last

#: A candidate whose estimated energy is above that of the best by this factor is taken to be unable to win, if it
#: differs from the best only in its limits. Estimates of other placements and hardware are off by more than that.
ESTIMATE_MARGIN: Final = 1.3

#: A short run whose energy of a token is above that of the best by more than this factor rules a candidate out
#: (benchmarks/short_runs.py measures how far a short run is above a full one).
SHORT_ENERGY_MARGIN: Final = 1.1

#: A simpler candidate is compared with the best at the rate at which its estimated energy is higher by this factor. The
#: factor is more than a tie, because estimates are a few per cent off, and decides only which rate is simulated.
_CLEARLY_MORE: Final = 1.04

#: Relative distance of the two rates between which the capacity of a candidate lies in a search for the least energy.
_RATE_TOLERANCE: Final = TIE

#: Steps of the iteration that finds the rate of a comparison. A judgement: watts hardly depend on the rate, so that the
#: first step nearly ends it.
_EQUAL_ENERGY_STEPS: Final = 3

#: Candidates up to this estimated value / limit may meet the objectives. A judgement: estimates are rarely off by a
#: factor of 2.
LIKELY_RATIO: Final = 2.0

#: Rates that differ by less than this share are equal but for rounding.
_ROUNDING: Final = 1e-9

#: Factor between the first two rates of the search for a capacity that starts from that of a known plan. A judgement:
#: the guess is then scaled by what is known, so that a short step is enough.
STEP_FROM_KNOWN: Final = 1.1

#: The share of the saturation rate at which the energy of a candidate without a required load is estimated. A
#: judgement: about where the capacity of a candidate with objectives lies.
FULL_LOAD: Final = 0.8


class ObjectiveAssess(Assess, Protocol):
    """Measures candidates for one objective, and estimates without simulation which of them are promising."""

    def settled(self, candidate: Candidate, best: Outcome, faster: Outcome) -> bool:
        """Return whether a candidate cannot win, because another one that can only be faster missed what it needs."""

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

    def settled(self, candidate: Candidate, best: Outcome, faster: Outcome) -> bool:
        """Return whether a candidate cannot win, because a faster one missed what it needs."""
        return self.assess.settled(candidate, best, faster)

    def in_order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in order of promise."""
        return self.assess.in_order(candidates)

    def safest_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in the order in which they are expected to meet the objectives."""
        return self.assess.safest_first(candidates)


def equal_unit_cost(_: Candidate) -> float:
    """Return the same unit cost, 1, for every candidate."""
    return 1.0


def is_simpler(
    distance_from_defaults: Callable[[Candidate], tuple[int, ...]], candidate: Candidate, other: Candidate
) -> bool:
    """Return whether a candidate is closer to the defaults than another."""
    return distance_from_defaults(candidate) < distance_from_defaults(other)


@dataclass(frozen=True, slots=True)
class CapacityRace:
    """Finds the highest capacity per unit cost: US dollars per hour (cost), accelerators (goodput), or 1 (throughput).

    A candidate must beat the best so far by more than half of a tie, in one short run and then in one full run. Only
    then its capacity is bisected, so most candidates cost a single short simulation. A candidate that is simpler than
    the best (see `space.distance_from_defaults`) may be worse by half of a tie. Capacities are bisected to half of a
    tie too. The simplest plan within half of a tie of the best rate is thus at most a tie worse than any candidate.
    """

    tester: CandidateTester
    distance_from_defaults: Callable[[Candidate], tuple[int, ...]]
    unit_cost: Callable[[Candidate], float] = equal_unit_cost

    def outclassed(self, candidate: Candidate, best: Outcome) -> bool:
        """Return whether the estimated rate with a full batch is far below the rate needed to match the best."""
        most_per_s = self.tester.evaluator.fluid_requests_per_s(candidate) * OVERLOAD
        return most_per_s < self._break_even_per_s(candidate, best) * (1 - HALF_TIE)

    def settled(self, candidate: Candidate, best: Outcome, faster: Outcome) -> bool:
        """Return whether a faster candidate missed a rate that this one would have to carry."""
        return faster.upper_requests_per_s <= self._least_per_s(candidate, best) * (1 + _ROUNDING)

    def _least_per_s(self, candidate: Candidate, best: Outcome) -> float:
        """Return the rate that a candidate must carry to replace the best: as the better, or as the simpler one."""
        sign = -1 if is_simpler(self.distance_from_defaults, candidate, best.candidate) else 1
        least = self._break_even_per_s(candidate, best) * (1 + sign * HALF_TIE)
        return max(least, self.tester.held_per_s(candidate) or 0.0)

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
        return redundant_last(interleaved(fastest, largest), lambda c: (self._estimate(c), estimates[c]), HALF_TIE)

    def safest_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in the order in which they are expected to meet the objectives."""
        return self.tester.safest_first(candidates)

    def _estimate(self, candidate: Candidate) -> float:
        return -self.tester.evaluator.fluid_requests_per_s(candidate) / self.unit_cost(candidate)

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate against the best so far, or at the least rate if there is none."""
        tester = self.tester
        if best is None:
            floor = tester.race(candidate, tester.floor_per_s(candidate))
            if not floor.met:
                return tester.refuse(candidate, None, floor)
            return self._scored(tester.capacity(candidate, floor, tester.start_per_s(candidate), first=True))
        tied = None
        if is_simpler(self.distance_from_defaults, candidate, best.candidate):
            tied = tester.race(candidate, self._least_per_s(candidate, best))
            if not tied.met:
                return tester.refuse(candidate, best, tied)
        better_per_s = self._break_even_per_s(candidate, best) * (1 + HALF_TIE)
        above = tester.race(candidate, max(better_per_s, tester.held_per_s(candidate) or 0.0))
        if above.met:
            return self._scored(tester.capacity(candidate, above, above.requests_per_s * STEP_FROM_KNOWN))
        if tied is None:
            return tester.refuse(candidate, best, above)
        rate, ratio, binding = tied.requests_per_s, tied.ratio, tied.worst.name
        return self._scored(Outcome(candidate, "tied", rate, above.requests_per_s, ratio, binding, -rate))

    def _scored(self, outcome: Outcome) -> Outcome:
        return replace(outcome, score=-outcome.requests_per_s / self.unit_cost(outcome.candidate))


@dataclass(frozen=True, slots=True)
class LeastLoad:
    """Finds out whether a candidate meets the objectives at the least rate, in the order of another objective.

    This is enough where any plan answers the question, such as whether other hardware would meet a request.
    """

    tester: CandidateTester
    objective: ObjectiveAssess

    def settled(self, candidate: Candidate, best: Outcome, faster: Outcome) -> bool:  # noqa: ARG002
        """Return False: the search ends with the first plan, so there is no best to lose to."""
        return False

    def outclassed(self, candidate: Candidate, best: Outcome) -> bool:
        """Return whether a candidate cannot win by the objective."""
        return self.objective.outclassed(candidate, best)

    def in_order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in the order of the objective."""
        return self.objective.in_order(candidates)

    def safest_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in the order in which they are expected to meet the objectives."""
        return self.objective.safest_first(candidates)

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate at the least rate, whatever the best so far is."""
        least = self.tester.race(candidate, self.tester.floor_per_s(candidate))
        if not least.met:
            return self.tester.refuse(candidate, best, least)
        rate = least.requests_per_s
        return Outcome(candidate, "measured", rate, math.inf, least.ratio, least.worst.name, -rate)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A run of a candidate at one rate, and whether it shows that the candidate cannot win."""

    verdict: Verdict
    lost: bool


@dataclass(frozen=True, slots=True)
class LowestEnergy:
    """Finds the fewest joules per output token, at the required rate or else at the candidate's own capacity.

    Runs with the allowance for errors have a higher rate than the required one, and so fuller batches and fewer joules
    for each token. A candidate that needs more energy than the best even in such a run cannot win, whether it meets the
    objectives or not, and is not simulated further.

    Attributes:
        tester: Runs the candidates.
        distance_from_defaults: Returns how far a candidate is from the defaults of its hardware.
        weight: Returns the factor on a candidate's joules: 1, or for carbon the grams per kWh of its electricity.
    """

    tester: CandidateTester
    distance_from_defaults: Callable[[Candidate], tuple[int, ...]]
    weight: Callable[[Candidate], float] = equal_unit_cost
    _estimates: dict[tuple[Candidate, float], float] = field(default_factory=dict, repr=False, compare=False)
    _idles: dict[Candidate, float] = field(default_factory=dict, repr=False, compare=False)

    def settled(self, candidate: Candidate, best: Outcome, faster: Outcome) -> bool:  # noqa: ARG002
        """Return False: faster steps may need more energy."""
        return False

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
        thriftiest = redundant_last(interleaved(*orders), lambda c: (estimates[c], ratios[c]), HALF_TIE)
        return sorted(thriftiest, key=lambda c: ratios[c] > LIKELY_RATIO)

    def safest_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in the order in which they are expected to meet the objectives."""
        return self.tester.safest_first(candidates)

    def _idle(self, candidate: Candidate) -> float:
        """Return the energy of an output token that idle power alone would need: a deployment cannot use less."""
        if candidate not in self._idles:  # every candidate is compared with every new best
            tester = self.tester
            idle_w = tester.evaluator.guess_w(candidate, tester.evaluator.light_requests_per_s(candidate))
            rate = tester.nominal_per_s(candidate) or tester.evaluator.fluid_requests_per_s(candidate) * OVERLOAD
            self._idles[candidate] = self.weight(candidate) * idle_w / (rate * tester.evaluator.mean_output_tokens)
        return self._idles[candidate]

    def _estimate(self, candidate: Candidate) -> float:
        tester = self.tester
        nominal = tester.nominal_per_s(candidate)
        full_per_s = tester.evaluator.fluid_requests_per_s(candidate)
        return self._joules(candidate, FULL_LOAD * full_per_s if nominal is None else min(nominal, full_per_s))

    def _joules(self, candidate: Candidate, rate: float) -> float:
        """Return the estimated energy of an output token at a rate, weighted."""
        if (candidate, rate) not in self._estimates:
            evaluator = self.tester.evaluator
            joules = evaluator.guess_w(candidate, rate) / (rate * evaluator.mean_output_tokens)
            self._estimates[candidate, rate] = self.weight(candidate) * joules
        return self._estimates[candidate, rate]

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate against the best so far."""
        tester, sizes = self.tester, self.tester.sizes
        nominal, held = tester.nominal_per_s(candidate), tester.held_per_s(candidate)
        if nominal is not None and held is not None:
            quick = tester.first_verdict(candidate, held)
            if quick is not None and (
                tester.ruled_out(candidate, quick) or self._loses(candidate, best, quick, SHORT_ENERGY_MARGIN)
            ):
                return tester.refuse(candidate, best, quick)
            strained = tester.probe(candidate, held, sizes.full)
            if not strained.met or self._loses(candidate, best, strained, 1 + TIE):
                return tester.refuse(candidate, best, strained)
            return self._scored(candidate, nominal, strained)
        compared = None if best is None else self._compared_at_some_rate(candidate, best)
        if compared is not None and compared.lost:
            return tester.refuse(candidate, best, compared.verdict)
        if compared is not None and compared.verdict.met:
            floor = compared.verdict
        else:
            floor = tester.probe(candidate, tester.floor_per_s(candidate), sizes.quick)
            if tester.ruled_out(candidate, floor):
                return tester.refuse(candidate, None, floor)

        start, step = tester.start_per_s(candidate, best), WIDEN if best is None else STEP_FROM_KNOWN
        probe = partial(tester.probe, candidate, n_requests=sizes.full)
        hopeless = partial(tester.hopeless, candidate) if best is None else None
        rate = find_capacity(probe, start, floor, _RATE_TOLERANCE, hopeless, step).requests_per_s
        verdict = probe(rate)  # the floor may be a short run
        return self._scored(candidate, rate, verdict) if verdict.met else tester.refuse(candidate, best, verdict)

    def _compared_at_some_rate(self, candidate: Candidate, best: Outcome) -> _Comparison | None:
        """Return what a run at one rate tells about a candidate without a required load; None without a best score.

        A token needs the least energy at the highest rate. So a candidate cannot win if it needs more than the best
        with full batches, or at a rate that it does not carry. The estimate chooses that rate, at which the candidate
        should need slightly more than the best, or slightly less if it is not simpler and must therefore be better by
        more than a tie; only simulated runs decide.
        """
        if best.score is None:
            return None
        tester, full_per_s = self.tester, self.tester.evaluator.fluid_requests_per_s(candidate)
        best_j = self._joules(best.candidate, best.requests_per_s)  # an estimate too, as `score` is simulated
        if self._joules(candidate, full_per_s) > best_j * SHORT_ENERGY_MARGIN:
            full_load = tester.simulated(candidate, full_per_s, tester.sizes.quick)
            if self._loses(candidate, best, full_load, SHORT_ENERGY_MARGIN):
                return _Comparison(full_load, lost=True)
        simpler = is_simpler(self.distance_from_defaults, candidate, best.candidate)
        rate, aim = full_per_s, _CLEARLY_MORE if simpler else 1 - HALF_TIE
        for _ in range(_EQUAL_ENERGY_STEPS):  # watts hardly depend on the rate, so that this converges at once
            rate = min(rate * self._joules(candidate, rate) / (best_j * aim), full_per_s)
        found = tester.race(candidate, rate)
        if found.met:
            return _Comparison(found, lost=False)
        there = tester.simulated(candidate, rate, tester.sizes.full)
        tied = 1 + TIE if simpler else 1 - TIE
        margin = tied if there.stable else SHORT_ENERGY_MARGIN  # filling up and draining count in an unstable run
        return _Comparison(found, self._loses(candidate, best, there, margin))

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

    def settled(self, candidate: Candidate, best: Outcome, faster: Outcome) -> bool:  # noqa: ARG002
        """Return False: plans with similar latencies differ by chance, so none is left out."""
        return False

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
        return redundant_last(interleaved(*orders), lambda c: (ratios[c],), HALF_TIE)

    def safest_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in the order in which they are expected to meet the objectives."""
        return self.tester.safest_first(candidates)

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate against the best so far."""
        tester, sizes = self.tester, self.tester.sizes
        rate = tester.floor_per_s(candidate)
        quick = tester.first_verdict(candidate, rate)
        goals = (1.0, 1.0)
        if best is not None and best.score is not None and best.score < 1:
            goals = best.score, tester.guessed_ratio(best.candidate, rate)
        if quick is not None and tester.ruled_out(candidate, quick, *goals):
            return tester.refuse(candidate, best, quick)
        full = tester.probe(candidate, rate, sizes.full)
        if not full.met:
            return tester.refuse(candidate, best, full)
        return Outcome(candidate, "measured", rate, float("inf"), full.ratio, full.worst.name, full.ratio)


def simplest_tied(
    outcomes: Sequence[Outcome], share: float, distance_from_defaults: Callable[[Candidate], tuple[int, ...]]
) -> Outcome:
    """Return the simplest of the outcomes whose score is at most a share worse than the best score."""
    scored = [(o.score, o) for o in outcomes if o.score is not None]
    best = min(score for score, _ in scored)
    tied = [(score, o) for score, o in scored if score <= best + share * abs(best)]
    return min(tied, key=lambda pair: (distance_from_defaults(pair[1].candidate), pair[0], pair[1].candidate))[1]


def assess_for(
    objective: str,
    tester: CandidateTester,
    distance_from_defaults: Callable[[Candidate], tuple[int, ...]],
    unit_cost: Callable[[Candidate], float],
    gco2e_per_kwh: Callable[[Candidate], float] = equal_unit_cost,
) -> ObjectiveAssess:
    """Return what measures the candidates of a search for an objective (see PlanRequest.objective)."""
    if objective in ("energy", "carbon"):
        return LowestEnergy(tester, distance_from_defaults, gco2e_per_kwh if objective == "carbon" else equal_unit_cost)
    if objective == "latency":
        return LowestLatency(tester)
    with_load = tester.requests_per_s is not None or tester.required is not None
    equal = objective == "cost" and with_load  # the groups of the search have one price each
    return CapacityRace(tester, distance_from_defaults, equal_unit_cost if equal else unit_cost)
