"""Compare the kinds of accelerator of a hardware choice: one row for each, with the best plan on it.

The search ends when it knows the answer, so most kinds have no plan then. For each of them the smallest part of the
hardware that carries the load is sought among the most promising candidates, and evaluated like an alternative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from catalogs.hardware.specs import Hardware
from catalogs.io.json_block import JsonBlock
from planner.answer.evaluate import OTHER, EvaluatedPlan, PlanEvaluator, objective_value
from planner.economics.money import offer_words, rented_words
from planner.evaluation.queueing import OVERLOAD
from planner.problem.candidate import Candidate
from planner.problem.latency_metrics import TPOT, TTFT
from planner.problem.request import PlanRequest
from planner.search.objectives import UNSTABLE, Outcome
from planner.space.bounds import NOT_ADMITTED, Discard

#: Results of a kind of accelerator, best first.
State = Literal["holds", "fails", "ruled out"]

#: Most candidates that are simulated on each part of the hardware, and most parts of each kind.
_MOST_TRIES: Final = 3

_MOST_PARTS: Final = 4


class HardwareRow(JsonBlock):
    """One kind of accelerator of the choice, with the figures of the best plan on it.

    Latencies are at `requests_per_s`: the required rate or, without one, the plan's own capacity. `capacity` is at the
    confidence of the request. A kind without a plan has a `why`.
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


@dataclass(frozen=True, slots=True)
class HardwareRanking:
    """Ranks the kinds of accelerator of a request.

    Attributes:
        request: The request.
        plan_evaluator: Evaluates the plans.
        in_order: Returns candidates in order of promise.
        size: Returns the size of a candidate: US dollars per hour, or accelerators.
    """

    request: PlanRequest
    plan_evaluator: PlanEvaluator
    in_order: Callable[[Sequence[Candidate]], list[Candidate]]
    size: Callable[[Candidate], float]

    def rows(
        self,
        left: Sequence[Candidate],
        discards: Sequence[tuple[Candidate, Discard]],
        outcomes: Sequence[Outcome],
        entries: Sequence[EvaluatedPlan],
    ) -> tuple[list[HardwareRow], list[EvaluatedPlan]]:
        """Return one row for each kind of accelerator, best first, and the plans on those kinds in the same order.

        Both are empty if there is only one kind.

        Args:
            left: The candidates that the bounds leave.
            discards: The candidates that they rule out.
            outcomes: The outcomes of the search.
            entries: The plans of the answer.
        """
        kinds = list(dict.fromkeys(c.hardware.accelerator.name for c in (*left, *(c for c, _ in discards))))
        if len(kinds) < 2:
            return [], []
        known = {_kind(entry.candidate): entry for entry in reversed(entries)}
        unknown = [kind for kind in kinds if kind not in known]
        own = {kind: [c for c in left if _kind(c) == kind] for kind in unknown}
        score = {o.candidate: o.score for o in outcomes if o.feasible and o.score is not None}
        found = self.plan_evaluator.each(lambda kind: self._best(own[kind], score), unknown)
        known |= {kind: entry for kind, entry in zip(unknown, found, strict=True) if entry is not None}
        ranked = []
        for kind in kinds:
            entry = known.get(kind)
            if entry is not None:
                ranked.append((0.0, self._value(entry), _plan_row(entry)))
                continue
            reasons = [discard for c, discard in discards if _kind(c) == kind]
            missed = [outcome for outcome in outcomes if _kind(outcome.candidate) == kind]
            ranked.append((1.0, 0.0, self._without_plan(kind, own.get(kind, []), reasons, missed)))
        plans = sorted(known.values(), key=self._value)
        return [row for _, _, row in sorted(ranked, key=lambda item: item[:2])], plans

    def _value(self, entry: EvaluatedPlan) -> float:
        return objective_value(self.request.objective, self.request.given, entry)

    def _best(self, own: Sequence[Candidate], score: dict[Candidate, float]) -> EvaluatedPlan | None:
        """Return the plan of the smallest part of one kind that meets the request, or None."""
        tester, evaluator = self.plan_evaluator.tester, self.plan_evaluator.evaluator
        measured = [c for c in own if c in score]
        parts: dict[Hardware, list[Candidate]] = {}
        for c in own:
            if evaluator.fluid_requests_per_s(c) * OVERLOAD > tester.floor_per_s(c):
                parts.setdefault(c.hardware, []).append(c)
        sizes = sorted(parts, key=lambda part: self.size(parts[part][0]), reverse=not self.request.given)
        chosen = [min(measured, key=lambda c: score[c])] if measured else []
        for hardware in sizes[:_MOST_PARTS]:
            chosen += self.in_order(parts[hardware])[:_MOST_TRIES]
        for candidate in dict.fromkeys(chosen):
            rate = tester.floor_per_s(candidate)
            quick = tester.probe(candidate, rate, tester.sizes.quick)
            if quick.clearly_missed or not tester.probe(candidate, rate, tester.sizes.full).met:
                continue
            entry = self.plan_evaluator.entry(candidate, None, OTHER)
            if entry.met and entry.survives and entry.capacity_requests_per_s is not None:
                return entry
        return None

    def _without_plan(
        self, kind: str, own: Sequence[Candidate], reasons: Sequence[Discard], missed: Sequence[Outcome]
    ) -> HardwareRow:
        """Return the row of a kind without a plan, with the reason in a few words."""
        evaluator = self.plan_evaluator.evaluator
        if not own:
            constraint = reasons[0].constraint if reasons else "memory"
            words = {"memory": "model does not fit in memory", NOT_ADMITTED: "no replica would survive"}
            why = words.get(constraint, f"{constraint} is missed when idle")
            return HardwareRow(hardware=kind, state="ruled out", why=why)
        best = max(own, key=evaluator.fluid_requests_per_s)
        most = OVERLOAD * evaluator.fluid_requests_per_s(best)
        if self.request.given and most <= self.plan_evaluator.tester.floor_per_s(best):
            return HardwareRow(
                hardware=best.hardware.text,
                state="fails",
                why="overloaded with full batches",
                at_most_requests_per_s=most,
            )
        nearest = min(missed, key=lambda outcome: outcome.ratio, default=None)
        why = "no plan met in a few tries" if nearest is None else f"misses {nearest.binding} at the load"
        why = "queue grows without limit" if nearest is not None and nearest.ratio >= UNSTABLE else why
        return HardwareRow(hardware=best.hardware.text, state="fails", why=why)


def _kind(candidate: Candidate) -> str:
    return candidate.hardware.accelerator.name


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
        ttft_s=plan.latency_s(TTFT.name, ttft),
        ttft_stat=ttft,
        tpot_s=plan.latency_s(TPOT.name, tpot),
        tpot_stat=tpot,
        limited_by=_limit_words(plan.limited_by),
        weight_dtype=candidate.weight_dtype,
    )


def _limit_words(limited_by: str | None) -> str | None:
    """Return what limits the capacity as a name: an objective, or "queue"."""
    if limited_by is None:
        return None
    words = limited_by.removeprefix("beyond it ").removesuffix(" is missed")
    return "queue" if words == "the queue grows" else words
