"""Who assesses the candidates of a search: this process, or hands elsewhere that look at several at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from planner.assess import Assess, Outcome
from planner.candidate import Candidate


class Crew(Protocol):
    """A search begins with candidates in an order and finishes them in that order, so its answer is one process's."""

    @property
    def ahead(self) -> int:
        """Candidates that may be begun with before the first of them is finished."""

    def begin(self, candidate: Candidate) -> None:
        """It may be wanted soon."""

    def outcome(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """What assessing it, given the best so far, finds. Waits."""


@dataclass(frozen=True, slots=True)
class Alone:
    """This process."""

    assess: Assess
    ahead: int = 1

    def begin(self, candidate: Candidate) -> None:
        """Nothing is done ahead."""

    def outcome(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        return self.assess(candidate, best)


#: A crew for as long as it is needed.
Hire = Callable[[Assess], AbstractContextManager[Crew]]


def alone(assess: Assess) -> AbstractContextManager[Crew]:
    """Nobody is hired."""
    return nullcontext(Alone(assess))
