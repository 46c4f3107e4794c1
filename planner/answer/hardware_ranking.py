"""Rank the hardware of the choice by what it carries, as far as the search measured it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from catalogs.economics.prices import Price
from planner.economics.money import price_words
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
        usd_per_hour: The price of an hour of that candidate, or of the first one of this hardware, if known.
        why: The reason for the state.
        offer: The commitment, the place and the date of that price, in words; None if the price is unknown.
    """

    hardware: str
    state: State
    candidate: str | None
    requests_per_s: float | None
    at_most_requests_per_s: float | None
    usd_per_hour: float | None
    why: str
    offer: str | None = None


@dataclass(frozen=True, slots=True)
class RankingTerms:
    """The terms on which hardware is compared.

    Attributes:
        unit_cost: Returns the unit cost by which capacity is divided.
        fluid_per_s: Returns the estimated saturation rate of a candidate.
        price: Returns the price of a candidate, or None if it is unknown.
        with_load: Whether the request has a load.
    """

    unit_cost: Callable[[Candidate], float]
    fluid_per_s: Callable[[Candidate], float]
    price: Callable[[Candidate], Price | None]
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
    remaining, ranked = set(left), []
    for text, own in by_text.items():
        simulated = [o for o in outcomes if o.candidate.hardware.text == text]
        open_ = [c for c in own if c in remaining]
        row = HardwareRow(text, "ruled out", None, None, None, None, reasons.get(text, ""))
        row = _priced(row, own[0], terms)
        if simulated:
            ranked.append(_simulated(simulated, terms, row))
        elif open_:
            ranked.append(_passed_over(open_, terms, row))
        else:
            ranked.append(((4.0, 0.0), row))
    return [row for _, row in sorted(ranked, key=lambda item: item[0])]


#: The key by which rows are sorted, and the row.
Ranked = tuple[tuple[float, float], HardwareRow]


def _priced(row: HardwareRow, candidate: Candidate, terms: RankingTerms) -> HardwareRow:
    """Return the row with the price of a candidate."""
    price = terms.price(candidate)
    if price is None:
        return replace(row, usd_per_hour=None, offer=None)
    return replace(row, usd_per_hour=price.usd_per_hour, offer=price_words(price))


def _simulated(simulated: Sequence[Outcome], terms: RankingTerms, row: HardwareRow) -> Ranked:
    """Return the row of hardware with simulated candidates."""
    held = [(o.score, o) for o in simulated if o.feasible and o.score is not None]
    if held:
        score, best = min(held, key=lambda item: item[0])
        row = _priced(row, best.candidate, terms)
        row = replace(row, state="holds", candidate=best.candidate.words, requests_per_s=best.requests_per_s)
        return (0.0, score), replace(row, why="")
    nearest = max(simulated, key=lambda o: o.upper_requests_per_s / terms.unit_cost(o.candidate))
    upper, key = nearest.upper_requests_per_s, -nearest.upper_requests_per_s / terms.unit_cost(nearest.candidate)
    row = _priced(row, nearest.candidate, terms)
    row = replace(row, candidate=nearest.candidate.words, at_most_requests_per_s=upper)
    if nearest.status == "pruned":
        return (1.0, key), replace(row, state="worse", why="beaten by a better choice")
    missed = f"{nearest.binding} is {nearest.ratio:.2g} times its limit"
    return (3.0, key), replace(row, state="fails", why="it does not keep up" if nearest.ratio >= UNSTABLE else missed)


def _passed_over(open_: Sequence[Candidate], terms: RankingTerms, row: HardwareRow) -> Ranked:
    """Return the row of hardware that was not simulated."""
    best = max(open_, key=terms.fluid_per_s)
    at_most, row = OVERLOAD * terms.fluid_per_s(best), _priced(row, best, terms)
    if terms.with_load:
        why = "more expensive than a sufficient one, or too slow even with a full batch"
        return (2.0, row.usd_per_hour or 0.0), replace(row, state="worse", why=why)
    row = replace(row, state="worse", candidate=best.words, at_most_requests_per_s=at_most)
    return (1.0, -at_most / terms.unit_cost(best)), replace(row, why="even with a full batch")
