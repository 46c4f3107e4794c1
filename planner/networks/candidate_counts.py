"""The numbers of candidates of a request that were ruled out by a bound, simulated, or neither; each counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from planner.answer.answer_schema import SearchSummary
from planner.networks.search import KindSearch

#: Why a bound rules out candidates of the search.
OVERLOADED: Final = "full batches on all the hardware serve fewer jobs than required, or none is within the budget"

#: Why candidates that it rules out were simulated later: they have the highest capacities.
_FEWER: Final = "full batches serve fewer jobs than required"

#: Why candidates are not the answer that no bound rules out and that the search did not simulate.
_BEYOND_TRIALS: Final = "the search ended before them (a larger search.trials includes them)"


@dataclass(slots=True)
class CandidateCounts:
    """The candidates of a request by what became of them.

    Attributes:
        n: All candidates.
        bounded_out: Number of those that bounds rule out and that were not simulated, by reason.
        n_simulated: Those that were simulated, by the search or to find the closest plan.
        missed: Number of all others, by the reason why they are not the answer of a request that is refused.
    """

    n: int = 0
    bounded_out: Counter[str] = field(default_factory=Counter)
    n_simulated: int = 0
    missed: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, kinds: Iterable[KindSearch], simulated: Collection[object]) -> CandidateCounts:
        """Return the counts of some searches; `simulated` has everything but the replicas of what was simulated."""
        found = cls()
        for kind in kinds:
            found._add(kind, simulated)
        return found

    def _add(self, kind: KindSearch, simulated: Collection[object]) -> None:
        self.n += kind.space.n
        self.bounded_out.update(kind.space.reasons)
        bindings = {outcome.candidate.batching: outcome.binding for outcome in kind.search.outcomes}
        overloaded = {candidate.batching for candidate in kind.search.overloaded}
        for candidate in kind.space.left:
            key = candidate.batching
            if key in bindings:
                self.n_simulated += 1
                self.missed[f"simulated: {bindings[key]} is missed"] += 1
            elif key in simulated:
                self.n_simulated += 1
                why = _FEWER if key in overloaded else _BEYOND_TRIALS
                self.missed[f"simulated only to find the closest plan: {why}"] += 1
            elif key in overloaded:
                self.bounded_out[OVERLOADED] += 1
            else:
                self.missed[f"not simulated: {_BEYOND_TRIALS}"] += 1

    @property
    def reasons(self) -> dict[str, int]:
        """Return the number of all candidates by the reason why they are not the answer of a refused request."""
        ruled_out = Counter({f"ruled out: {reason}": n for reason, n in self.bounded_out.items()})
        return dict((ruled_out + self.missed).most_common())


def not_simulated(search: SearchSummary) -> int | None:
    """Return the candidates that were neither ruled out nor simulated; None where that is unknown.

    Answers of earlier versions count a candidate twice that a bound ruled out and that was simulated all the same.
    """
    return search.n_not_simulated if search.n_not_simulated >= 0 else None
