"""A plan as evaluated, and the comparison of several: the quantity that an objective minimises, and the Pareto set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.answer.plan_schema import Plan
from planner.evaluation.verdict import Verdict
from planner.problem.candidate import Candidate


@dataclass(frozen=True, slots=True)
class EvaluatedPlan:
    """A plan as simulated, with its candidate, its capacity and the verdict at its rate.

    `met` tells whether every objective is met with the confidence of the request, and `survives` whether it is also met
    after the loss that the request names.
    """

    candidate: Candidate
    requests_per_s: float
    capacity_requests_per_s: float | None
    verdict: Verdict
    plan: Plan
    met: bool
    survives: bool = True

    @property
    def holds(self) -> bool:
        """Whether the plan meets the request, also after the loss that it names."""
        return self.met and self.survives and self.capacity_requests_per_s is not None


def objective_value(objective: str, with_load: bool, entry: EvaluatedPlan) -> float:
    """Return the quantity that an objective minimises, of a plan as evaluated.

    Without a required load, cost is US dollars for each unit of capacity. The value is infinite where it is unknown.
    """
    plan, capacity = entry.plan, entry.capacity_requests_per_s or 0.0
    unknown = math.inf
    if objective == "cost":
        usd = unknown if plan.usd_per_hour is None else plan.usd_per_hour
        return usd if with_load else usd / capacity if capacity else unknown
    if objective in ("energy", "carbon"):
        used = plan.energy
        name = "j_per_output_token" if objective == "energy" else "gco2e_per_million_output_tokens"
        value = None if used is None else getattr(used, name)
        return unknown if value is None else float(value)
    if objective == "latency":
        return plan.tightest.share
    return -capacity / (entry.candidate.hardware.n_accelerators if objective == "goodput" else 1)


def load_at_equal_value(objective: str, with_load: bool, entry: EvaluatedPlan) -> float:
    """Return the capacity that decides between plans of equal value by the objective, requests per second.

    With a required load, cost is the price alone. Any other value contains the capacity, or is compared for its own
    sake; the result is then 0.
    """
    return (entry.capacity_requests_per_s or 0.0) if with_load and objective == "cost" else 0.0


def pareto(entries: Sequence[EvaluatedPlan]) -> list[Plan]:
    """Return the plans that are Pareto-optimal in cost, energy and latency; capacity replaces an unknown cost."""
    axes = []
    for entry in entries:
        cost, used = entry.plan.cost, entry.plan.energy
        usd = None if cost is None else cost.usd_per_million_output_tokens
        kwh = math.inf if used is None else used.kwh_per_million_output_tokens
        axes.append((-(entry.capacity_requests_per_s or 0.0) if usd is None else usd, kwh, entry.verdict.ratio))
    beaten = [any(b != a and all(x <= y for x, y in zip(b, a, strict=True)) for b in axes) for a in axes]
    return [entry.plan for entry, worse in zip(entries, beaten, strict=True) if not worse]
