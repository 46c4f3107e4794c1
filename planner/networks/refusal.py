"""Why no plan of a network meets a request, and what would: simulated, never estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware, with_count, with_nodes
from catalogs.hardware.specs import Hardware
from catalogs.ui.words import digits, percent
from planner.answer.more_hardware import NEIGHBOURS
from planner.answer.schema import Suggestion
from planner.networks.measure import MeasuredPlan, PlanBuilder
from planner.networks.request import NetworkRequest
from planner.networks.schema import NetworkRefusal

if TYPE_CHECKING:
    from planner.networks.plan import KindSearch

#: Nodes of the largest hardware that is tried.
_MOST_NODES: Final = 16

#: Candidates whose capacity is measured to find the closest plan.
_CLOSEST: Final = 3

#: A looser limit that is suggested has this margin above the value at the confidence, and two digits.
_MARGIN: Final = 1.05

#: Trials of the search on each piece of hardware that is tried.
_TRIALS: Final = 8

PlanOf = Callable[[NetworkRequest], MeasuredPlan | None]


def refuse(
    request: NetworkRequest, builder: PlanBuilder, kinds: Sequence[KindSearch], plan_of: PlanOf
) -> NetworkRefusal:
    """Return why no plan meets a request.

    Args:
        request: The request.
        builder: Builds the plans of its candidates.
        kinds: The searches.
        plan_of: Returns the best plan of a changed request.
    """
    reasons: dict[str, int] = {}
    for kind in kinds:
        for reason, n in kind.space.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + n
    closest = _closest(request, builder, kinds)
    if closest is None:
        excess = {sentence: value for kind in kinds for value, sentence in kind.space.closest.values()}
        binding = min(excess, key=excess.__getitem__) if excess else "no hardware of the request holds the network"
    else:
        binding = _binding(request, builder, closest)
    changes = [*_load(request, closest, kinds), *_execution(request, plan_of), *_hardware(request, kinds, plan_of)]
    return NetworkRefusal(
        binding_constraint=binding,
        closest=None if closest is None else closest.plan,
        what_would_meet_it=changes,
        reasons=reasons,
    )


def _closest(request: NetworkRequest, builder: PlanBuilder, kinds: Sequence[KindSearch]) -> MeasuredPlan | None:
    """Return the plan with the highest capacity among the candidates with the fastest full batches."""
    assessor = builder.assessor
    left = [c for kind in kinds for c in kind.space.left if assessor.most_replicas(c) > 0]
    full = [c.with_replicas(assessor.most_replicas(c)) for c in left if not c.queue_delay_s]
    full.sort(key=lambda c: -assessor.evaluator.fluid_per_s(c) / assessor.evaluator.slowdown(c))
    capacities = {c: builder.capacity(c) or 0.0 for c in full[:_CLOSEST]}
    best = max(capacities, key=capacities.__getitem__, default=None)
    if best is None or not capacities[best]:
        return None
    return builder.measured(best)


def _binding(request: NetworkRequest, builder: PlanBuilder, closest: MeasuredPlan) -> str:
    rate, most = request.requests_per_s, closest.requests_per_s
    sure = percent(request.confidence)
    where = closest.candidate.hardware.text
    budget = request.max_usd_per_hour
    within = "" if budget is None else f" within the budget of ${budget:g} per hour"
    if rate is None:
        return f"no rate meets the objectives on {request.hardware}{within}"
    words = (
        f"{where} holds {digits(most)} jobs/s with {sure} confidence, {percent(most / rate)} of {digits(rate)} jobs/s"
    )
    return f"{words}{within} ({closest.plan.limited_by})"


def _load(request: NetworkRequest, closest: MeasuredPlan | None, kinds: Sequence[KindSearch]) -> Iterator[Suggestion]:
    """Yield the rate that the closest plan holds, or the limit that a lone job meets."""
    if closest is not None and request.requests_per_s is not None and closest.met:
        rate = float(f"{closest.requests_per_s * 0.9995:.3g}")
        if rate > closest.requests_per_s:
            rate = closest.requests_per_s
        yield _simulated("rate", f"at most {digits(rate)} jobs/s (--rate {rate:g}): {closest.candidate.words}", rate)


def _execution(request: NetworkRequest, plan_of: PlanOf) -> Iterator[Suggestion]:
    """Yield the execution with TensorRT on the same hardware, where it was not considered."""
    if request.modes:
        return
    found = plan_of(_changed(request, modes=("tensorrt",)))
    if found is not None:
        words = f"TensorRT (--set modes=tensorrt), if the network can be built: {found.candidate.words}"
        yield _simulated("modes", words, "tensorrt")


def _hardware(request: NetworkRequest, kinds: Sequence[KindSearch], plan_of: PlanOf) -> Iterator[Suggestion]:
    """Yield the least hardware of the same kinds and of one other kind that meets the request, and a looser limit."""
    same = list(dict.fromkeys(kind.hardware.accelerator.name for kind in kinds))[:1]
    others = [name for name in NEIGHBOURS if name not in same]
    met = False
    for names in (same, others):
        for name in names:
            found = _least_on(request, name, plan_of)
            if found is not None:
                met = True
                price = found.plan.cost.usd_per_hour if found.plan.cost is not None else None
                cost = "" if price is None else f" (${price:,.2f} per hour)"
                text = found.candidate.hardware.text
                yield _simulated("hardware", f"--hw {text}{cost}: {found.candidate.words}", text)
                break
    floor = min((k.space.floor[1] for k in kinds if k.space.floor is not None), default=math.inf)
    tightest = min(request.objectives, key=lambda slo: slo.limit_s)
    if not met and math.isfinite(floor) and floor > tightest.limit_s:
        for factor in (_MARGIN, 2.0, 4.0):
            limit_s = float(f"{floor * factor:.2g}")
            looser = tuple(_looser(slo, limit_s) for slo in request.objectives)
            found = plan_of(_changed(request, slos=looser))
            if found is not None:
                text = ",".join(slo.text for slo in looser)
                yield _simulated("slo", f"--slo {text}: {found.candidate.words}", text)
                return


def _looser(slo: object, limit_s: float) -> object:
    from dataclasses import replace

    from planner.problem.slo import Slo

    assert isinstance(slo, Slo)
    return replace(slo, limit_s=max(slo.limit_s, limit_s))


def _least_on(request: NetworkRequest, name: str, plan_of: PlanOf) -> MeasuredPlan | None:
    """Return the cheapest plan on as much of an accelerator as 16 nodes hold; None if there is none."""
    try:
        one = parse_hardware(name)
    except InputError:
        return None
    if one.text == "local" or one.accelerator.is_slice:
        return None
    node = with_count(one, one.node.max_accelerators)
    tariff = request.tariff.replace(usd_per_hour=None)
    for hardware in (node, *_nodes(node, request)):
        found = plan_of(_changed(request, hardware=hardware.text, tariff=tariff, max_usd_per_hour=None))
        if found is not None:
            return found
    return None


def _nodes(node: Hardware, request: NetworkRequest) -> Iterator[Hardware]:
    """Yield several nodes, where a rate is required: more of them do not make one job faster."""
    if request.requests_per_s is not None:
        yield with_nodes(node, _MOST_NODES)


def _changed(request: NetworkRequest, **changes: object) -> NetworkRequest:
    """Return a changed request that needs few trials, and is not stored."""
    small = request.search.replace(trials=min(_TRIALS, request.search.trials), study=None)
    return request.replace(**{"search": small, **changes})


def _simulated(kind: str, change: str, value: str | float) -> Suggestion:
    return Suggestion(kind=kind, change=change, value=value, verified_by="simulation")
