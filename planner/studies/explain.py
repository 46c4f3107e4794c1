"""The explanation of an answer: its reasons, its bottleneck, and the cost of 20 % more capacity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from catalogs.ui.progress import ProgressCallback
from catalogs.ui.words import counted, dollars, percent, rate, were
from planner.answer.answer_schema import Answer, reason_sentence, refused_sentence
from planner.answer.plan_schema import Plan
from planner.evaluation.evaluator import apply_bounds
from planner.problem.candidate import count_words, deployment_words
from planner.search.candidate_tester import TIE_WORDS
from planner.search.workers import ONE_PROCESS, WorkerPool
from planner.sections.section import tightest_words
from planner.studies.binding import Binding, find_binding
from planner.studies.bottleneck import ResourceUse, resource_uses, simulated_pool_uses
from planner.studies.capacity_growth import Growth, GrowthStep, growth
from planner.studies.rerun import Rerun

#: Version of the form of an explanation.
SCHEMA_VERSION: Final = 2

#: Maximum number of kinds of deployment named for a reason that rules them out.
_NAMED_OUT: Final = 3


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reasons of a recommendation.

    Attributes:
        why: Sentences on the search and the decision.
        alternatives: Pairs of a plan in words and the reason against it.
        uses: Utilisation of each resource, and the gain of capacity from 10 % more of it.
        binds: What binds the recommended plan, or the closest plan.
        advice: What to change because of it; empty if nothing binds alone.
        growth: Changes that reach more capacity; None if the plan has no capacity.
    """

    why: list[str]
    alternatives: list[tuple[str, str]]
    uses: list[ResourceUse]
    binds: str
    growth: Growth | None
    advice: tuple[str, ...] = ()


def explain(answer: Answer, tell: ProgressCallback = lambda _: None, workers: WorkerPool = ONE_PROCESS) -> Explanation:
    """Simulate the plan again with each input improved, and every change that could reach 20 % more capacity.

    Raises:
        InputError: The answer cannot be simulated again.
    """
    best = answer.best
    if best is None:
        return _explain_refusal(answer)
    rerun, capacity_per_s = Rerun.of(answer), best.capacity_requests_per_s
    tell("the plan itself")
    bound = find_binding(rerun, capacity_per_s, tell, workers) if capacity_per_s else None
    found = resource_uses(best, simulated_pool_uses(rerun, best), bound)
    grown = growth(rerun, best, tell) if capacity_per_s else None
    others = [(deployment_words(p.deployment), why_not(best, p)) for p in answer.alternatives]
    why = [*_why(answer, best), *ruled_out(answer, rerun)]
    advice = () if bound is None else tuple(f"{gain.input}: {gain.advice}" for gain in bound.binding)
    return Explanation(why, others, found, binding_words(best, bound), grown, advice)


def _explain_refusal(answer: Answer) -> Explanation:
    """Return what rules every candidate out, and what would meet the request."""
    refusal, search = answer.infeasible, answer.search
    if refusal is None:
        return Explanation(["No deployment meets the request."], [], [], "unknown", None)
    why = [refused_sentence(search.n_space)]
    reasons = refusal.reasons or {f"ruled out: {reason}": n for reason, n in search.main_reasons.items()}
    why += [reason_sentence(n, reason) for reason, n in reasons.items()]
    why += [f"It would be met by {s.change} (checked by {s.verified_by})." for s in refusal.what_would_meet_it]
    return Explanation(why, [], [], refusal.binding_constraint, None)


#: What the search optimised, by objective; an objective that is not listed is maximised.
_GOALS: Final = {
    "cost": "has the lowest cost per token",
    "energy": "has the lowest energy per token",
    "carbon": "has the lowest carbon per token",
    "throughput": "has the highest sustainable rate",
    "latency": "has the lowest latency",
}


def _why(answer: Answer, best: Plan) -> Iterator[str]:
    """Yield sentences on the search and on the decision."""
    s, request = answer.search, answer.request
    goal = _GOALS.get(request.objective, f"has the highest {request.objective}")
    if request.objective == "cost" and request.given:
        load = rate(best.requests_per_s) if request.users is None else counted(request.users, "user")
        goal = f"is the cheapest that serves {load}"
    yield (
        f"Of {counted(s.n_space, 'deployment')}, {s.n_bounded_out:,} cannot meet the objectives (bounds), "
        f"{were(s.n_simulated)} simulated and {were(s.n_not_simulated)} not; this one {goal}."
    )
    yield tightest_words(best.slo, request.confidence)
    if best.limit_words:
        yield f"Its capacity is {best.capacity_words}; {best.limit_words}."


def ruled_out(answer: Answer, rerun: Rerun) -> Iterator[str]:
    """Yield a sentence on each of the reasons in the answer, with the deployments that it rules out."""
    if not answer.search.bounded_out:
        return
    names: dict[str, dict[str, None]] = {}
    for candidate, discard in apply_bounds(answer.request, rerun.evaluator)[1].items():
        own = f"{count_words(candidate.replicas, candidate.layout, candidate.split)} on {candidate.hardware.text}"
        names.setdefault(discard.reason, {})[f"{own} ({candidate.weight_dtype}, KV {candidate.kv_dtype})"] = None
    for reason, n in answer.search.main_reasons.items():
        found = list(names.get(reason, ()))
        more = f" and {len(found) - _NAMED_OUT} more kinds" if len(found) > _NAMED_OUT else ""
        which = f": {', '.join(found[:_NAMED_OUT])}{more}" if found else ""
        yield f"{n:,} ruled out, because {reason}{which}."


def why_not(best: Plan, other: Plan) -> str:
    """Return the differences of an alternative from the recommended plan in words."""
    ours, theirs = best.capacity_requests_per_s, other.capacity_requests_per_s
    reasons = []
    if ours and theirs:
        reasons.append(f"serves {rate(theirs)}, {percent(theirs / ours - 1, signed=True)}")
    if other.ties:
        reasons.append(TIE_WORDS)
    for name, block, key in (
        ("cost per output token", "cost", "usd_per_million_output_tokens"),
        ("energy per output token", "energy", "j_per_output_token"),
    ):
        mine, its = (getattr(getattr(plan, block), key, None) for plan in (best, other))
        if mine and its:
            reasons.append(f"{name} {percent(its / mine - 1, signed=True)}")
    if other.usd_per_hour and best.usd_per_hour and other.usd_per_hour != best.usd_per_hour:
        reasons.append(f"${other.usd_per_hour:.2f} instead of ${best.usd_per_hour:.2f} per hour")
    return ", ".join(reasons) or "no figures to compare"


def binding_words(plan: Plan, binding: Binding | None) -> str:
    """Return the limit of the capacity and the input that binds in one sentence."""
    first = f"capacity {plan.capacity_words}, {plan.limit_words}; " if plan.limit_words else ""
    unknown = "what binds is not known: the plan has no capacity with the seed of the search"
    return first + (unknown if binding is None else binding.words)


def document(e: Explanation) -> dict[str, Any]:
    """Return the document of `plan explain --json`."""
    grown = None
    if e.growth is not None:
        cheapest = e.growth.cheapest
        grown = {
            "goal_requests_per_s": e.growth.goal_per_s,
            "changes": [asdict(change) for change in e.growth.changes],
            "cheapest": None if cheapest is None else asdict(cheapest),
        }
    return {
        "schema_version": SCHEMA_VERSION,
        "why": e.why,
        "why_not": [{"plan": plan, "because": because} for plan, because in e.alternatives],
        "binds": e.binds,
        "advice": list(e.advice),
        "uses": [asdict(u) for u in e.uses],
        "more_capacity": grown,
    }


def cheapest_words(change: GrowthStep) -> str:
    """Return a change with its additional cost or saving, and its note."""
    extra = change.extra_usd_per_hour
    more = f"for {dollars(extra)} more per hour"
    if extra is None:
        more = "at an unknown price"
    elif not round(extra, 2):
        more = "at the same cost"
    elif extra < 0:
        more = f"saves {dollars(-extra)} per hour"
    return f"{change.words}, {more}" + (f" ({change.note})" if change.note else "")
