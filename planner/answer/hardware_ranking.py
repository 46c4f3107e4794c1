"""Rank the hardware of the choice by what it carries, as far as the search measured it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.evaluation.queueing import OVERLOAD
from planner.problem.candidate import Candidate
from planner.search.objectives import UNSTABLE, Outcome
from planner.space.bounds import Discard

#: Results of a hardware choice, best first.
State = Literal["holds", "worse", "fails", "ruled out"]


@dataclass(frozen=True, slots=True)
class HardwareRow:
    """One hardware of the choice.

    Attributes:
        hardware: The hardware as `--hw` names it.
        state: The result for this hardware.
        candidate: Its best candidate, in words.
        requests_per_s: The highest rate that met the objectives in the search (one seed); None if none is known.
        at_most_requests_per_s: A rate that it does not carry, by simulation or by the estimate with a full batch.
        usd_per_hour: The price of an hour, if known.
        why: The reason for the state.
    """

    hardware: str
    state: State
    candidate: str | None
    requests_per_s: float | None
    at_most_requests_per_s: float | None
    usd_per_hour: float | None
    why: str


@dataclass(frozen=True, slots=True)
class RankingTerms:
    """The terms on which hardware is compared.

    Attributes:
        unit_cost: Returns the unit cost by which capacity is divided.
        fluid_per_s: Returns the estimated saturation rate of a candidate.
        usd_per_hour: Returns the price of a candidate's hardware.
        with_load: Whether the request has a load.
    """

    unit_cost: Callable[[Candidate], float]
    fluid_per_s: Callable[[Candidate], float]
    usd_per_hour: Callable[[Candidate], float | None]
    with_load: bool


def rank_hardware(
    left: Sequence[Candidate],
    discards: Sequence[tuple[Candidate, Discard]],
    outcomes: Sequence[Outcome],
    terms: RankingTerms,
) -> list[HardwareRow]:
    """Return one row per hardware of the space, best first; [] if there is only one."""
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
    nearest = max(seen, key=lambda o: o.upper_requests_per_s / terms.unit_cost(o.candidate))
    c, upper = nearest.candidate, nearest.upper_requests_per_s
    if nearest.status == "pruned":
        row = HardwareRow(c.hardware.text, "worse", c.words, None, upper, usd, "beaten by a better choice")
        return (1.0, -upper / terms.unit_cost(c)), row
    missed = f"{nearest.binding} is {nearest.ratio:.2g} times its limit"
    why = "it does not keep up" if nearest.ratio >= UNSTABLE else missed
    return (3.0, -upper / terms.unit_cost(c)), HardwareRow(c.hardware.text, "fails", c.words, None, upper, usd, why)


def _passed_over(open_: Sequence[Candidate], terms: RankingTerms, usd: float | None) -> Ranked:
    """Return the row of hardware that was not simulated."""
    best = max(open_, key=terms.fluid_per_s)
    at_most = OVERLOAD * terms.fluid_per_s(best)
    if terms.with_load:
        why = "more expensive than a sufficient one, or too slow even with a full batch"
        return (2.0, usd or 0.0), HardwareRow(best.hardware.text, "worse", None, None, None, usd, why)
    row = HardwareRow(best.hardware.text, "worse", best.words, None, at_most, usd, "even with a full batch")
    return (1.0, -at_most / terms.unit_cost(best)), row
