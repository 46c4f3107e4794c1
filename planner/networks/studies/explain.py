"""The explanation of an answer for a network: its reasons, what binds it, and the cost of 20 % more capacity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from catalogs.deployments.network_deployment import as_network_deployment
from catalogs.hardware.catalog import MOST_NODES, parse_hardware, with_count, with_nodes
from catalogs.hardware.specs import Hardware
from catalogs.ui.progress import ProgressCallback
from catalogs.ui.words import counted, digits, percent, were
from planner.answer.answer_schema import reason_sentence, refused_sentence
from planner.networks.candidate_counts import not_simulated
from planner.networks.plan import best_of
from planner.networks.schema import NetworkAnswer, NetworkPlan, StageRow
from planner.networks.screen import capacity_words, cost_words, energy_words
from planner.networks.studies.inputs import find_network_binding
from planner.networks.studies.whatif import builder_of, candidate_of, check_calibration
from planner.search.candidate_tester import TIE_WORDS
from planner.sections.section import tightest_words
from planner.studies.binding import Binding
from planner.studies.bottleneck import ResourceUse
from planner.studies.capacity_growth import ACCELERATORS_TRIED, CAPACITY_GOAL, Growth, GrowthStep
from planner.studies.capacity_inputs import COMPUTE, FIXED, HOST, LINK, MEMORY
from planner.studies.explain import Explanation

#: What the search optimised, by objective.
_GOALS: Final = {
    "cost": "has the lowest cost",
    "energy": "has the lowest energy",
    "carbon": "has the lowest carbon",
    "throughput": "has the highest rate that meets the objectives",
    "latency": "has the lowest latency",
}

#: Trials of the search on each piece of hardware that is tried. A judgement of cost.
_TRIALS: Final = 8

#: Below this number of nodes, one more node is tried; from it on, twice as many.
_DOUBLED_FROM_NODES: Final = 4


def explain_network(answer: NetworkAnswer, tell: ProgressCallback = lambda _: None) -> Explanation:
    """Simulate the plan again with each input improved, and changes that could reach 20 % more capacity.

    Raises:
        InputError: The answer was made with another calibration.
    """
    best = answer.best
    if best is None:
        return _refused(answer)
    builder = builder_of(answer.request)
    check_calibration(answer, best, builder)
    candidate = candidate_of(as_network_deployment(best.deployment, "the plan"))
    capacity = best.capacity_requests_per_s
    bound = None if capacity is None else find_network_binding(builder.assessor, candidate, capacity, tell)
    others = [(plan.words, why_not(best, plan, answer.job.unit)) for plan in answer.alternatives]
    advice = () if bound is None else tuple(f"{gain.input}: {gain.advice}" for gain in bound.binding)
    grown = None if capacity is None else _growth(answer, best, capacity, tell)
    batch = min(max(round(best.metrics.jobs_per_batch), 1), candidate.max_batch)
    uses = _uses(builder.stages(candidate, batch), batch, bound)
    return Explanation(list(_why(answer, best)), others, uses, _binds(best, bound), grown, advice)


def _refused(answer: NetworkAnswer) -> Explanation:
    refusal, search = answer.infeasible, answer.search
    if refusal is None:
        return Explanation(["No deployment meets the request."], [], [], "unknown", None)
    why = [refused_sentence(search.n_space)]
    why += [reason_sentence(n, reason) for reason, n in refusal.main_reasons.items()]
    if refusal.closest is not None:
        why.append(f"The closest plan is {refusal.closest.words}.")
    why += [f"It would be met by {s.change} (checked by {s.verified_by})." for s in refusal.what_would_meet_it]
    return Explanation(why, [], [], refusal.binding_constraint, None)


def _why(answer: NetworkAnswer, best: NetworkPlan) -> Iterator[str]:
    """Yield sentences on the search and on the decision."""
    search, request = answer.search, answer.request
    goal = _GOALS[request.objective]
    if request.objective == "cost" and request.requests_per_s is not None:
        goal = f"is the cheapest that serves {digits(request.requests_per_s)} jobs/s"
    if request.objective == "cost" and request.users is not None:
        goal = f"is the cheapest that serves {counted(request.users, 'user')}"
    left = not_simulated(search)
    yield (
        f"Of {counted(search.n_space, 'deployment')}, {search.n_bounded_out:,} cannot meet the objectives or gain "
        f"nothing (bounds), {were(search.n_simulated)} simulated{'' if left is None else f' and {were(left)} not'}; "
        f"this one {goal}."
    )
    yield tightest_words(best.slo, request.confidence)
    if (capacity := capacity_words(best)) is not None:
        limit = f"; {best.limited_by}" if best.limited_by else ""
        yield f"Its capacity is {capacity}{limit}."
    for reason, n in search.main_reasons.items():
        yield f"{n:,} ruled out, because {reason}."


def why_not(best: NetworkPlan, other: NetworkPlan, unit: str) -> str:
    """Return the differences of an alternative from the recommended plan in words."""
    reasons = []
    ours = best.capacity_users or best.capacity_requests_per_s
    theirs = other.capacity_users or other.capacity_requests_per_s
    if ours and theirs:
        reasons.append(f"capacity {capacity_words(other)}, {percent(theirs / ours - 1, signed=True)}")
    if best.usd_per_unit and other.usd_per_unit:
        cost = cost_words(other, unit, best)
        reasons.append(f"{cost}, {percent(other.usd_per_unit / best.usd_per_unit - 1, signed=True)}")
    change = other.energy.j_per_unit / best.energy.j_per_unit - 1
    reasons.append(f"{energy_words(other, unit, best)}, {percent(change, signed=True)}")
    return "; ".join([*reasons, *([TIE_WORDS] if other.ties else [])])


def _binds(plan: NetworkPlan, binding: Binding | None) -> str:
    first = f"capacity {capacity_words(plan)}, {plan.limited_by}; " if plan.limited_by else ""
    unknown = "what binds is known for a rate of jobs only"
    if plan.capacity_requests_per_s is not None:
        unknown = "what binds is not known: the plan misses an objective under a light load with the seed of the search"
    return first + (unknown if binding is None else binding.words)


def _uses(stages: Sequence[StageRow], batch: int, binding: Binding | None) -> list[ResourceUse]:
    """Return the share of a batch that each resource takes, and the gain of capacity from 10 % more of it.

    Args:
        stages: The stages of a batch of the plan.
        batch: The jobs of this batch: the mean of the plan's batches.
        binding: What binds the plan; None where it is not known.
    """
    total_s = sum(stage.total_s for stage in stages)
    parts = {
        COMPUTE: sum(stage.compute_s for stage in stages),
        MEMORY: sum(stage.memory_s for stage in stages),
        FIXED: sum(stage.fixed_s for stage in stages),
        LINK: sum(stage.communication_s for stage in stages),
        HOST: sum(stage.host_s for stage in stages),
    }
    of = "the time of a single job" if batch == 1 else f"the time of a batch of {batch}"
    if binding is None:
        return [ResourceUse(name, s / total_s, of, name) for name, s in parts.items() if s > 0.0]
    return [
        ResourceUse(
            gain.input,
            parts[gain.input] / total_s if gain.input in parts else None,
            of if gain.input in parts else "",
            gain.input,
            gain.gain,
            gain.binds,
        )
        for gain in binding.gains
    ]


def _growth(answer: NetworkAnswer, best: NetworkPlan, capacity: float, tell: ProgressCallback) -> Growth:
    """Return changes that reach 20 % more than the capacity: other plans on the hardware, more of it, and others."""
    goal, own = CAPACITY_GOAL * capacity, parse_hardware(str(best.deployment["hardware"]))
    found: list[GrowthStep] = []
    chosen = [parse_hardware(str(plan.deployment["hardware"])).accelerator.name for plan in answer.alternatives]
    for kind, hardware, note in _tried(own, chosen):
        if found and found[0].holds and hardware.accelerator == own.accelerator:
            continue  # the same hardware suffices, and more of it is not cheaper
        tell(f"{hardware.text} at {digits(goal)} jobs/s")
        found.append(_step(answer, best, kind, hardware, goal, note))
    return Growth(goal, found, "jobs/s")


def _tried(own: Hardware, alternatives: Sequence[str]) -> Iterator[tuple[str, Hardware, str]]:
    """Yield the kind of a change, the hardware on which the plan is searched again, and a note.

    The accelerators of alternatives are tried too.
    """
    yield "deployment", own, "the same hardware"
    if own.text == "local" or own.accelerator.is_slice:
        return
    most = own.node.max_accelerators
    whole = with_count(with_nodes(own, 1), most)
    if own.n_accelerators < most:
        yield "hardware", whole, "more of the same accelerators"
    elif own.n_nodes < MOST_NODES:
        more = own.n_nodes + 1 if own.n_nodes < _DOUBLED_FROM_NODES else min(2 * own.n_nodes, MOST_NODES)
        yield "hardware", with_nodes(whole, more), ""
    for name in dict.fromkeys((*ACCELERATORS_TRIED, *alternatives)):
        if name != own.accelerator.name:
            other = parse_hardware(name)
            yield "hardware", with_count(other, other.node.max_accelerators), ""


def _step(
    answer: NetworkAnswer, best: NetworkPlan, kind: str, hardware: Hardware, goal: float, note: str
) -> GrowthStep:
    request = answer.request
    same = hardware.accelerator == parse_hardware(str(best.deployment["hardware"])).accelerator
    tariff = request.tariff if same else request.tariff.replace(usd_per_hour=None)
    if same and tariff.usd_per_hour is not None and best.usd_per_hour is not None:
        own = parse_hardware(str(best.deployment["hardware"])).n_accelerators
        tariff = tariff.replace(usd_per_hour=best.usd_per_hour * hardware.n_accelerators / own)
    small = request.search.replace(trials=min(_TRIALS, request.search.trials), study=None)
    changed = request.replace(
        hardware=hardware.text,
        requests_per_s=goal,
        objective="cost",
        max_usd_per_hour=None,
        tariff=tariff,
        search=small,
    )
    plan = best_of(changed)
    if plan is None:
        words = f"{hardware.text}: no plan serves it"
        return GrowthStep(kind, words, None, None, False, note)
    usd, now = plan.usd_per_hour, best.usd_per_hour
    extra = None if usd is None or now is None else usd - now
    return GrowthStep(kind, plan.sized.candidate.words, usd, extra, True, note)
