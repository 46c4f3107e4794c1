"""Blocks of an answer that follow from its measured plans: assumptions, prices and the Pareto set."""

from __future__ import annotations

import math
from collections.abc import Sequence

from catalogs.hardware.specs import Hardware
from planner.answer.measure import MOST_REPLICAS, MeasuredPlan
from planner.answer.plan_schema import Plan
from planner.economics.money import PriceLine, price_rows
from planner.problem.request import PlanRequest


def assumptions(request: PlanRequest) -> list[str]:
    """Return the assumptions behind the figures, one sentence each."""
    lines = [
        f"workload {request.workload}: its own lengths and arrivals, only the rate is scaled",
        "the search and the alternatives simulate one replica under its share of the requests; the figures of the best "
        f"plan come from all its replicas behind one round-robin router, up to {MOST_REPLICAS} of them",
        "latencies are measured at the client, in the steady part of each run",
    ]
    if request.requests_per_s is None:
        at = "a light load" if request.objective == "latency" else "the highest rate that meets every objective"
        lines.append(f"no rate given: figures are at {at}")
    return lines


def prices_of(plan: Plan, hardware: Hardware) -> list[PriceLine]:
    """Return the prices of the plan's hardware on all clouds, per hour and per token of the plan."""
    output, total = plan.metric("output_tokens_per_s"), plan.metric("total_tokens_per_s")
    return price_rows(hardware, output or 0.0, total or 0.0)


def pareto(entries: Sequence[MeasuredPlan]) -> list[Plan]:
    """Return the plans that are Pareto-optimal in cost, energy and latency; capacity replaces an unknown cost."""
    axes = [_axes(e) for e in entries]
    return [e.plan for e, a in zip(entries, axes, strict=True) if not any(_dominates(b, a) for b in axes)]


def _axes(entry: MeasuredPlan) -> tuple[float, float, float]:
    cost, energy = entry.plan.cost, entry.plan.energy
    usd = None if cost is None else cost.usd_per_million_output_tokens
    kwh = math.inf if energy is None else energy.kwh_per_million_output_tokens
    money = -(entry.capacity_requests_per_s or 0.0) if usd is None else usd
    return float(money), float(kwh), entry.verdict.ratio


def _dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))
