"""How much was simulated for an outcome: a world that counts the requests of what it is asked to observe."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planner.assess import Assess, Outcome
from planner.candidate import Candidate
from planner.observation import Evaluator, Load, Observation


@dataclass(slots=True)
class Tally:
    """n_requests: of all runs seen, each counted once, whoever made them: equal questions have equal counts."""

    evaluator: Evaluator
    n_requests: int = 0
    _seen: set[tuple[Candidate, Load]] = field(default_factory=set)

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        return self.evaluator.fluid_requests_per_s(candidate)

    def light_requests_per_s(self, candidate: Candidate) -> float:
        return self.evaluator.light_requests_per_s(candidate)

    def observe(self, candidate: Candidate, load: Load) -> Observation:
        found = self.evaluator.observe(candidate, load)
        if (candidate, load) not in self._seen:
            self._seen.add((candidate, load))
            self.n_requests += found.n_simulated
        return found

    def restart(self) -> None:
        self.n_requests = 0
        self._seen.clear()


@dataclass(frozen=True, slots=True)
class Counted:
    """Assesses, and says in the outcome what that took."""

    assess: Assess
    tally: Tally

    def __call__(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        self.tally.restart()
        outcome = self.assess(candidate, best)
        return replace(outcome, n_requests=self.tally.n_requests)
