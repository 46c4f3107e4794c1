"""Who assesses the candidates of a search: this process, or hands elsewhere that look at several at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from planner.assess import Assess, Outcome
from planner.candidate import Candidate


class Crew(Protocol):
    """A search begins with candidates in an order and finishes them in that order, so its answer is one process's."""

    @property
    def ahead(self) -> int:
        """Candidates that may be begun with before the first of them is finished."""

    @property
    def hands(self) -> int:
        """Candidates looked at at once, as many as when the search began."""

    def begin(self, candidate: Candidate) -> None:
        """It will be wanted."""

    def outcome(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """What assessing it, given the best so far, finds. Waits."""

    def forget(self, candidate: Candidate) -> None:
        """It is not wanted any more."""


@dataclass(frozen=True, slots=True)
class Alone:
    """This process."""

    assess: Assess
    ahead: int = 1
    hands: int = 1

    def begin(self, candidate: Candidate) -> None:
        """Nothing is done ahead."""

    def outcome(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        return self.assess(candidate, best)

    def forget(self, candidate: Candidate) -> None:
        """Nothing was begun."""
