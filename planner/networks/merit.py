"""Which of two plans that meet a request is better: the lower score, then the higher load, then the simpler one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from planner.search.candidate_tester import HALF_TIE

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Merit:
    """What decides between two plans that meet a request.

    Attributes:
        score: The value of the objective of the search, lower is better.
        load: The most jobs per second, or users, that the plan holds; 0 where this does not decide.
        distance: How far the plan is from the simplest one.
    """

    score: float
    load: float
    distance: tuple[float, ...]

    @property
    def order(self) -> tuple[float, float, tuple[float, ...]]:
        """Return the key that sorts plans, best first, without regard to ties."""
        return self.score, -self.load, self.distance

    @property
    def highest_tied_score(self) -> float:
        """Return the score up to which others tie with this one."""
        return self.score + HALF_TIE * abs(self.score)

    def ties_in_score(self, other: Merit) -> bool:
        """Return whether the scores of two plans differ by no more than a tie, relative to the other's."""
        return abs(self.score - other.score) <= HALF_TIE * abs(other.score)

    def ties(self, other: Merit) -> bool:
        """Return whether neither the scores nor the loads of two plans decide, relative to the other's."""
        return self.ties_in_score(other) and abs(self.load - other.load) <= HALF_TIE * other.load

    def goal_against(self, best: Merit) -> float:
        """Return the load with which a plan of equal score is not worse than the best.

        A simpler plan may hold slightly less than the best, any other must hold more.
        """
        return best.load * (1 - HALF_TIE if self.distance < best.distance else 1 + HALF_TIE)

    def may_win(self, best: Merit) -> bool:
        """Return whether a plan may be better than the best so far: a lower score, or a tie with a sufficient load."""
        if self.ties_in_score(best):
            decides = best.load > 0.0 or self.distance < best.distance
            return decides and self.load >= self.goal_against(best)
        return self.score < best.score


def preferred(plans: Sequence[T], merit: Callable[[T], Merit]) -> T:
    """Return the best of at least one plan: the simplest of those whose load ties with the highest at the lowest score.

    Among plans whose scores tie with the lowest, the load decides, and only among those whose loads tie as well, the
    simplest is preferred.
    """
    found = [(merit(plan), plan) for plan in plans]
    least = min(m.score for m, _ in found)
    limit = Merit(least, 0.0, ()).highest_tied_score
    cheapest = [(m, plan) for m, plan in found if m.score <= limit]
    most = max(m.load for m, _ in cheapest)
    tied = [(m, plan) for m, plan in cheapest if m.load >= most * (1 - HALF_TIE)]
    return min(tied, key=lambda pair: (pair[0].distance, pair[0].order))[1]
