"""Compare the kinds of accelerator of a hardware choice: one row for each, with a plan on it or a reason.

The search ends when it knows the answer, so most kinds have no plan then. Each of them is searched until a plan is
found: first the most promising candidates on the smallest parts of the hardware that may carry the load, then the
candidates with the smallest estimated latencies. A plan that is found is evaluated like an alternative. A row without a
plan states what rules the kind out, or how many candidates were tried.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from catalogs.hardware.specs import Hardware
from catalogs.io.json_block import JsonBlock
from catalogs.ui.words import counted, dollars
from planner.answer.confirmed_rates import OTHER
from planner.answer.evaluated_plan import EvaluatedPlan, objective_value
from planner.answer.plan_evaluator import CapacityHint, PlanEvaluator
from planner.answer.plan_schema import Evidence, Plan, estimate_sentence
from planner.economics.money import offer_words, rented_words
from planner.evaluation.closed_forms.bounds import MEMORY, NOT_ADMITTED, NOT_RENTED, REQUEST_LENGTH, Discard
from planner.evaluation.stability import OVERLOAD
from planner.evaluation.verdict import Verdict
from planner.problem.candidate import Candidate, kind_of
from planner.problem.latency_metrics import TPOT, TTFT
from planner.problem.request import PlanRequest
from planner.search.candidate_tester import Outcome, RequestCounter

#: Results of a kind of accelerator, best first. A kind is "undecided" if no candidate that was tried meets the request,
#: and not all of them were tried, or if the plan on it misses once more seeds are simulated.
State = Literal["holds", "undecided", "fails", "ruled out"]

#: The mark of hardware of which the figures are estimates, on screens and pages.
ESTIMATE_MARK: Final = "~"

#: Promising candidates that are tried on each of the smallest parts of the hardware. A judgement of cost: each takes
#: one or two runs.
_PROMISING: Final = 3

#: Number of the smallest parts of the hardware on which candidates are tried. A judgement of cost: one that meets the
#: request on a small part is the cheapest of its kind.
_SMALLEST_PARTS: Final = 4

#: Why a kind of accelerator is ruled out, by the bound that discards its candidates, in order of precedence. Bounds
#: other than these are limits of a latency.
_RULED_OUT: Final = {
    NOT_RENTED: "no instance within the budget",
    NOT_ADMITTED: "no replica would survive",
    REQUEST_LENGTH: "requests are too long",
    MEMORY: "model does not fit in memory",
}


class HardwareRow(JsonBlock):
    """One kind of accelerator of the choice, with the figures of the plan on it.

    Latencies are at `requests_per_s`: the required rate or, without one, the plan's own capacity. `capacity` is at the
    confidence of the request. A kind without a plan has a `why`. `evidence` tells where the operator times of the plan
    come from, and `borrowed_from` names the accelerator that lends them.
    """

    hardware: str
    state: State
    candidate: str | None = None
    requests_per_s: float | None = None
    at_most_requests_per_s: float | None = None
    usd_per_hour: float | None = None
    why: str = ""
    accelerators: int | None = None
    instance: str | None = None
    offer: str | None = None
    usd_per_month: float | None = None
    usd_per_million_output_tokens: float | None = None
    j_per_output_token: float | None = None
    capacity_requests_per_s: float | None = None
    ttft_s: float | None = None
    ttft_stat: str | None = None
    tpot_s: float | None = None
    tpot_stat: str | None = None
    limited_by: str | None = None
    weight_dtype: str | None = None
    evidence: Evidence | None = None
    borrowed_from: str | None = None

    @property
    def is_estimate(self) -> bool:
        """Return whether the plan is an estimate: its operator times are borrowed, or mostly roofline estimates."""
        return self.evidence not in (None, "measured")

    @property
    def marked_hardware(self) -> str:
        """Return the hardware, with a mark if its plan is an estimate."""
        return f"{self.hardware} {ESTIMATE_MARK}" if self.is_estimate else self.hardware


@dataclass(slots=True)
class _KindSearch:
    """The search for a plan on one kind of accelerator: the plan, and why the candidates that were tried miss."""

    plan: EvaluatedPlan | None = None
    missed: dict[Candidate, tuple[float, str]] = field(default_factory=dict)  # value / limit and name of the objective
    tried: set[Candidate] = field(default_factory=set)
    n_requests: int = 0

    def miss(self, candidate: Candidate, verdict: Verdict) -> None:
        """Add a candidate that does not meet the objectives; an infinite ratio means that the queue grows."""
        growing = not verdict.stable or (verdict.value_ratio <= 1 and verdict.clearly_missed)
        self.missed[candidate] = (math.inf if growing else verdict.value_ratio, verdict.worst.name)


@dataclass(frozen=True, slots=True)
class RankedHardware:
    """The comparison of the kinds of accelerator of a choice; without rows if there is only one kind.

    Attributes:
        rows: One row for each kind, best first.
        plans: The plans on those kinds, in the same order.
        tried: The candidates that were simulated for the rows alone. For a candidate that misses the request, also the
            value / limit and the name of the objective that it misses.
        n_trials: Simulations of candidates for the rows.
        n_requests: Requests of these simulations, without the measurement of the plans.
        n_searches: Kinds of accelerator that were searched for the rows.
    """

    rows: list[HardwareRow] = field(default_factory=list)
    plans: list[EvaluatedPlan] = field(default_factory=list)
    tried: dict[Candidate, tuple[float, str]] = field(default_factory=dict)
    n_trials: int = 0
    n_requests: int = 0
    n_searches: int = 0

    def refuted(self) -> RankedHardware:
        """Return the comparison without its plans, which met the request with few seeds and miss it with all."""
        why = "met with few seeds, missed with all"
        rows = [
            HardwareRow(hardware=row.hardware, state="undecided", why=why) if row.state == "holds" else row
            for row in self.rows
        ]
        return replace(self, rows=rows, plans=[])


@dataclass(frozen=True, slots=True)
class HardwareRanking:
    """Ranks the kinds of accelerator of a request.

    Attributes:
        request: The request.
        plan_evaluator: Evaluates the plans.
        in_order: Returns candidates in order of promise.
        size: Returns the size of a candidate: US dollars per hour, or accelerators.
        refused: Candidates that miss the request with all seeds of a winner.
        best: The recommended plan, if there is one: estimates are taken to be as far off as its own.
    """

    request: PlanRequest
    plan_evaluator: PlanEvaluator
    in_order: Callable[[Sequence[Candidate]], list[Candidate]]
    size: Callable[[Candidate], float]
    refused: Collection[Candidate] = ()
    best: EvaluatedPlan | None = None

    def rows(
        self,
        left: Sequence[Candidate],
        discards: Sequence[tuple[Candidate, Discard]],
        outcomes: Sequence[Outcome],
        entries: Sequence[EvaluatedPlan],
    ) -> RankedHardware:
        """Return one row for each kind of accelerator, best first, and the plans on those kinds in the same order.

        Args:
            left: The candidates that the bounds leave.
            discards: The candidates that they rule out.
            outcomes: The outcomes of the search.
            entries: The plans of the answer.
        """
        kinds = list(dict.fromkeys(kind_of(c) for c in (*left, *(c for c, _ in discards))))
        if len(kinds) < 2:
            return RankedHardware()
        known = {kind_of(entry.candidate): entry for entry in reversed(entries)}
        unknown = [kind for kind in kinds if kind not in known]
        own = {kind: [c for c in left if kind_of(c) == kind] for kind in unknown}
        score = {o.candidate: o.score for o in outcomes if o.feasible and o.score is not None}
        searched = dict(
            zip(unknown, self.plan_evaluator.each(lambda k: self._search(own[k], score), unknown), strict=True)
        )
        known |= {kind: found.plan for kind, found in searched.items() if found.plan is not None}
        ranked = []
        for kind in kinds:
            entry = known.get(kind)
            if entry is not None:
                ranked.append((0.0, self._value(entry), _plan_row(entry)))
            elif own[kind]:
                ranked.append((1.0, 0.0, self._row_without_plan(own[kind], searched[kind])))
            else:
                ranked.append((2.0, 0.0, _ruled_out_row(kind, [d for c, d in discards if kind_of(c) == kind])))
        plans = sorted(known.values(), key=self._value)
        done = [found for found in searched.values() if found.tried]
        return RankedHardware(
            [row for _, _, row in sorted(ranked, key=lambda item: item[:2])],
            plans,
            {c: found.missed.get(c, (0.0, "an objective")) for found in done for c in found.tried},
            n_trials=sum(len(found.tried) for found in done),
            n_requests=sum(found.n_requests for found in done),
            n_searches=len(done),
        )

    def _value(self, entry: EvaluatedPlan) -> float:
        return objective_value(self.request.objective, self.request.given, entry)

    # ---- the search for a plan of one kind

    def _search(self, own: Sequence[Candidate], score: dict[Candidate, float]) -> _KindSearch:
        """Return the first plan of one kind that meets the request, within the trials of a search."""
        found, able = _KindSearch(), [c for c in own if not self._is_overloaded(c)]
        promising = list(dict.fromkeys(self._promising(able, score)))[: self.request.search.trials]
        found.plan = self._first(promising, found)
        if found.plan is None:
            rest = [c for c in self._by_latency(able) if c not in found.missed]
            largest = self._first(rest[: max(self.request.search.trials - len(promising), 0)], found)
            found.plan = None if largest is None else self._smallest_part(largest, able, found)
        return found

    def _is_overloaded(self, candidate: Candidate) -> bool:
        """Return whether a candidate does not carry the load even with a full batch."""
        most_per_s = self.plan_evaluator.evaluator.fluid_requests_per_s(candidate) * OVERLOAD
        return most_per_s <= self.plan_evaluator.tester.floor_per_s(candidate)

    def _promising(self, able: Sequence[Candidate], score: dict[Candidate, float]) -> Iterator[Candidate]:
        """Yield the best candidate of the search, and the most promising ones on the smallest parts of the hardware.

        Of parts at an equal price, those with the most accelerators come first, as in the search.
        """
        measured = [c for c in able if c in score]
        if measured:
            yield min(measured, key=lambda c: score[c])
        parts: dict[Hardware, list[Candidate]] = {}
        for c in able:
            parts.setdefault(c.hardware, []).append(c)
        sign = 1 if self.request.given else -1  # without a required rate, the largest parts come first
        sizes = sorted(parts, key=lambda part: (sign * self.size(parts[part][0]), -part.n_accelerators))
        for hardware in sizes[:_SMALLEST_PARTS]:
            yield from self.in_order(parts[hardware])[:_PROMISING]

    def _by_latency(self, able: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates by their estimated largest value / limit: more accelerators carry a load faster."""
        tester = self.plan_evaluator.tester
        return sorted(able, key=lambda c: tester.guessed_ratio(c, tester.floor_per_s(c)))

    def _first(self, candidates: Iterable[Candidate], found: _KindSearch) -> EvaluatedPlan | None:
        """Return the plan of the first candidate that meets the request; note those that do not."""
        counter = RequestCounter()
        tester = replace(self.plan_evaluator.tester, counter=counter)
        for candidate in candidates:
            rate = tester.floor_per_s(candidate)
            found.tried.add(candidate)
            if candidate in self.refused:
                found.missed[candidate] = (1.0, "an objective")
                continue
            verdict = tester.probe(candidate, rate, tester.sizes.quick)
            if not tester.ruled_out(candidate, verdict):
                verdict = tester.probe(candidate, rate, tester.sizes.full)
            found.n_requests += counter.n_requests
            counter.restart()
            if verdict.clearly_missed or not verdict.met:
                found.miss(candidate, verdict)
                continue
            entry = self.plan_evaluator.entry(candidate, None, OTHER, hint=CapacityHint(like=self.best))
            if entry.met and entry.survives and entry.capacity_requests_per_s is not None:
                return entry
            found.miss(candidate, entry.verdict)
        return None

    def _smallest_part(self, largest: EvaluatedPlan, able: Sequence[Candidate], found: _KindSearch) -> EvaluatedPlan:
        """Return the plan of equal replicas on the smallest part of the hardware that meets the request."""
        equal = _replica(largest.candidate)
        parts = [c for c in able if _replica(c) == equal and self.size(c) < self.size(largest.candidate)]
        parts.sort(key=self.size)
        plans: dict[int, EvaluatedPlan] = {len(parts): largest}

        def meets(i: int) -> bool:
            plan = self._first(parts[i : i + 1], found)
            if plan is not None:
                plans[i] = plan
            return plan is not None

        return plans[bisect_left(range(len(parts)), True, key=meets)]

    def _row_without_plan(self, own: Sequence[Candidate], found: _KindSearch) -> HardwareRow:
        """Return the row of a kind without a plan, with the reason in a few words."""
        evaluator = self.plan_evaluator.evaluator
        best = max(own, key=evaluator.fluid_requests_per_s)
        if self._is_overloaded(best):
            return HardwareRow(
                hardware=best.hardware.text,
                state="fails",
                why="overloaded with full batches",
                at_most_requests_per_s=OVERLOAD * evaluator.fluid_requests_per_s(best),
            )
        able = [c for c in own if not self._is_overloaded(c)]
        nearest = min(found.missed, key=lambda c: found.missed[c][0])
        n_left = len(able) - len(found.missed)
        if not n_left:
            why = _missed_words(found.missed.values(), "every candidate misses", "no candidate meets the objectives")
            return HardwareRow(hardware=nearest.hardware.text, state="fails", why=why)
        simulated = counted(len(found.missed), "simulated candidate")
        all_miss = f"all {simulated} miss" if len(found.missed) > 1 else "the only simulated candidate misses"
        why = _missed_words(found.missed.values(), all_miss, f"none of the {simulated} meets the objectives")
        others = f"{counted(n_left, 'other')} that may serve the load {'was' if n_left == 1 else 'were'} not simulated"
        return HardwareRow(
            hardware=nearest.hardware.text,
            state="undecided",
            why=f"{why}; {others} (a larger search.trials includes them)",
        )


def _missed_words(missed: Collection[tuple[float, str]], all_miss: str, none_meets: str) -> str:
    """Return why no candidate of a kind meets the request.

    Args:
        missed: For each candidate the value / limit and the name of the objective that it misses by most.
        all_miss: The words before the name of an objective that all of them miss.
        none_meets: The words where they miss different objectives.
    """
    names = {"" if math.isinf(ratio) else name for ratio, name in missed}
    if names == {""}:
        return "the queue grows without limit"
    return f"{all_miss} {names.pop()}" if len(names) == 1 else none_meets


def estimate_sentences(plan: Plan, rows: Sequence[HardwareRow]) -> str:
    """Return that a plan is an estimate, and the best hardware without estimates; empty if the plan is none."""
    if not plan.estimate_words:
        return ""
    measured = next((row for row in rows if row.state == "holds" and not row.is_estimate), None)
    words = estimate_sentence(plan.estimate_words)
    if measured is None:
        return words
    price = "" if measured.usd_per_hour is None else f", at {dollars(measured.usd_per_hour)}/h"
    return f"{words} The best plan with measured operator times is on {measured.hardware}{price}."


def marked_words(rows: Sequence[HardwareRow]) -> str:
    """Return what the mark of estimates means, and the hardware that has it; empty if no row has it."""
    names = {row: row.hardware.rpartition("x")[0] for row in rows if row.is_estimate}
    borrowed = ", ".join(f"{name} from {row.borrowed_from}" for row, name in names.items() if row.borrowed_from)
    others = ", ".join(name for row, name in names.items() if not row.borrowed_from)
    found = [f"borrowed from another accelerator ({borrowed})"] if borrowed else []
    found += [f"mostly roofline estimates ({others})"] if others else []
    return f"an estimate: its operator times are {', or '.join(found)}" if found else ""


def _replica(candidate: Candidate) -> tuple[object, ...]:
    """Return everything that distinguishes one replica of a candidate from that of another."""
    return (*candidate.replica_choices, candidate.max_num_seqs, candidate.max_num_batched_tokens, candidate.split)


def _ruled_out_row(kind: str, reasons: Sequence[Discard]) -> HardwareRow:
    """Return the row of a kind of which the bounds leave no candidate, with the bound that it is closest to meeting."""
    order = list(_RULED_OUT)

    def distance(discard: Discard) -> tuple[int, float]:
        bound = order.index(discard.constraint) + 1 if discard.constraint in _RULED_OUT else 0
        return bound, discard.value / discard.limit

    closest = min(reasons, key=distance)
    why = _RULED_OUT.get(closest.constraint, f"{closest.constraint} is missed when idle")
    return HardwareRow(hardware=kind, state="ruled out", why=why)


def _latency_s(plan: Plan, metric: str, stat: str) -> float | None:
    """Return a statistic in seconds: the value of its objective, as metrics hold a few statistics only."""
    own = next((row for row in plan.slo if (row.metric, row.stat) == (metric, stat)), None)
    return plan.latency_s(metric, stat) if own is None else own.value_s


def _plan_row(entry: EvaluatedPlan) -> HardwareRow:
    """Return the row of a kind with a plan."""
    plan, candidate = entry.plan, entry.candidate
    usd, cost, used = plan.usd_per_hour, plan.cost, plan.energy
    stats = {row.metric: row.stat for row in plan.slo}
    ttft, tpot = stats.get(TTFT.name, "p99"), stats.get(TPOT.name, "p99")
    return HardwareRow(
        hardware=candidate.hardware.text,
        state="holds",
        candidate=candidate.words,
        requests_per_s=entry.requests_per_s,
        usd_per_hour=usd,
        accelerators=candidate.hardware.n_accelerators,
        instance=None if cost is None else rented_words(cost.instances) or cost.instance,
        offer=None if cost is None else offer_words(cost),
        usd_per_month=None if cost is None else cost.usd_per_month,
        usd_per_million_output_tokens=None if cost is None else cost.usd_per_million_output_tokens,
        j_per_output_token=None if used is None else used.j_per_output_token,
        capacity_requests_per_s=entry.capacity_requests_per_s,
        ttft_s=_latency_s(plan, TTFT.name, ttft),
        ttft_stat=ttft,
        tpot_s=_latency_s(plan, TPOT.name, tpot),
        tpot_stat=tpot,
        limited_by=plan.limited_by,
        weight_dtype=candidate.weight_dtype,
        evidence=None if plan.calibration is None else plan.calibration.evidence,
        borrowed_from=None if plan.calibration is None else plan.calibration.borrowed_from,
    )
