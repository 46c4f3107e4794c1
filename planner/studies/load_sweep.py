"""Plans simulated at several loads, to show cost and energy per token against latency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from catalogs.ui.progress import ProgressCallback
from catalogs.ui.words import percent
from planner.answer.plan_schema import Plan
from planner.economics.money import Rates, energy, money
from planner.evaluation.observation import Load
from planner.evaluation.verdict import judge
from planner.problem.slo import STATS, Slo
from planner.search.workers import ONE_PROCESS, WorkerPool, run_tasks, silent_in_workers
from planner.studies.rerun import Rerun

#: Simulated shares of the capacity.
SHARES: Final = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0)

#: Simulated multiples of the capacity of the recommended plan, up to the first overload.
BEYOND: Final = (1.1, 1.25, 1.5, 2.0)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One plan at one load.

    `plan` is the number of the plan, 0 for the recommended one. `share` is the load as a fraction of the capacity, or
    of the planned rate if there is no capacity. `latency_s` is keyed by metric and statistic.
    """

    plan: int
    share: float
    requests_per_s: float
    stable: bool
    met: bool
    output_tokens_per_s: float
    usd_per_million_output_tokens: float | None
    j_per_output_token: float | None
    kwh_per_million_output_tokens: float | None
    latency_s: dict[str, dict[str, float]]


def sweep(
    plans: list[Plan], rerun: Rerun, tell: ProgressCallback = lambda _: None, workers: WorkerPool = ONE_PROCESS
) -> list[SweepPoint]:
    """Return every plan at ascending shares of its capacity with one seed; the recommended plan also above it."""
    told = silent_in_workers(tell)
    tasks: list[Callable[[], SweepPoint]] = []
    for i, plan in enumerate(plans):
        tasks += [partial(_point, i, plan, rerun, share, told) for share in (SHARES if _top_per_s(plan) else ())]
    found = run_tasks(workers.map, tasks)
    beyond: list[SweepPoint] = []
    for share in BEYOND if plans and _top_per_s(plans[0]) else ():
        beyond.append(_point(0, plans[0], rerun, share, tell))
        if not beyond[-1].stable:
            break
    own = [point for point in found if point.plan == 0]
    return [*own, *beyond, *found[len(own) :]]


def _top_per_s(plan: Plan) -> float:
    """Return the capacity of a plan, or its planned rate if there is no capacity; 0 if it has neither."""
    return plan.capacity_requests_per_s or plan.requests_per_s or 0.0


def _point(i: int, plan: Plan, rerun: Rerun, share: float, tell: ProgressCallback) -> SweepPoint:
    tell(f"plan {i + 1} at {percent(share)} of its capacity")
    candidate, rate = rerun.candidates[i], share * _top_per_s(plan)
    tester, prices = rerun.tester, rerun.prices
    detail = rerun.evaluator.detail(candidate, Load(rate, tester.sizes.full, tester.seed))
    verdict = judge([detail.observation], tester.slos)
    rates = Rates(detail.output_tokens_per_s, detail.total_tokens_per_s, detail.power_w)
    used = energy(rates, prices.grid(candidate), prices.pue)
    known = list(detail.observation.samples_s)
    stats = sorted({*STATS, *(slo.stat for slo in tester.slos)})
    return SweepPoint(
        plan=i,
        share=share,
        requests_per_s=rate,
        stable=verdict.stable,
        met=share <= 1,
        output_tokens_per_s=detail.output_tokens_per_s,
        usd_per_million_output_tokens=money(rates, prices.price(candidate)).usd_per_million_output_tokens,
        j_per_output_token=None if used is None else used.j_per_output_token,
        kwh_per_million_output_tokens=None if used is None else used.kwh_per_million_output_tokens,
        latency_s={m: {stat: verdict.value_s(Slo(m, stat, 1.0)) for stat in stats} for m in known},
    )
