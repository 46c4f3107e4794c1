"""Why no plan of a network meets a request, and what would: simulated, never estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from catalogs.hardware.catalog import parse_hardware, with_count, with_nodes
from catalogs.hardware.specs import Hardware
from catalogs.ui.words import counted, digits, percent
from planner.answer.answer_schema import Suggestion
from planner.answer.more_hardware import NEIGHBOURS
from planner.networks.candidate import price_of
from planner.networks.job_service import JobService
from planner.networks.plan_builder import PlanBuilder, SizedCandidate
from planner.networks.request import NetworkRequest
from planner.networks.schema import NetworkPlan, NetworkRefusal
from planner.networks.search import KindSearch
from planner.networks.space import is_too_slow
from planner.problem.slo import Slo

#: Nodes of the largest hardware that is tried. A judgement of cost: each size is a search.
_MOST_NODES: Final = 16

#: Candidates whose capacity is measured to find the closest plan.
_CLOSEST: Final = 3

#: Factors on the seconds of a single job that a suggested limit has; the first that holds is suggested.
_MARGINS: Final = (1.05, 2.0, 4.0)

#: Trials of the search on each piece of hardware that is tried. A judgement of cost.
_TRIALS: Final = 8

PlanOf = Callable[[NetworkRequest], SizedCandidate | None]


def refuse(
    request: NetworkRequest, builder: PlanBuilder, kinds: Sequence[KindSearch], plan_of: PlanOf
) -> NetworkRefusal:
    """Return why no plan meets a request.

    Args:
        request: The request.
        builder: Builds the plans of its candidates.
        kinds: The searches.
        plan_of: Returns the best candidate of a changed request.
    """
    closest = _closest(builder, kinds) if request.users is None else _closest_to_users(builder, kinds)
    if closest is None:
        excess = {sentence: value for kind in kinds for value, sentence in kind.space.closest.values()}
        binding = min(excess, key=excess.__getitem__) if excess else "no hardware of the request holds the network"
    else:
        binding = _binding(request, closest, builder.plan(closest))
    service = builder.assessor.evaluator.service.with_its_prices()  # those of other hardware are no part of the answer
    changes = [*_load(request, closest, builder), *_execution(request, plan_of)]
    changes += _hardware(request, service, kinds, plan_of)
    return NetworkRefusal(
        binding_constraint=binding,
        closest=None if closest is None else builder.plan(closest),
        what_would_meet_it=changes,
    )


def _closest(builder: PlanBuilder, kinds: Sequence[KindSearch]) -> SizedCandidate | None:
    """Return the plan with the highest capacity: of the fastest full batches, and of the fastest single jobs."""
    assessor, evaluator = builder.assessor, builder.assessor.evaluator
    left = [c for kind in kinds for c in kind.space.left if assessor.most_replicas(c) > 0 and not c.queue_delay_s]
    full = [c.with_replicas(assessor.most_replicas(c)) for c in left]
    fastest = sorted(full, key=lambda c: -evaluator.fluid_per_s(c) / evaluator.slowdown(c))
    shortest = sorted(full, key=lambda c: evaluator.service.seconds(c.setup) * evaluator.slowdown(c))
    tried = dict.fromkeys([*fastest[:_CLOSEST], *shortest[:_CLOSEST]])
    capacities = {c: builder.capacity(c) or 0.0 for c in tried}
    best = max(capacities, key=capacities.__getitem__, default=None)
    return None if best is None or not capacities[best] else builder.sized(best)


def _closest_to_users(builder: PlanBuilder, kinds: Sequence[KindSearch]) -> SizedCandidate | None:
    """Return the plan that misses the objectives of users least."""
    outcomes = [outcome for kind in kinds for outcome in kind.search.outcomes]
    best = min(outcomes, key=lambda outcome: outcome.ratio, default=None)
    return None if best is None else builder.sized(best.candidate)


def _binding(request: NetworkRequest, closest: SizedCandidate, plan: NetworkPlan) -> str:
    rate, most, budget = request.requests_per_s, closest.requests_per_s, request.max_usd_per_hour
    within = "" if budget is None else f" within the budget of ${budget:g} per hour"
    if request.users is not None:
        worst = max(plan.slo, key=lambda row: (row.value_at_confidence_s or math.inf) / row.limit_s)
        missed = f"{closest.candidate.hardware.text} does not serve {counted(request.users, 'user')}"
        return f"{missed} with {percent(request.confidence)} confidence{within}: {worst.name} is beyond its limit"
    if rate is None:
        return f"no rate meets the objectives on {request.hardware}{within}"
    sure = percent(request.confidence)
    words = f"{closest.candidate.hardware.text} serves {digits(most)} jobs/s with {sure} confidence ({plan.limited_by})"
    return f"{words}{within}, {percent(most / rate)} of what is required"


def _load(request: NetworkRequest, closest: SizedCandidate | None, builder: PlanBuilder) -> Iterator[Suggestion]:
    """Yield the rate, or the number of users, that the closest plan holds."""
    if closest is not None and request.users is not None:
        most = builder.users(closest.candidate)
        if most:
            words = f"at most {counted(most, 'user')} (--users {most}): {closest.candidate.words}"
            yield Suggestion.simulated("users", words, most)
        return
    if closest is not None and request.requests_per_s is not None and closest.met:
        rate = _rounded_down(closest.requests_per_s)
        yield Suggestion.simulated(
            "rate", f"at most {rate:g} jobs/s (--rate {rate:g}): {closest.candidate.words}", rate
        )


def _rounded_down(rate: float) -> float:
    """Return a rate rounded down to three digits."""
    digit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return float(f"{math.floor(rate / digit) * digit:.3g}")


def _execution(request: NetworkRequest, plan_of: PlanOf) -> Iterator[Suggestion]:
    """Yield the execution with TensorRT on the same hardware, where it was not considered."""
    if request.modes:
        return
    found = plan_of(_changed(request, modes=("tensorrt",)))
    if found is not None:
        words = f"TensorRT (--set modes=tensorrt), if it can build the network: {found.candidate.words}"
        yield Suggestion.simulated("modes", words, "tensorrt")


def _hardware(
    request: NetworkRequest, service: JobService, kinds: Sequence[KindSearch], plan_of: PlanOf
) -> Iterator[Suggestion]:
    """Yield hardware of the same kind and of one other kind that meets the request, or else a looser limit."""
    own = next((kind.hardware.accelerator.name for kind in kinds), "")
    others = [name for name in NEIGHBOURS if name != own]
    met = False
    for names in ([own] if own else [], others):
        found = next((plan for name in names if (plan := _least_on(request, service, name, plan_of)) is not None), None)
        if found is None:
            continue
        met, text = True, found.candidate.hardware.text
        price = price_of(found.candidate, request.tariff.replace(usd_per_hour=None))
        cost = "" if price is None else f" (${price.usd_per_hour:,.2f} per hour)"
        yield Suggestion.simulated("hardware", f"--hw {text}{cost}: {found.candidate.words}", text)
    if not met:
        yield from _limit(request, kinds, plan_of)


def _limit(request: NetworkRequest, kinds: Sequence[KindSearch], plan_of: PlanOf) -> Iterator[Suggestion]:
    """Yield the tightest limit above the seconds of a single job that meets the request on the same hardware."""
    floor_s = min((kind.space.floor[1] for kind in kinds if kind.space.floor is not None), default=math.inf)
    for factor in _MARGINS if math.isfinite(floor_s) else ():
        limit_s = float(f"{floor_s * factor:.2g}")
        looser = tuple(_looser(slo, limit_s) for slo in request.objectives)
        found = plan_of(_changed(request, slos=looser))
        if found is not None:
            text = ",".join(slo.text for slo in looser)
            yield Suggestion.simulated("slo", f"--slo {text}: {found.candidate.words}", text)
            return


def _looser(slo: Slo, limit_s: float) -> Slo:
    """Return an objective whose limit is at least a number of seconds."""
    return replace(slo, limit_s=max(slo.limit_s, limit_s))


def _least_on(request: NetworkRequest, service: JobService, name: str, plan_of: PlanOf) -> SizedCandidate | None:
    """Return the best plan on one node of an accelerator, or else on _MOST_NODES nodes; None if neither has one.

    Hardware on which a single job takes too long in every setup is not searched: more nodes do not make it faster.
    """
    one = parse_hardware(name)
    if one.text == "local" or one.accelerator.is_slice:
        return None
    node = with_count(one, one.node.max_accelerators)
    if is_too_slow(request, service, node):
        return None
    tariff = request.tariff.replace(usd_per_hour=None)
    for hardware in (node, *_nodes(node, request)):
        found = plan_of(_changed(request, hardware=hardware.text, tariff=tariff, max_usd_per_hour=None))
        if found is not None:
            return found
    return None


def _nodes(node: Hardware, request: NetworkRequest) -> Iterator[Hardware]:
    """Yield several nodes, where a rate is required: more of them do not make one job faster."""
    if request.is_required:
        yield with_nodes(node, _MOST_NODES)


def _changed(request: NetworkRequest, **changes: object) -> NetworkRequest:
    """Return a changed request that needs few trials, and is not stored."""
    small = request.search.replace(trials=min(_TRIALS, request.search.trials), study=None)
    return request.replace(**{"search": small, **changes})
