"""Test one candidate against the latency objectives, and state the outcome of its measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Final, Literal, Protocol

from planner.evaluation.capacity import find_capacity
from planner.evaluation.closed_forms.estimates import GuessedLimit, GuessedLimits
from planner.evaluation.confidence import allowance_for
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.observation import Load, Observation
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.verdict import NO_ALLOWANCE, SHORT_RUN_MARGIN, ErrorAllowance, Verdict, verdict_of
from planner.problem.candidate import Candidate
from planner.problem.demand import RequiredRates
from planner.problem.slo import Slo
from planner.search.ordering import (
    best_on_most_of_each_kind,
    interleaved,
    most_promising_first,
    one_of_each_placement_first,
    redundant_last,
)

#: Two plans that differ by at most this share tie, and the simpler one is preferred. A judgement: the capacity of one
#: seed is uncertain by a few per cent (docs/search.md).
TIE: Final = 0.02

#: What answers say of an alternative that is as good by the objective and was not recommended.
TIE_WORDS: Final = "a tie: the simpler deployment is recommended"

#: A comparison of capacities takes half of a tie on each side, because both losses add up: a candidate that is up to
#: this much better than the best is not measured, and a simpler one that is up to this much worse is recommended.
HALF_TIE: Final = TIE / 2

#: Added to value / limit if the system does not keep up, so that it ranks after all systems that do.
UNSTABLE: Final = 1000.0

Status = Literal["measured", "tied", "pruned", "infeasible"]


@dataclass(slots=True)
class RequestCounter:
    """Counts the requests of observed runs, each run once.

    Equal requests therefore have equal counts, whether their runs were simulated or came from the cache.
    """

    n_requests: int = 0
    _counted: set[tuple[Candidate, Load, int]] = field(default_factory=set)

    def add(self, candidate: Candidate, seen: Observation) -> None:
        """Count the run behind an observation."""
        key = (candidate, replace(seen.load, patient=False), seen.n_simulated)  # the run itself, extended or not
        if key not in self._counted:
            self._counted.add(key)
            self.n_requests += seen.n_simulated

    def restart(self) -> None:
        """Set the count of simulated requests to zero, for the next search."""
        self.n_requests = 0
        self._counted.clear()


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
        seats: The largest number of requests in a batch at `upper_requests_per_s`, or, if the candidate was measured,
            at its capacity; infinite if this is not known, or if the KV cache was full.
    """

    candidate: Candidate
    status: Status
    requests_per_s: float
    upper_requests_per_s: float
    ratio: float
    binding: str
    score: float | None
    n_requests: int = 0
    seats: float = math.inf

    @property
    def feasible(self) -> bool:
        """Return whether the candidate meets the objectives."""
        return self.status in ("measured", "tied")

    @property
    def is_capacity(self) -> bool:
        """Return whether the rate is the capacity within a tie on each side: a rate just above it was missed."""
        return self.upper_requests_per_s <= self.requests_per_s * (1 + TIE) ** 2

    def as_dict(self) -> dict[str, object]:
        """Return the outcome as a study stores it."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"candidate": self.candidate.as_dict()}

    @classmethod
    def from_dict(cls, stored: dict[str, object], candidate: Candidate) -> Outcome:
        """Return the outcome of a stored dict; the candidate comes from the study and is not parsed again."""
        return cls(**(stored | {"candidate": candidate}))  # type: ignore[arg-type]


class Assess(Protocol):
    """A function that simulates a candidate and judges it by the objectives."""

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Return the outcome of a candidate, given the best outcome so far (None: nothing feasible yet)."""


@dataclass(frozen=True, slots=True)
class CandidateTester:
    """Runs candidates with one seed against the objectives: every candidate gets the same requests.

    An objective counts as met if it is met with the required confidence: the run uses step times, and the verdict
    latencies, that are multiplied by the stated error at that probability level.

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
    # A cache of this tester alone: a copy with other objectives or another allowance begins with an empty one.
    _allowances: dict[Candidate, ErrorAllowance] = field(default_factory=dict, init=False, repr=False, compare=False)

    def nominal_per_s(self, candidate: Candidate) -> float | None:
        """Return the required rate of a candidate with every replica running; None: any."""
        return self.requests_per_s if self.required is None else self.required.nominal_per_s(candidate)

    def held_per_s(self, candidate: Candidate) -> float | None:
        """Return the rate at which a candidate must meet the objectives: above nominal if replicas may be lost."""
        return self.requests_per_s if self.required is None else self.required.held_per_s(candidate)

    def allowance(self, candidate: Candidate) -> ErrorAllowance:
        """Return the allowance for the stated error of a candidate at the required confidence; it is cached."""
        if self.fixed_allowance is not None:
            return self.fixed_allowance
        if candidate not in self._allowances:
            self._allowances[candidate] = allowance_for(self.confidence, self.evaluator.stated_error(candidate))
        return self._allowances[candidate]

    def probe(self, candidate: Candidate, requests_per_s: float, n_requests: int) -> Verdict:
        """Return the verdict of one run on whether a rate meets the objectives with the required confidence."""
        return self._judged(candidate, requests_per_s, n_requests, self.allowance(candidate))

    def simulated(self, candidate: Candidate, requests_per_s: float, n_requests: int) -> Verdict:
        """Return the verdict of one run at a rate without an allowance for errors: for its mean values."""
        return self._judged(candidate, requests_per_s, n_requests, NO_ALLOWANCE)

    def _judged(self, candidate: Candidate, requests_per_s: float, n: int, allowance: ErrorAllowance) -> Verdict:
        load = Load(requests_per_s * allowance.speed, n, self.seed, patient=n >= self.sizes.full)
        count = None if self.counter is None else partial(self.counter.add, candidate)
        return verdict_of(self.evaluator, candidate, [load], self.slos, allowance, seen=count)

    def ruled_out(self, candidate: Candidate, short: Verdict, goal: float = 1.0, guessed_goal: float = 1.0) -> bool:
        """Return whether a short run rules a candidate out: it misses the goal by more than its noise.

        If the estimate reaches `guessed_goal`, one of the two is wrong. The run must then miss the goal, value / limit,
        by twice the noise on a logarithmic scale; otherwise a full run decides.
        """
        over = short.value_ratio / goal
        if not short.far_behind and over <= SHORT_RUN_MARGIN:
            return False
        return over > SHORT_RUN_MARGIN**2 or self.guessed_ratio(candidate, short.requests_per_s) > guessed_goal

    def first_size(self, candidate: Candidate, requests_per_s: float) -> int:
        """Return the requests of the first run at a rate: those of a short run, or of a full one if that costs little.

        A short run is extended until most of it is steady (`Evaluator.run_requests`). Where this makes it more than
        half as long as a full run, the full run decides at once.
        """
        rate = requests_per_s * self.allowance(candidate).speed
        loads = (Load(rate, n, self.seed) for n in (self.sizes.quick, self.sizes.full))
        short, full = (self.evaluator.run_requests(candidate, load) for load in loads)
        return self.sizes.quick if 2 * short <= full else self.sizes.full

    def first_verdict(self, candidate: Candidate, rate: float) -> Verdict | None:
        """Return the verdict of a short run, or None if a full run costs little more (see `first_size`)."""
        n = self.first_size(candidate, rate)
        return self.probe(candidate, rate, n) if n < self.sizes.full else None

    def race(self, candidate: Candidate, rate: float) -> Verdict:
        """Return the verdict of a full run, or of a short one that misses clearly; only a full run counts as met."""
        quick = self.first_verdict(candidate, rate)
        if quick is not None and self.ruled_out(candidate, quick):
            return replace(quick, stable=False) if quick.met else quick
        return self.probe(candidate, rate, self.sizes.full)

    def hopeless(self, candidate: Candidate, requests_per_s: float) -> bool:
        """Return whether a short run is far overloaded and misses an objective by more than its noise.

        Unlike `ruled_out`, this does not need the estimate: chance in a few requests does not let a system fall behind
        by half of its arrivals.
        """
        quick = self.first_verdict(candidate, requests_per_s)
        return quick is not None and quick.far_behind and quick.value_ratio > SHORT_RUN_MARGIN

    def guessed_ratio(self, candidate: Candidate, requests_per_s: float) -> float:
        """Return the estimated largest value / limit at a rate, with the allowance; infinite if overloaded.

        The allowance is that of a light load, because candidates are compared where they are promising.
        """
        return self._guessed_limits(candidate).ratio(partial(self.evaluator.guess_s, candidate), requests_per_s)

    def _guessed_limits(self, candidate: Candidate) -> GuessedLimits:
        """Return the limits on the estimated latencies of a candidate, with the allowance (see `guessed_ratio`)."""
        allowance = self.allowance(candidate)
        limits = (GuessedLimit(o.metric, o.quantile, allowance.latency(o, 0.0), o.limit_s) for o in self.slos)
        return GuessedLimits(allowance.speed, tuple(limits))

    def guessed_capacity_per_s(self, candidate: Candidate) -> float:
        """Return the estimated highest rate that meets the objectives; 0 if a light load is estimated to miss one."""
        return self.evaluator.guess_capacity_per_s(candidate, self._guessed_limits(candidate))

    def start_per_s(self, candidate: Candidate, like: Outcome | None = None) -> float:
        """Return the rate at which the search for a capacity begins: the estimated capacity, or that of a full batch.

        `like` is a plan with a known capacity: the estimate is then taken to be as far off as that of this plan.
        """
        fluid, guess = self.evaluator.fluid_requests_per_s(candidate), self.guessed_capacity_per_s(candidate)
        if like is not None:
            guess = self.guess_like_per_s(candidate, like.candidate, like.requests_per_s) or guess
        return min(guess, fluid) or fluid

    def guess_like_per_s(self, candidate: Candidate, known: Candidate, capacity_per_s: float) -> float:
        """Return the estimated capacity if the estimate is as far off as that of a candidate whose capacity is known.

        The result is 0 if either of the two is estimated to miss an objective at a light load.
        """
        theirs_per_s = self.guessed_capacity_per_s(known)
        return self.guessed_capacity_per_s(candidate) * capacity_per_s / theirs_per_s if theirs_per_s > 0 else 0.0

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
        rest = interleaved(redundant_last(fast, lambda c: (ratios[c],), HALF_TIE), *varied)
        return list(dict.fromkeys([*best_on_most_of_each_kind(fast), *rest]))

    def refuse(self, candidate: Candidate, best: Outcome | None, verdict: Verdict) -> Outcome:
        """Return the outcome of a candidate that misses; its ratio shows the sampler by how much."""
        ratio = verdict.value_ratio + (0.0 if verdict.stable else UNSTABLE)
        status: Status = "infeasible" if best is None else "pruned"
        name, seats = verdict.worst.name, seats_of(candidate, verdict)
        return Outcome(candidate, status, 0.0, verdict.requests_per_s, ratio, name, None, seats=seats)

    def capacity(self, candidate: Candidate, floor: Verdict, guess_per_s: float, *, first: bool = False) -> Outcome:
        """Return the outcome of a search for the highest rate that meets the objectives, to half of a tie.

        `first` is for a candidate with nothing to compare with: the guess may be far above the capacity, and short runs
        then rule out the rates that are far too high.
        """
        probe, hopeless = partial(self.probe, candidate, n_requests=self.sizes.full), partial(self.hopeless, candidate)
        found = find_capacity(probe, guess_per_s, floor, HALF_TIE, hopeless if first else None)
        rate, upper, at = found.requests_per_s, found.upper_requests_per_s, found.at_capacity
        seats = seats_of(candidate, at)
        return Outcome(candidate, "measured", rate, upper, at.ratio, at.worst.name, -rate, seats=seats)


def seats_of(candidate: Candidate, verdict: Verdict) -> float:
    """Return the largest number of requests in a batch in the runs of a verdict; infinite if it may be limited."""
    share = max(o.seat_share for o in verdict.observations)
    return share * candidate.max_num_seqs if share < 1 else math.inf


def dominates(outcome: Outcome, candidate: Candidate) -> bool:
    """Return whether the deployment of an outcome can only be faster than a candidate, by the run behind the outcome.

    The candidate differs in nothing but a smaller `max_num_seqs`, which the run would not have reached either. It would
    schedule the same requests in the same steps, and because CUDA graphs are captured for no more sequences, no step
    would be faster, except that a step outside a graph is not padded to the next captured size.
    """
    fewer = candidate.max_num_seqs < outcome.candidate.max_num_seqs
    return fewer and outcome.seats < candidate.max_num_seqs and not candidate.split


def apart_from_seats(candidate: Candidate) -> Candidate:
    """Return the candidate without its `max_num_seqs`: equal for candidates that differ in nothing else."""
    return replace(candidate, max_num_seqs=0)
