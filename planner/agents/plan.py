"""Plan for a number of agents: the cheapest deployment, KV tier and routing that meet the objectives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from catalogs.deployments.resolve import CatalogLookup
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.io.json_block import JsonBlock
from planner.agents.serving import TURNS, AgentServing, Seen, Tier, routers, sessions_of, tiers
from planner.answer.plan_schema import SloResult
from planner.evaluation.closed_forms import ClosedForms
from planner.evaluation.confidence import LEVELS, SEEDS, SPEED
from planner.evaluation.deployments import CandidateDeployments
from planner.evaluation.workload_statistics import WorkloadStatistics
from planner.problem.candidate import Candidate, DeploymentOverrides, deployment_words
from planner.problem.hardware_choice import choose_hardware
from planner.problem.interactivity import interactivity
from planner.problem.latency_metrics import E2E, TPOT, TTFT
from planner.problem.request import PlanRequest
from planner.problem.slo import statistic_s
from planner.problem.tariff import least_price
from planner.sections.users import slo_row
from planner.space.candidates import candidates, limits, widest_limits

SCHEMA_VERSION: Final = 1

#: Placements that are simulated for each price, in the order of their estimated capacity.
MOST_PLACEMENTS: Final = 3

#: Requests of each agent in a run that compares placements.
QUICK_TURNS: Final = 10

#: The search for a capacity ends when its bounds differ by this factor, and looks at most this far above the request.
TOLERANCE: Final = 1.1

MOST_FACTOR: Final = 8

Progress = Callable[[str], None]


class AgentPlan(JsonBlock):
    """A deployment under the load of the agents.

    Attributes:
        words: The deployment in words.
        deployment: The deployment, as `simulate` reads it.
        tier: Where KV blocks are kept.
        router: The routing policy.
        met: Whether every objective is met with the confidence of the request.
        objectives: The objectives, with intervals from independent seeds and the stated error.
        interactivity_p50: Output tokens per second of a request, which half of the requests reach.
        interactivity_p90: Output tokens per second, which 90 % of the requests reach.
        ttft_p50_s: Median time to first token, seconds.
        e2e_mean_s: Mean end-to-end latency, seconds.
        hit_rate: Prompt tokens found in a KV cache, as a share.
        theoretical_hit_rate: The share with a cache without limits.
        requests_at_once: Mean requests under way at once.
        requests_per_s: Requests of all agents per second.
        output_tokens_per_s: Output tokens of all agents per second.
        usd_per_hour: Price; None if unknown.
        usd_per_agent_hour: Price divided by the agents.
    """

    words: str
    deployment: dict[str, Any]
    tier: str
    router: str
    met: bool
    objectives: list[SloResult]
    interactivity_p50: float | None
    interactivity_p90: float | None
    ttft_p50_s: float | None
    e2e_mean_s: float | None
    hit_rate: float | None
    theoretical_hit_rate: float | None
    requests_at_once: float
    requests_per_s: float
    output_tokens_per_s: float
    usd_per_hour: float | None
    usd_per_agent_hour: float | None


class ComparedPlan(JsonBlock):
    """A choice that was simulated for longer and not recommended, at steps as slow as the confidence asks for.

    Attributes:
        words: The deployment in words.
        tier: Where KV blocks are kept.
        router: The routing policy.
        values_s: The values of the objectives, seconds.
        hit_rate: Prompt tokens found in a KV cache, as a share.
        ratio: The highest ratio of an objective's value to its limit, with the stated error.
    """

    words: str
    tier: str
    router: str
    values_s: dict[str, float | None]
    hit_rate: float | None
    ratio: float | None


class AgentsAnswer(JsonBlock):
    """The answer to `plan --agents`: the recommended deployment, its capacity in agents, and what it was compared with.

    Attributes:
        schema_version: Version of this schema.
        request: The keys of the request.
        agents: Agents at work.
        feasible: Whether a deployment meets every objective.
        best: The recommended deployment, or the one that comes closest.
        capacity_agents: The most agents for which it was found to meet the objectives; 0 for none.
        others: Other tiers, routers and placements that were simulated in full.
        n_runs: Simulated runs.
        n_requests: Simulated requests.
        seconds: Time of the search.
        notices: Lines for the user.
    """

    schema_version: int
    request: dict[str, Any]
    agents: int
    feasible: bool
    best: AgentPlan
    capacity_agents: int
    others: list[ComparedPlan]
    n_runs: int
    n_requests: int
    seconds: float
    notices: list[str]


@dataclass(frozen=True, slots=True)
class Choice:
    """A placement with a tier and a router."""

    serving: AgentServing = field(compare=False)
    candidate: Candidate
    tier: Tier
    router: str

    def observe(self, agents: int, turns: int = TURNS, seed: int = 0, speed: float = 1.0) -> Seen:
        """Return what a run of agents shows; see `AgentServing.observe`."""
        return self.serving.observe(self.candidate, self.tier, self.router, agents, turns, seed, speed)

    def rate(self, agents: int, confidence: float, turns: int = TURNS) -> tuple[float, Seen]:
        """Return the highest ratio of an objective's value to its limit that is not exceeded with a confidence.

        The run from which it follows is returned too.
        """
        error = self.serving.error(self.candidate)
        speed = float(error.factors(SPEED, np.array([confidence]))[0])
        seen = self.observe(agents, turns, speed=speed)
        return seen.ratio(self.serving.slos, error, confidence), seen

    @property
    def deployment(self) -> dict[str, Any]:
        """Return the deployment, as `simulate` reads it."""
        keys = {**self.candidate.rest.values, **self.tier.keys.values, "router": self.router}
        written = replace(self.candidate, rest=DeploymentOverrides(keys))
        found: dict[str, Any] = self.serving.deployments.written(written).model_dump(mode="json")
        return found


@dataclass(frozen=True, slots=True)
class Rated:
    """A choice with the run that rates it.

    Attributes:
        choice: The choice.
        ratio: The highest ratio of an objective's value to its limit that is not exceeded with the confidence asked.
        depth: How far the choice is from the simplest one.
        seen: The run, at the speed of this confidence.
    """

    choice: Choice
    ratio: float
    depth: int
    seen: Seen

    @classmethod
    def of(cls, choice: Choice, request: PlanRequest, agents: int, depth: int, turns: int = TURNS) -> Rated:
        """Return a choice, rated by one run."""
        ratio, seen = choice.rate(agents, request.confidence, turns)
        return cls(choice, ratio, depth, seen)

    def __lt__(self, other: Rated) -> bool:
        return (round(self.ratio, 2), self.depth) < (round(other.ratio, 2), other.depth)


def plan_agents(request: PlanRequest, agents: int, progress: Progress = lambda _: None) -> AgentsAnswer:
    """Return the answer for a number of agents.

    Placements at the engine's default limits are ordered by price and by the capacity that closed forms estimate. The
    best of each price are simulated briefly, routed by session, with and without host memory. The best of them is then
    simulated for longer with every KV tier and router, and with other token budgets of a step. The search ends at the
    lowest price at which the objectives are met.

    Raises:
        InputError: The workload has no sessions, a name is unknown, or nothing fits.
    """
    if agents < 1:
        raise InputError("agents must be a whole number of at least 1", agents, "1")
    began = time.monotonic()
    workload = request.read_workload()
    sessions_of(workload)
    tried: list[Rated] = []
    found: list[Rated] = []
    for choices in _by_price(request, agents):
        quick = [rated for choice in choices for rated in _quick(choice, request, agents, progress)]
        tried += quick
        if quick and min(quick).ratio <= 1.0:
            found = _variants(min(quick).choice, request, agents)
            if found[0].ratio <= 1.0:
                break
    if not tried:
        raise InputError("no deployment of the model fits on the hardware with its contexts", request.hardware)
    if not found or found[0].ratio > 1.0:
        found = _variants(min(tried).choice, request, agents)
    chosen = found[0].choice
    best = _plan(chosen, request, agents)
    capacity = _capacity(chosen, request, agents, best.met)
    servings = {id(rated.choice.serving): rated.choice.serving for rated in tried}.values()
    return AgentsAnswer(
        schema_version=SCHEMA_VERSION,
        request=request.as_dict() | {"agents": agents},
        agents=agents,
        feasible=best.met,
        best=best,
        capacity_agents=capacity,
        others=[_other(rated) for rated in found[1:]],
        n_runs=sum(serving.n_runs for serving in servings),
        n_requests=sum(serving.n_requests for serving in servings),
        seconds=time.monotonic() - began,
        notices=list(workload.notices),
    )


def _variants(choice: Choice, request: PlanRequest, agents: int) -> list[Rated]:
    """Return a placement with every tier and router, and the best of them with other token budgets, the best first.

    A simpler deployment comes first where another one is not better by a hundredth.
    """
    candidate = choice.candidate
    found = [
        Rated.of(other, request, agents, depth)
        for depth, tier in enumerate(tiers(candidate))
        for router in routers(candidate)
        if _runs(other := replace(choice, tier=tier, router=router))
    ]
    best = min(found)
    own = candidate.max_num_seqs, candidate.max_num_batched_tokens
    for seqs, tokens in limits(choice.serving.names, request.fixed):
        if seqs == own[0] and tokens != own[1]:
            other = replace(best.choice, candidate=replace(candidate, max_num_batched_tokens=tokens))
            if _runs(other):
                found.append(Rated.of(other, request, agents, best.depth + 1))
    return sorted(found)


def _other(rated: Rated) -> ComparedPlan:
    """Return a choice that was simulated and not recommended."""
    choice = rated.choice
    seen, slos = rated.seen, choice.serving.slos
    values: dict[str, float | None] = {slo.name: slo.value_s(seen.observation.samples_s[slo.metric]) for slo in slos}
    return ComparedPlan(
        words=deployment_words(choice.deployment),
        tier=choice.tier.name,
        router=choice.router,
        values_s=values,
        hit_rate=seen.hits.rate,
        ratio=rated.ratio,
    )


def _by_price(request: PlanRequest, agents: int) -> Iterator[list[Choice]]:
    """Yield the placements of each price, the lowest price first, those of the highest estimated capacity."""
    workload = request.read_workload()
    found = choose_hardware(
        request.hardware, lambda hardware: least_price(hardware, request.tariff), False, request.max_usd_per_hour
    )
    groups: dict[float, list[tuple[float, Choice]]] = {}
    for hardware in found.hardware:
        named = parse_hardware(hardware.text)
        names = CatalogLookup.on(named, request.model, request.engine)
        widest = widest_limits(names, request.fixed)
        deployments = CandidateDeployments(names, request.model, request.engine, widest)
        forms = ClosedForms(deployments, WorkloadStatistics.of(workload, request.seed), request.slos)
        serving = AgentServing(names, deployments, workload, request.slos, request.seed, forms)
        own = limits(names, request.fixed)[0]
        for candidate in candidates(request.replace(users=agents), names):
            if (candidate.max_num_seqs, candidate.max_num_batched_tokens) != own:
                continue
            try:
                if not deployments.memory(candidate).fits:
                    continue
                capacity = forms.saturation_per_s(candidate)
            except InputError:
                continue
            choice = Choice(serving, candidate, next(tiers(candidate)), routers(candidate)[0])
            groups.setdefault(_usd(choice, request), []).append((capacity, choice))
    for usd in sorted(groups):
        ordered = sorted(groups[usd], key=lambda pair: -pair[0])
        yield [choice for _, choice in ordered[:MOST_PLACEMENTS]]


def _usd(choice: Choice, request: PlanRequest) -> float:
    """Return the price of a placement per hour; the number of accelerators where none is known."""
    price = least_price(choice.candidate.hardware, request.tariff)
    return float(choice.candidate.hardware.n_accelerators) if price is None else price.usd_per_hour


def _quick(choice: Choice, request: PlanRequest, agents: int, progress: Progress) -> Iterator[Rated]:
    """Yield a placement, rated by short runs, on device memory alone and with host memory."""
    progress(choice.candidate.words)
    for depth, tier in enumerate(list(tiers(choice.candidate))[:2]):
        other = replace(choice, tier=tier)
        if _runs(other):
            yield Rated.of(other, request, agents, depth, QUICK_TURNS)


def _runs(choice: Choice) -> bool:
    """Return whether a choice fits and the engine supports its tier."""
    try:
        choice.serving.compiled(choice.candidate, choice.tier)
    except InputError:
        return False
    return True


def _capacity(choice: Choice, request: PlanRequest, agents: int, met: bool) -> int:
    """Return the most agents for which the objectives were found to be met, within a factor TOLERANCE."""
    low, high = (agents, agents * MOST_FACTOR) if met else (0, agents)
    n = agents
    while met and n < high:
        n = min(high, n * 2)
        if choice.rate(n, request.confidence, QUICK_TURNS)[0] <= 1.0:
            low = n
        else:
            high = n
    while high > max(low, 1) * TOLERANCE and high - low > 1:
        n = (low + high) // 2 if not low else round((low * high) ** 0.5)
        if n in (low, high):
            break
        if choice.rate(n, request.confidence, QUICK_TURNS)[0] <= 1.0:
            low = n
        else:
            high = n
    return low


def _plan(choice: Choice, request: PlanRequest, agents: int) -> AgentPlan:
    """Return a deployment under the load of the agents, measured with independent seeds and slower steps."""
    error = choice.serving.error(choice.candidate)
    runs = [choice.observe(agents, seed=seed) for seed in range(SEEDS)]
    slower = [choice.observe(agents, speed=float(f)).observation for f in error.factors(SPEED, np.array(LEVELS))]
    seen, loops = runs[0], [run.observation for run in runs]
    samples = seen.observation.samples_s
    price = least_price(choice.candidate.hardware, request.tariff)
    rows = [slo_row(slo, loops, slower, error, request.confidence) for slo in request.slos]
    tpot, ttft = samples[TPOT.name], samples[TTFT.name]
    deployment = choice.deployment
    return AgentPlan(
        words=deployment_words(deployment),
        deployment=deployment,
        tier=choice.tier.name,
        router=choice.router,
        met=all(row.met for row in rows),
        objectives=rows,
        interactivity_p50=interactivity(tpot, 0.5),
        interactivity_p90=interactivity(tpot, 0.9),
        ttft_p50_s=statistic_s(ttft, 0.5),
        e2e_mean_s=float(samples[E2E.name].mean()) if len(samples[E2E.name]) else None,
        hit_rate=seen.hits.rate,
        theoretical_hit_rate=seen.hits.theoretical_rate,
        requests_at_once=seen.sessions_at_once,
        requests_per_s=seen.requests_per_s,
        output_tokens_per_s=seen.output_tokens_per_s,
        usd_per_hour=None if price is None else price.usd_per_hour,
        usd_per_agent_hour=None if price is None else price.usd_per_hour / agents,
    )
