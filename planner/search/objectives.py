"""How one candidate is measured against the best so far, with as few simulated requests as the question needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, Protocol

from planner.evaluation.capacity import find_capacity
from planner.evaluation.evaluator import SHORT_RUN_MARGIN, Evaluator, Load, RequestCounter, Verdict, judge
from planner.evaluation.queueing import OVERLOAD
from planner.problem.candidate import Candidate
from planner.problem.slo import Slo

#: Two plans closer than this are equal: bisection does not resolve more, and then the plainer one is preferred.
TIE: Final = 0.02

#: Added to value / limit where the system does not keep up: further off than any that does.
UNSTABLE: Final = 1000.0

Status = Literal["measured", "tied", "pruned", "infeasible"]


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Simulated requests of a first look and of a full run: a percentile needs a dozen measured requests beyond it."""

    quick: int
    full: int

    @classmethod
    def for_slos(cls, slos: Sequence[Slo]) -> RunSizes:
        beyond = min([1 - s.quantile for s in slos if s.quantile is not None] or [1.0])
        full = min(max(1000, round(16 / beyond)), 20_000)
        return cls(max(300, full // 5), full)

    def at_most(self, n: int) -> RunSizes:
        """Cut short to n requests: enough where runs are only compared with each other."""
        return RunSizes(min(self.quick, n // 4), min(self.full, n))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of a candidate. Rates of the whole deployment; score: lower is better, None where it has none."""

    candidate: Candidate
    status: Status
    requests_per_s: float  # holds the SLO at this rate (0: none known)
    upper_requests_per_s: float  # fails at this rate (inf: none known)
    ratio: float  # value / limit of the binding objective where it was last looked at
    binding: str  # name of that objective
    score: float | None
    n_requests: int = 0  # simulated to find this out

    @property
    def feasible(self) -> bool:
        return self.status in ("measured", "tied")

    def as_dict(self) -> dict[str, object]:
        """As a study keeps it."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"candidate": self.candidate.as_dict()}

    @classmethod
    def from_dict(cls, stored: dict[str, object], candidate: Candidate) -> Outcome:
        """What `as_dict` was taken of; the candidate as the study knows it, which is not read again."""
        return cls(**(stored | {"candidate": candidate}))  # type: ignore[arg-type]


class Assess(Protocol):
    """Measures a candidate, given the best outcome so far (None: nothing feasible yet)."""

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class CountedAssess:
    """Assesses, and puts into the outcome how many requests were simulated for it. counter: of the assess's bench."""

    assess: Assess
    counter: RequestCounter

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        self.counter.restart()
        outcome = self.assess(candidate, best)
        return replace(outcome, n_requests=self.counter.n_requests)


class RequiredRate(Protocol):
    """The rate asked of each candidate."""

    def nominal_per_s(self, candidate: Candidate) -> float | None: ...

    def held_per_s(self, candidate: Candidate) -> float | None: ...


def one(_: Candidate) -> float:
    """Every candidate is worth the same."""
    return 1.0


@dataclass(frozen=True, slots=True)
class CandidateTester:
    """The simulator, the objectives and one seed: every candidate sees the same requests."""

    evaluator: Evaluator
    slos: tuple[Slo, ...]
    sizes: RunSizes
    seed: int
    requests_per_s: float | None  # the rate that must be carried; None: any
    asked: RequiredRate | None = None  # where the rate depends on the candidate
    counter: RequestCounter | None = None  # counts the requests of every probe

    def nominal_per_s(self, candidate: Candidate) -> float | None:
        """The rate asked of a candidate with all its replicas alive; None: any."""
        return self.requests_per_s if self.asked is None else self.asked.nominal_per_s(candidate)

    def held_per_s(self, candidate: Candidate) -> float | None:
        """The rate at which a candidate must still hold: more than nominal where replicas may be lost."""
        return self.requests_per_s if self.asked is None else self.asked.held_per_s(candidate)

    def probe(self, candidate: Candidate, requests_per_s: float, n_requests: int) -> Verdict:
        load = Load(requests_per_s, n_requests, self.seed, patient=n_requests >= self.sizes.full)
        seen = self.evaluator.observe(candidate, load)
        if self.counter is not None:
            self.counter.add(candidate, seen)
        return judge([seen], self.slos)

    def floor_per_s(self, candidate: Candidate) -> float:
        """The rate a candidate must at least hold: the one asked for, else a light load."""
        return self.held_per_s(candidate) or self.evaluator.light_requests_per_s(candidate)

    def refuse(self, candidate: Candidate, status: Status, verdict: Verdict) -> Outcome:
        """An outcome without a holding rate. Its score tells the sampler how far off it was."""
        ratio = verdict.value_ratio if verdict.stable else UNSTABLE + verdict.value_ratio
        return Outcome(candidate, status, 0.0, verdict.requests_per_s, ratio, verdict.worst.name, None)

    def capacity(self, candidate: Candidate, floor: Verdict, guess_per_s: float) -> Outcome:
        found = find_capacity(lambda r: self.probe(candidate, r, self.sizes.full), guess_per_s, floor)
        at, upper = found.at_capacity, found.upper_requests_per_s
        rate = found.requests_per_s
        return Outcome(candidate, "measured", rate, upper, at.ratio, at.worst.name, -rate)


@dataclass(frozen=True, slots=True)
class CapacityRace:
    """Highest capacity for what it takes wins: dollars per hour (cost), accelerators (goodput), or one (throughput).

    A newcomer has to beat the record by more than a tie, in one short run and then one full run; only one that does is
    bisected, so most candidates cost a single short simulation. One that is plainer than the record's holder (see
    `space.plainness`) gets a second chance: to come within a tie of it.
    """

    bench: CandidateTester
    plainness: Callable[[Candidate], tuple[int, ...]]
    takes: Callable[[Candidate], float] = one

    def outclassed(self, candidate: Candidate, best: Outcome) -> bool:
        """Whether even a batch with every seat taken and nobody late is far below what the best holds."""
        return self.bench.evaluator.fluid_requests_per_s(candidate) * OVERLOAD < self._par(candidate, best) * (1 - TIE)

    def _par(self, candidate: Candidate, best: Outcome) -> float:
        """The rate at which a candidate is as good as the best."""
        return best.requests_per_s * self.takes(candidate) / self.takes(best.candidate)

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        bench = self.bench
        if best is None:
            return self._first(candidate)
        par = self._par(candidate, best)
        above = self._race(candidate, max(par * (1 + TIE), self.bench.held_per_s(candidate) or 0.0))
        if above.met:
            return self._scored(bench.capacity(candidate, above, above.requests_per_s * 1.1))
        if self.plainness(candidate) >= self.plainness(best.candidate):
            return bench.refuse(candidate, "pruned", above)
        tied = self._race(candidate, par * (1 - TIE))
        if not tied.met:
            return bench.refuse(candidate, "pruned", tied)
        rate = tied.requests_per_s
        found = Outcome(candidate, "tied", rate, above.requests_per_s, tied.ratio, tied.worst.name, -rate)
        return self._scored(found)

    def _scored(self, outcome: Outcome) -> Outcome:
        return replace(outcome, score=-outcome.requests_per_s / self.takes(outcome.candidate))

    def _first(self, candidate: Candidate) -> Outcome:
        """Nothing to beat yet: does it hold the lowest rate of interest, and how much more?"""
        floor = self._race(candidate, self.bench.floor_per_s(candidate))
        if not floor.met:
            return self.bench.refuse(candidate, "infeasible", floor)
        guess = self.bench.evaluator.fluid_requests_per_s(candidate)
        return self._scored(self.bench.capacity(candidate, floor, guess))

    def _race(self, candidate: Candidate, rate: float) -> Verdict:
        """The verdict of a full run, or of a short one that leaves no hope. It is met only on a full run."""
        quick = self.bench.probe(candidate, rate, self.bench.sizes.quick)
        if quick.hopeless:
            return replace(quick, stable=False) if quick.met else quick
        return self.bench.probe(candidate, rate, self.bench.sizes.full)


@dataclass(frozen=True, slots=True)
class LowestEnergy:
    """Fewest joules per output token, at the asked rate or else at the candidate's own capacity."""

    bench: CandidateTester

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        bench, sizes = self.bench, self.bench.sizes
        nominal, held = bench.nominal_per_s(candidate), bench.held_per_s(candidate)
        if nominal is not None and held is not None:
            if held > nominal:
                strained = bench.probe(candidate, held, sizes.full)
                if not strained.met:
                    return bench.refuse(candidate, "infeasible" if best is None else "pruned", strained)
            return self._at(candidate, nominal, best)
        guess = bench.evaluator.fluid_requests_per_s(candidate)
        if best is not None and best.score is not None:
            full_load = bench.probe(candidate, guess, sizes.quick)  # batches at least as full as at capacity
            if full_load.joules_per_output_token > best.score * (1 + TIE):
                return bench.refuse(candidate, "pruned", full_load)
        floor = bench.probe(candidate, bench.floor_per_s(candidate), sizes.quick)
        if floor.hopeless:
            return bench.refuse(candidate, "infeasible", floor)
        found = find_capacity(lambda r: bench.probe(candidate, r, sizes.quick), guess, floor, 0.05)
        return self._at(candidate, found.requests_per_s, best)

    def _at(self, candidate: Candidate, rate: float, best: Outcome | None) -> Outcome:
        verdict = self.bench.probe(candidate, rate, self.bench.sizes.quick)
        if verdict.hopeless:
            return self.bench.refuse(candidate, "infeasible" if best is None else "pruned", verdict)
        verdict = self.bench.probe(candidate, rate, self.bench.sizes.full)
        anything = self.bench.nominal_per_s(candidate) is None
        while not verdict.met and anything and rate > self.bench.floor_per_s(candidate):
            rate *= 1 - 2 * TIE  # the short runs were a little too hopeful
            verdict = self.bench.probe(candidate, rate, self.bench.sizes.full)
        if not verdict.met:
            return self.bench.refuse(candidate, "infeasible" if best is None else "pruned", verdict)
        joules = verdict.joules_per_output_token
        return Outcome(candidate, "measured", rate, float("inf"), verdict.ratio, verdict.worst.name, joules)


@dataclass(frozen=True, slots=True)
class LowestLatency:
    """Smallest worst value / limit at the asked rate, or else under a light load common to all candidates."""

    bench: CandidateTester

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        bench, sizes = self.bench, self.bench.sizes
        rate = bench.floor_per_s(candidate)
        quick = bench.probe(candidate, rate, sizes.quick)
        goal = 1.0 if best is None or best.score is None else min(best.score, 1.0)
        if quick.value_ratio > SHORT_RUN_MARGIN * goal:
            return bench.refuse(candidate, "infeasible" if best is None else "pruned", quick)
        full = bench.probe(candidate, rate, sizes.full)
        if not full.met:
            return bench.refuse(candidate, "infeasible" if best is None else "pruned", full)
        return Outcome(candidate, "measured", rate, float("inf"), full.ratio, full.worst.name, full.ratio)
