"""Measure one candidate against the best so far, with as few simulated requests as the comparison needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, Protocol

from planner.evaluation.capacity import find_capacity
from planner.evaluation.evaluator import SHORT_RUN_MARGIN, Evaluator, Load, RequestCounter, Verdict, judge
from planner.evaluation.queueing import OVERLOAD
from planner.problem.candidate import Candidate
from planner.problem.demand import RequiredRates
from planner.problem.slo import Slo

#: Two plans that differ by less than this share tie: bisection resolves no more, and the simpler one is preferred.
TIE: Final = 0.02

#: Added to value / limit if the system does not keep up, so that it ranks after all systems that do.
UNSTABLE: Final = 1000.0

Status = Literal["measured", "tied", "pruned", "infeasible"]


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Simulated requests of a quick run and of a full run: a percentile needs a dozen measured requests beyond it."""

    quick: int
    full: int

    @classmethod
    def for_slos(cls, slos: Sequence[Slo]) -> RunSizes:
        """Return the sizes that the highest percentile among the objectives needs."""
        beyond = min([1 - s.quantile for s in slos if s.quantile is not None] or [1.0])
        full = min(max(1000, round(16 / beyond)), 20_000)
        return cls(max(300, full // 5), full)

    def at_most(self, n: int) -> RunSizes:
        """Return sizes of at most `n` requests: enough if runs are only compared with each other."""
        return RunSizes(min(self.quick, n // 4), min(self.full, n))


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
    """Measures a candidate, given the best outcome so far (None: nothing feasible yet)."""

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate."""


@dataclass(frozen=True, slots=True)
class CountedAssess:
    """Measures a candidate and adds the simulated requests to its outcome; `counter` is that of the tester in use."""

    assess: Assess
    counter: RequestCounter

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate, with its simulated requests."""
        self.counter.restart()
        outcome = self.assess(candidate, best)
        return replace(outcome, n_requests=self.counter.n_requests)


def equal_unit_cost(_: Candidate) -> float:
    """Return the same unit cost, 1, for every candidate."""
    return 1.0


@dataclass(frozen=True, slots=True)
class CandidateTester:
    """Runs candidates with one seed against the objectives: every candidate gets the same requests.

    Attributes:
        evaluator: Simulates the candidates.
        slos: The objectives.
        sizes: Requests of quick and full runs.
        seed: The seed of every run.
        requests_per_s: The required rate; None: any.
        required: Determines the required rate if it depends on the candidate.
        counter: Counts the requests of every run.
    """

    evaluator: Evaluator
    slos: tuple[Slo, ...]
    sizes: RunSizes
    seed: int
    requests_per_s: float | None
    required: RequiredRates | None = None
    counter: RequestCounter | None = None

    def nominal_per_s(self, candidate: Candidate) -> float | None:
        """Return the required rate of a candidate with every replica running; None: any."""
        return self.requests_per_s if self.required is None else self.required.nominal_per_s(candidate)

    def held_per_s(self, candidate: Candidate) -> float | None:
        """Return the rate at which a candidate must meet the objectives: above nominal if replicas may be lost."""
        return self.requests_per_s if self.required is None else self.required.held_per_s(candidate)

    def probe(self, candidate: Candidate, requests_per_s: float, n_requests: int) -> Verdict:
        """Return the verdict of one run at a rate."""
        load = Load(requests_per_s, n_requests, self.seed, patient=n_requests >= self.sizes.full)
        seen = self.evaluator.observe(candidate, load)
        if self.counter is not None:
            self.counter.add(candidate, seen)
        return judge([seen], self.slos)

    def floor_per_s(self, candidate: Candidate) -> float:
        """Return the least rate at which a candidate must meet the objectives: the required rate, or a light load."""
        return self.held_per_s(candidate) or self.evaluator.light_requests_per_s(candidate)

    def refuse(self, candidate: Candidate, best: Outcome | None, verdict: Verdict) -> Outcome:
        """Return the outcome of a candidate that misses; its ratio shows the sampler by how much."""
        ratio = verdict.value_ratio if verdict.stable else UNSTABLE + verdict.value_ratio
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
        tied = self._race(candidate, break_even_per_s * (1 - TIE))
        if not tied.met:
            return tester.refuse(candidate, best, tied)
        rate, ratio, binding = tied.requests_per_s, tied.ratio, tied.worst.name
        return self._scored(Outcome(candidate, "tied", rate, above.requests_per_s, ratio, binding, -rate))

    def _scored(self, outcome: Outcome) -> Outcome:
        return replace(outcome, score=-outcome.requests_per_s / self.unit_cost(outcome.candidate))

    def _race(self, candidate: Candidate, rate: float) -> Verdict:
        """Return the verdict of a full run, or of a short one that misses clearly; only a full run counts as met."""
        quick = self.tester.probe(candidate, rate, self.tester.sizes.quick)
        if quick.clearly_missed:
            return replace(quick, stable=False) if quick.met else quick
        return self.tester.probe(candidate, rate, self.tester.sizes.full)


@dataclass(frozen=True, slots=True)
class LowestEnergy:
    """Finds the fewest joules per output token, at the required rate or else at the candidate's own capacity."""

    tester: CandidateTester

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate against the best so far."""
        tester, sizes = self.tester, self.tester.sizes
        nominal, held = tester.nominal_per_s(candidate), tester.held_per_s(candidate)
        if nominal is not None and held is not None:
            if held > nominal:
                strained = tester.probe(candidate, held, sizes.full)
                if not strained.met:
                    return tester.refuse(candidate, best, strained)
            return self._at(candidate, nominal, best)
        guess = tester.evaluator.fluid_requests_per_s(candidate)
        if best is not None and best.score is not None:
            full_load = tester.probe(candidate, guess, sizes.quick)  # batches are at least as full as at capacity
            if full_load.joules_per_output_token > best.score * (1 + TIE):
                return tester.refuse(candidate, best, full_load)
        floor = tester.probe(candidate, tester.floor_per_s(candidate), sizes.quick)
        if floor.clearly_missed:
            return tester.refuse(candidate, None, floor)
        found = find_capacity(lambda r: tester.probe(candidate, r, sizes.quick), guess, floor, 0.05)
        return self._at(candidate, found.requests_per_s, best)

    def _at(self, candidate: Candidate, rate: float, best: Outcome | None) -> Outcome:
        tester, sizes = self.tester, self.tester.sizes
        verdict = tester.probe(candidate, rate, sizes.quick)
        if verdict.clearly_missed:
            return tester.refuse(candidate, best, verdict)
        verdict = tester.probe(candidate, rate, sizes.full)
        any_rate = tester.nominal_per_s(candidate) is None
        while not verdict.met and any_rate and rate > tester.floor_per_s(candidate):
            rate *= 1 - 2 * TIE  # the short runs were slightly too optimistic
            verdict = tester.probe(candidate, rate, sizes.full)
        if not verdict.met:
            return tester.refuse(candidate, best, verdict)
        joules = verdict.joules_per_output_token
        return Outcome(candidate, "measured", rate, float("inf"), verdict.ratio, verdict.worst.name, joules)


@dataclass(frozen=True, slots=True)
class LowestLatency:
    """Finds the smallest worst value / limit at the required rate, or else under a light load common to all."""

    tester: CandidateTester

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate against the best so far."""
        tester, sizes = self.tester, self.tester.sizes
        rate = tester.floor_per_s(candidate)
        quick = tester.probe(candidate, rate, sizes.quick)
        goal = 1.0 if best is None or best.score is None else min(best.score, 1.0)
        if quick.value_ratio > SHORT_RUN_MARGIN * goal:
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
) -> Assess:
    """Return what measures the candidates of a search for an objective (see PlanRequest.objective)."""
    if objective in ("energy", "carbon"):
        return LowestEnergy(tester)
    if objective == "latency":
        return LowestLatency(tester)
    with_load = tester.requests_per_s is not None or tester.required is not None
    return CapacityRace(tester, distance_from_defaults, equal_unit_cost if with_load else unit_cost)
