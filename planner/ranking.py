"""The hardware there was to choose from, the best first: what each carries, as far as the search had to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.assess import Outcome
from planner.bounds import Discard
from planner.candidate import Candidate


@dataclass(frozen=True, slots=True)
class HardwareRow:
    """One choice of hardware. requests_per_s: the highest rate that held in the search (one seed), None where it was
    passed over; at_most_requests_per_s: a rate at which its best look failed."""

    hardware: str
    state: str  # "holds" | "worse" | "fails" | "ruled out" | "passed over"
    candidate: str | None  # its best, in words
    requests_per_s: float | None
    at_most_requests_per_s: float | None
    why: str


def rank_hardware(
    left: Sequence[Candidate],
    discards: Sequence[tuple[Candidate, Discard]],
    outcomes: Sequence[Outcome],
    takes: Callable[[Candidate], float],
    with_load: bool,
) -> list[HardwareRow]:
    """One row for each hardware of the space; [] where there was no choice. with_load: a rate had to be carried."""
    texts = dict.fromkeys([c.hardware for c in left] + [c.hardware for c, _ in discards])
    if len(texts) < 2:
        return []
    reasons = {c.hardware: d.reason for c, d in reversed(discards)}
    open_texts = {c.hardware for c in left}
    ranked = []
    for text in texts:
        own = [o for o in outcomes if o.candidate.hardware == text]
        ranked.append(_row(text, own, text in open_texts, reasons.get(text, ""), (takes, with_load)))
    return [row for _, row in sorted(ranked, key=lambda item: item[0])]


def _row(
    text: str, own: Sequence[Outcome], open_: bool, reason: str, terms: tuple[Callable[[Candidate], float], bool]
) -> tuple[tuple[float, ...], HardwareRow]:
    takes, with_load = terms
    held = [o for o in own if o.feasible and o.score is not None]
    if held:
        best = min(held, key=lambda o: o.score or 0.0)
        row = HardwareRow(text, "holds", best.candidate.words, best.requests_per_s, None, "")
        return (0.0, best.score or 0.0), row
    if own:
        nearest = max(own, key=lambda o: o.upper_requests_per_s / takes(o.candidate))
        worse = nearest.status == "pruned"
        why = "beaten by a better choice" if worse else f"{nearest.binding} is {nearest.ratio:.2g} times its limit"
        if nearest.ratio > 1000:
            why = "it does not keep up" if not worse else why
        row = HardwareRow(
            text, "worse" if worse else "fails", nearest.candidate.words, None, nearest.upper_requests_per_s, why
        )
        return (1.0 if worse else 3.0, -nearest.upper_requests_per_s / takes(nearest.candidate)), row
    if open_:
        why = "a cheaper one was enough" if with_load else "even a full batch would be worth less than the best choice"
        return (2.0, 0.0), HardwareRow(text, "passed over", None, None, None, why)
    return (4.0, 0.0), HardwareRow(text, "ruled out", None, None, None, reason)
