"""Plans simulated at several loads, to show cost and energy per token against latency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from catalogs.ui.terminal import ProgressCallback
from catalogs.ui.words import percent
from planner.answer.plan_schema import Plan
from planner.economics.money import Rates, energy, money
from planner.evaluation.observation import Load
from planner.evaluation.verdict import judge
from planner.problem.candidate import Candidate
from planner.problem.slo import STATS, Slo
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


def sweep(plans: list[Plan], rerun: Rerun, tell: ProgressCallback = lambda _: None) -> list[SweepPoint]:
    """Return every plan at ascending shares of its capacity with one seed; the recommended plan also above it."""
    found = []
    for i, (plan, candidate) in enumerate(zip(plans, rerun.candidates, strict=True)):
        top = plan.capacity_requests_per_s or plan.requests_per_s
        for share in (*SHARES, *(BEYOND if i == 0 else ())) if top else ():
            tell(f"plan {i + 1} at {percent(share)} of its capacity")
            found.append(_point(i, candidate, rerun, share, share * (top or 0.0)))
            if share > 1 and not found[-1].stable:
                break
    return found


def _point(i: int, candidate: Candidate, rerun: Rerun, share: float, rate: float) -> SweepPoint:
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
