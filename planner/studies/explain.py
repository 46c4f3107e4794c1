"""Why this plan and not another, what binds it, and what the next fifth of capacity would cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from catalogs.ui.terminal import ProgressCallback
from catalogs.ui.words import human_s
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.problem.candidate import deployment_words
from planner.search.objectives import TIE
from planner.studies.bottleneck import ResourceUse, pool_uses, resource_uses
from planner.studies.capacity_growth import Growth, GrowthStep, growth
from planner.studies.rerun import Rerun

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Explanation:
    """why: sentences. alternatives: (plan in words, why not it). binds: of the best plan, or of the closest one."""

    why: list[str]
    alternatives: list[tuple[str, str]]
    uses: list[ResourceUse]
    binds: str
    growth: Growth | None


def explain(answer: Answer, tell: ProgressCallback = lambda _: None) -> Explanation:
    """Simulates the plan once more and every change that could buy a fifth more. Raises InputError where the answer
    cannot be rerun, or is a no: that explains itself."""
    best = answer.best
    if best is None:
        binding = answer.infeasible.binding_constraint if answer.infeasible else "unknown"
        return Explanation([f"No plan: {binding}"], [], [], binding, None)
    rerun = Rerun.of(answer, "explain")
    tell("the plan itself")
    found = resource_uses(best, pool_uses(rerun, best))
    grown = growth(rerun, best, tell) if best.capacity_requests_per_s else None
    others = [(deployment_words(p.deployment), why_not(answer, best, p)) for p in answer.alternatives]
    return Explanation(list(_why(answer, best)), others, found, binding_words(best, found), grown)


def _why(answer: Answer, best: Plan) -> Iterator[str]:
    """How it was found, and what decided."""
    s, asked = answer.search, answer.request
    yield (
        f"Of {s.n_space:,} deployments {s.n_bounded_out:,} can never meet the objectives (bounds), "
        f"{s.n_simulated:,} were simulated and this one is best in {_goal(asked.objective, asked.requests_per_s)}."
    )
    for reason, n in s.bounded_out.items():
        yield f"{n:,} of them ruled out: {reason}."
    near = best.tightest
    value = "unbounded" if near.value_s is None else human_s(near.value_s)
    yield f"Its tightest objective is {near.name}: {value} of {human_s(near.limit_s)} ({near.share:.0%})."
    if best.limited_by:
        yield f"Its capacity is {best.capacity_requests_per_s:.3g} requests/s; {best.limited_by}."


def _goal(objective: str, rate: float | None) -> str:
    if objective == "cost":
        return "cost: the highest rate for the money" if rate is None else f"cost: the cheapest that carries {rate:g}/s"
    words = {"energy": "energy per token", "throughput": "the rate it holds", "latency": "latency"}
    return words.get(objective, objective)


def why_not(answer: Answer, best: Plan, other: Plan) -> str:
    """What the best has over an alternative, in the words of the objective."""
    ours, theirs = best.capacity_requests_per_s, other.capacity_requests_per_s
    said = []
    if ours and theirs:
        said.append(f"holds {theirs:.3g} requests/s, {theirs / ours - 1:+.0%}")
        if abs(theirs / ours - 1) <= TIE and answer.request.objective in ("cost", "throughput"):
            said.append("which is a tie: the plainer deployment is preferred")
    for name, mine, its in (
        ("cost per output token", _usd(best), _usd(other)),
        ("energy per output token", _joules(best), _joules(other)),
    ):
        if mine and its:
            said.append(f"{name} {its / mine - 1:+.0%}")
    if other.usd_per_hour and best.usd_per_hour and other.usd_per_hour != best.usd_per_hour:
        said.append(f"${other.usd_per_hour:.2f} against ${best.usd_per_hour:.2f} per hour")
    return ", ".join(said) or "no figures to compare"


def _usd(plan: Plan) -> float | None:
    return None if plan.cost is None else plan.cost.usd_per_million_output_tokens


def _joules(plan: Plan) -> float | None:
    return None if plan.energy is None else plan.energy.j_per_output_token


def binding_words(plan: Plan, found: list[ResourceUse]) -> str:
    """One sentence: the objective that is met last, and the resource behind it."""
    binding = [u for u in found if u.binds]
    what = ", ".join(f"{u.resource} ({u.share:.0%} of {u.of}{': ' + u.words if u.words else ''})" for u in binding)
    first = f"{plan.limited_by}; " if plan.limited_by else ""
    return f"{first}what its steps wait for is {what}" if what else f"{first}nothing is used up"


def document(e: Explanation) -> dict[str, Any]:
    """`plan explain --json`."""
    grown = None
    if e.growth is not None:
        cheapest = e.growth.cheapest
        changes = [asdict(c) for c in e.growth.changes]
        grown = {"goal_requests_per_s": e.growth.goal_per_s, "changes": changes}
        grown |= {"cheapest": None if cheapest is None else asdict(cheapest)}
    return {
        "schema_version": SCHEMA_VERSION,
        "why": e.why,
        "why_not": [{"plan": plan, "because": because} for plan, because in e.alternatives],
        "binds": e.binds,
        "uses": [asdict(u) for u in e.uses],
        "more_capacity": grown,
    }


def cheapest_words(change: GrowthStep) -> str:
    """The change, what it costs more (or saves), and what to mind."""
    extra = change.extra_usd_per_hour
    if extra is None:
        more = "at a price that is not known"
    elif extra == 0:
        more = "at no more money"
    else:
        more = f"for ${extra:,.2f} more per hour" if extra > 0 else f"which saves ${-extra:,.2f} per hour"
    return f"{change.words}, {more}" + (f" ({change.note})" if change.note else "")


def extra_words(c: GrowthStep) -> str:
    if c.extra_usd_per_hour is None:
        return "unknown"
    return f"${c.extra_usd_per_hour:,.2f}" if c.extra_usd_per_hour >= 0 else f"-${-c.extra_usd_per_hour:,.2f}"
