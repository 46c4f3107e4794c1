"""The hardware there was to choose from, the best first: what each carries, as far as the search had to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.evaluation.queueing import OVERLOAD
from planner.problem.candidate import Candidate
from planner.search.objectives import UNSTABLE, Outcome
from planner.space.bounds import Discard

#: What became of a choice, best first.
State = Literal["holds", "worse", "fails", "ruled out"]


@dataclass(frozen=True, slots=True)
class HardwareRow:
    """One choice of hardware. requests_per_s: the highest rate that held in the search (one seed), None where none is
    known; at_most_requests_per_s: a rate that it does not hold, by simulation or with every seat taken."""

    hardware: str
    state: State
    candidate: str | None  # its best, in words
    requests_per_s: float | None
    at_most_requests_per_s: float | None
    usd_per_hour: float | None
    why: str


@dataclass(frozen=True, slots=True)
class RankingTerms:
    """How hardware compares. takes: what capacity is divided by; with_load: a rate had to be carried."""

    takes: Callable[[Candidate], float]
    fluid_per_s: Callable[[Candidate], float]
    usd_per_hour: Callable[[Candidate], float | None]
    with_load: bool


def rank_hardware(
    left: Sequence[Candidate],
    discards: Sequence[tuple[Candidate, Discard]],
    outcomes: Sequence[Outcome],
    terms: RankingTerms,
) -> list[HardwareRow]:
    """One row for each hardware of the space; [] where there was no choice."""
    by_text: dict[str, list[Candidate]] = {}
    for c in (*left, *(c for c, _ in discards)):
        by_text.setdefault(c.hardware.text, []).append(c)
    if len(by_text) < 2:
        return []
    reasons = {c.hardware.text: d.reason for c, d in reversed(discards)}
    remaining = set(left)
    ranked = []
    for text, own in by_text.items():
        seen = [o for o in outcomes if o.candidate.hardware.text == text]
        open_ = [c for c in own if c in remaining]
        usd = terms.usd_per_hour(own[0])
        if seen:
            ranked.append(_seen(seen, terms, usd))
        elif open_:
            ranked.append(_passed_over(open_, terms, usd))
        else:
            why = reasons[text]
            ranked.append(((4.0, 0.0), HardwareRow(text, "ruled out", None, None, None, usd, why)))
    return [row for _, row in sorted(ranked, key=lambda item: item[0])]


Ranked = tuple[tuple[float, float], HardwareRow]


def _seen(seen: Sequence[Outcome], terms: RankingTerms, usd: float | None) -> Ranked:
    held = [(o.score, o) for o in seen if o.feasible and o.score is not None]
    if held:
        score, best = min(held, key=lambda item: item[0])
        words = best.candidate.words
        row = HardwareRow(best.candidate.hardware.text, "holds", words, best.requests_per_s, None, usd, "")
        return (0.0, score), row
    nearest = max(seen, key=lambda o: o.upper_requests_per_s / terms.takes(o.candidate))
    c, upper = nearest.candidate, nearest.upper_requests_per_s
    if nearest.status == "pruned":
        row = HardwareRow(c.hardware.text, "worse", c.words, None, upper, usd, "beaten by a better choice")
        return (1.0, -upper / terms.takes(c)), row
    missed = f"{nearest.binding} is {nearest.ratio:.2g} times its limit"
    why = "it does not keep up" if nearest.ratio >= UNSTABLE else missed
    return (3.0, -upper / terms.takes(c)), HardwareRow(c.hardware.text, "fails", c.words, None, upper, usd, why)


def _passed_over(open_: Sequence[Candidate], terms: RankingTerms, usd: float | None) -> Ranked:
    """Never simulated."""
    best = max(open_, key=terms.fluid_per_s)
    at_most = OVERLOAD * terms.fluid_per_s(best)
    if terms.with_load:
        why = "dearer than what was enough, or too slow with every seat taken"
        return (2.0, usd or 0.0), HardwareRow(best.hardware.text, "worse", None, None, None, usd, why)
    row = HardwareRow(best.hardware.text, "worse", best.words, None, at_most, usd, "even with every seat taken")
    return (1.0, -at_most / terms.takes(best)), row
